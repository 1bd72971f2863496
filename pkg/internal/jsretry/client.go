package jsretry

import (
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/vidforge/vidforge/pkg/access"
)

// Client is a client whose API requests begin with api ("" for
// access.DefaultAPI): an account that imports another's JetStream has it under
// another prefix. Each of its calls is bounded by timeout unless its context is.
func Client(nc *nats.Conn, api string, timeout time.Duration) (jetstream.JetStream, error) {
	if api == "" || api == access.DefaultAPI {
		return jetstream.New(nc, jetstream.WithDefaultTimeout(timeout)) //nolint:wrapcheck // says what is wrong
	}
	return jetstream.NewWithAPIPrefix(nc, api, jetstream.WithDefaultTimeout(timeout)) //nolint:wrapcheck // says what is wrong
}
