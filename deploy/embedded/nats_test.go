package embedded

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/vidforge/vidforge/pkg/jobs/jobstest"
	"github.com/vidforge/vidforge/pkg/ledger/ledgertest"
)

// natsConnector starts one server for a suite and returns a function that gives
// each of its tests a connection.
func natsConnector(t *testing.T) func(*testing.T) *nats.Conn {
	t.Helper()
	s, err := StartNATS(t.Context(), NATSOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return func(t *testing.T) *nats.Conn {
		t.Helper()
		nc, err := nats.Connect(s.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
}

func TestLedger(t *testing.T) {
	t.Parallel()
	ledgertest.Run(t, natsConnector(t))
}

func TestJobs(t *testing.T) {
	t.Parallel()
	jobstest.Run(t, natsConnector(t))
}
