// Package access says what each kind of program may do in a farm's servers. The
// packages that own the names (ledger, jobs, progress, blob) say what they need
// for a role; this package only has the words for it, and what the servers'
// own configuration makes of them.
package access

import "slices"

// Role is a kind of program.
type Role string

// Roles.
const (
	// Gateway accepts what clients say, decides, and makes streams and buckets.
	Gateway Role = "gateway"
	// Worker runs ffmpeg on files of strangers: it is the one that may be taken
	// over. It reads sources, writes results, and moves renders from stage to
	// stage.
	Worker Role = "worker"
)

// Roles lists every role.
func Roles() []Role { return []Role{Gateway, Worker} }

// NATS is what a role needs of NATS.
type NATS struct {
	// Publish are the subjects that it sends to, API requests among them.
	Publish []string
	// Pull are those of Publish that are answered with more than one message.
	Pull []string
	// Subscribe are the subjects that it listens to, beside its inbox.
	Subscribe []string
}

// Add joins what two packages need.
func (n NATS) Add(o NATS) NATS {
	return NATS{
		Publish:   sorted(n.Publish, o.Publish),
		Pull:      sorted(n.Pull, o.Pull),
		Subscribe: sorted(n.Subscribe, o.Subscribe),
	}
}

func sorted(lists ...[]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return slices.Compact(all)
}

// DefaultAPI is the prefix of JetStream's own subjects.
const DefaultAPI = "$JS.API"
