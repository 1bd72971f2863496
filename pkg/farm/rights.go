package farm

import (
	"github.com/vidforge/vidforge/pkg/access"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/ledger"
)

// NATSRights are what a role needs of NATS in the farm of that prefix and
// number of shards (0 for 1).
func NATSRights(prefix string, shards int, role access.Role) access.NATS {
	return ledger.Access(ledger.Config{Prefix: prefix, Shards: shards}, role).
		Add(jobs.Access(jobs.Config{Prefix: prefix}, role))
}
