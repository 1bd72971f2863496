// Package jsretry repeats JetStream calls that a change of leader, a lost
// connection or a busy server interrupted. It is for packages ledger and jobs.
package jsretry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrAgain marks an outcome that is not settled yet: Do tries again.
var ErrAgain = errors.New("not settled yet")

// A leader is elected within a few seconds; asking once a second then is cheap.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// errNoPeers: a stream or consumer finds no servers for its replicas. The
// description says why.
const errNoPeers jetstream.ErrorCode = 10005

// Do calls try, bounding each call by timeout, until it succeeds, fails for
// good or ctx ends. A call that failed temporarily may have had its effect all
// the same: try must tell its own earlier success from somebody else's.
func Do(ctx context.Context, timeout time.Duration, try func(context.Context) error) error {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = firstPause, lastPause
	var last error
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		tctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if last = try(tctx); last != nil && !Temporary(last) {
			return struct{}{}, backoff.Permanent(last)
		}
		return struct{}{}, last
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
	if err != nil && !errors.Is(err, last) {
		return fmt.Errorf("%w; last try: %w", err, last)
	}
	return err //nolint:wrapcheck // it is the caller's own error
}

// Temporary reports whether the same call may succeed later. The effect of the
// call is unknown then.
func Temporary(err error) bool {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		// 500 is a refusal, such as of a configuration. A cluster that has just
		// started counts nodes that it has not heard of yet.
		return api.Code == 503 || api.ErrorCode == errNoPeers && strings.Contains(api.Description, "peer offline")
	}
	for _, t := range []error{
		ErrAgain, context.DeadlineExceeded,
		nats.ErrTimeout, nats.ErrNoResponders, nats.ErrDisconnected, nats.ErrStaleConnection,
		nats.ErrReconnectBufExceeded, nats.ErrConnectionReconnecting,
		jetstream.ErrNoStreamResponse, jetstream.ErrNoHeartbeat, jetstream.ErrServerShutdown,
		jetstream.ErrConsumerLeadershipChanged,
	} {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// ErrorCode returns the JetStream error code of err, 0 when it has none.
func ErrorCode(err error) jetstream.ErrorCode {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return api.ErrorCode
	}
	return 0
}
