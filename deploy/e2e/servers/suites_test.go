package servers_test

import (
	"crypto/rand"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/vidforge/vidforge/deploy/e2e/servers"
	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/blob/blobtest"
	"github.com/vidforge/vidforge/pkg/jobs/jobstest"
	"github.com/vidforge/vidforge/pkg/ledger/ledgertest"
	"github.com/vidforge/vidforge/pkg/progress/progresstest"
)

// The suites of pkg on real servers.

func TestLedger(t *testing.T) {
	t.Parallel()
	ledgertest.Run(t, connector(servers.StartNATS(t, servers.NATSOptions{})))
}

func TestJobs(t *testing.T) {
	t.Parallel()
	jobstest.Run(t, connector(servers.StartNATS(t, servers.NATSOptions{})))
}

func TestProgress(t *testing.T) {
	t.Parallel()
	progresstest.Run(t, func(t *testing.T) string { return servers.StartRedis(t, servers.RedisOptions{}).URL })
}

func TestBlobs(t *testing.T) {
	t.Parallel()
	s := servers.StartS3(t, servers.S3Options{})
	blobtest.Run(t, func(*testing.T) blob.Config { return s.Config("test-" + strings.ToLower(rand.Text())) })
}

func TestLedgerReplicated(t *testing.T) {
	t.Parallel()
	ledgertest.RunReplicated(t, connector(servers.StartCluster(t, servers.NATSOptions{})), len(servers.Cluster{}.Nodes))
}

func TestJobsReplicated(t *testing.T) {
	t.Parallel()
	jobstest.RunReplicated(t, connector(servers.StartCluster(t, servers.NATSOptions{})), len(servers.Cluster{}.Nodes))
}

// connector gives each test of a suite a connection.
func connector(s interface {
	Connect(t testing.TB, o ...nats.Option) *nats.Conn
}) func(*testing.T) *nats.Conn {
	return func(t *testing.T) *nats.Conn {
		t.Helper()
		return s.Connect(t)
	}
}
