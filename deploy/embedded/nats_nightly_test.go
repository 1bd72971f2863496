//go:build nightly

package embedded

import (
	"testing"

	"github.com/vidforge/vidforge/pkg/jobs/jobstest"
	"github.com/vidforge/vidforge/pkg/ledger/ledgertest"
)

// The suites on three replicas take minutes.

func TestLedgerReplicated(t *testing.T) {
	ledgertest.RunReplicated(t, startCluster(t).connect, 3)
}

func TestJobsReplicated(t *testing.T) {
	jobstest.RunReplicated(t, startCluster(t).connect, 3)
}
