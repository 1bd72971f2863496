package farm

import (
	"cmp"
	"fmt"
	"time"
)

// Tuning are the sizes and times that all programs of a farm share. Zero means
// the default; where the stores are there already, zero shards and replicas
// mean those that they have.
type Tuning struct {
	// Shards is the number of buckets that records are spread over: 1 to 64.
	// It cannot change once the stores are there. Defaults to 1; 8 suits a
	// cluster.
	Shards int
	// Replicas of everything in NATS: 1, 3 or 5. Defaults to 1.
	Replicas int
	// MaxWorkers is the largest number of works of one class that run at once.
	// Defaults to 4096.
	MaxWorkers int
	// AckWait is how long a message may go without a sign of life before it is
	// given to another worker. Defaults to 20 s.
	AckWait time.Duration
	// LeaseTime is how long the right to do a work lives without renewal, in
	// whole seconds. Defaults to 20 s.
	LeaseTime time.Duration
	// BeatEvery is how often a claim gives its sign of life. Defaults to a
	// third of the shorter of AckWait and LeaseTime, at most 6 s.
	BeatEvery time.Duration
	// ReconcileEvery is the mean time between two looks at what is not
	// finished. Defaults to 15 s.
	ReconcileEvery time.Duration
}

const (
	defaultAckWait   = 20 * time.Second
	defaultLeaseTime = 20 * time.Second
	defaultBeat      = 6 * time.Second
	// beatsInTime is after how many beats that failed a claim gives itself up:
	// so many must fit into a lease.
	beatsInTime = 3
)

// Validate names the first setting that cannot be.
func (t Tuning) Validate() error {
	shortest := min(cmp.Or(t.AckWait, defaultAckWait), cmp.Or(t.LeaseTime, defaultLeaseTime))
	switch {
	case t.Shards < 0 || t.Shards > 64:
		return fmt.Errorf("shards: %d, must be 1 to 64", t.Shards)
	case t.Replicas < 0 || t.Replicas > 5 || t.Replicas == 2 || t.Replicas == 4:
		return fmt.Errorf("replicas: %d, must be 1, 3 or 5", t.Replicas)
	case t.MaxWorkers < 0:
		return fmt.Errorf("max workers: %d, must be at least 1", t.MaxWorkers)
	case shortest < time.Second:
		return fmt.Errorf("ack wait and lease time: %s, must be at least 1s", shortest)
	case t.BeatEvery < 0 || t.BeatEvery*beatsInTime > shortest:
		return fmt.Errorf("beat every: %s, must be at most a third of ack wait and lease time (%s)", t.BeatEvery, shortest)
	case t.ReconcileEvery < 0:
		return fmt.Errorf("reconcile every: %s, must be positive", t.ReconcileEvery)
	}
	return nil
}

// beat is BeatEvery or its default.
func (t Tuning) beat() time.Duration {
	shortest := min(cmp.Or(t.AckWait, defaultAckWait), cmp.Or(t.LeaseTime, defaultLeaseTime))
	return cmp.Or(t.BeatEvery, min(defaultBeat, shortest/beatsInTime))
}

// apply fills the settings of the stores that o leaves open.
func (t Tuning) apply(o *DialOptions) {
	o.Ledger.Shards = cmp.Or(o.Ledger.Shards, t.Shards)
	o.Ledger.Replicas = cmp.Or(o.Ledger.Replicas, t.Replicas)
	o.Ledger.LeaseTTL = cmp.Or(o.Ledger.LeaseTTL, t.LeaseTime)
	o.Jobs.Replicas = cmp.Or(o.Jobs.Replicas, t.Replicas)
	o.Jobs.AckWait = cmp.Or(o.Jobs.AckWait, t.AckWait)
	o.Jobs.MaxWorkers = cmp.Or(o.Jobs.MaxWorkers, t.MaxWorkers)
}
