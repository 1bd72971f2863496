package ledger

import (
	"cmp"
	"errors"
	"strconv"

	"github.com/vidforge/vidforge/pkg/access"
)

var (
	// ErrForbidden is returned when the role of this program does not have what
	// a call needs. Nothing was asked of the server.
	ErrForbidden = errors.New("ledger: not for this role")
	// ErrNotReady is returned by Open to a worker while no gateway has made the
	// buckets.
	ErrNotReady = errors.New("ledger: not set up yet")
)

// Kinds of buckets.
const (
	kindRenders = "renders"
	kindIntents = "intents"
	kindWorks   = "works"
	kindAssets  = "assets"
	kindIdem    = "idem"
	kindSlots   = "slots"
	kindLeases  = "leases"
	kindSecrets = "secrets"
	kindUsage   = "usage"
)

// bucketAccess is what a role may do with a bucket.
type bucketAccess int

const (
	accessNone  bucketAccess = iota
	accessRead               // keys from the leader
	accessWrite              // also write keys
	accessOwn                // also make and change the bucket, and read all of it
)

// forWorker is what a worker may do with a kind of bucket, and below which keys
// it may write. Idempotency keys, slots, usage and secrets are not its business.
func forWorker(kind string) (a bucketAccess, below string) {
	switch kind {
	case kindRenders, kindWorks:
		return accessWrite, ">"
	case kindLeases:
		return accessWrite, workLease + ">"
	case kindIntents, kindAssets:
		return accessRead, ""
	default:
		return accessNone, ""
	}
}

func (c Config) bucketName(name string) string { return c.Prefix + "vidforge_" + name }
func (c Config) streamName(name string) string { return "KV_" + c.bucketName(name) }

// buckets are all of the ledger's, in the order in which they are made: the
// records of renders, which a worker waits for, come last.
func (c Config) buckets() []bucketConfig {
	all := make([]bucketConfig, 0, 9)
	add := func(kind, name string, change func(*bucketConfig)) {
		b := bucketConfig{kind: kind, name: c.bucketName(name), replicas: c.Replicas, timeout: c.Timeout, access: accessOwn, below: ">"}
		if c.Role == access.Worker {
			b.access, b.below = forWorker(kind)
		}
		if change != nil {
			change(&b)
		}
		all = append(all, b)
	}
	add(kindSecrets, kindSecrets, nil)
	add(kindAssets, kindAssets, nil)
	add(kindIdem, kindIdem, nil)
	add(kindSlots, kindSlots, nil)
	add(kindUsage, kindUsage, nil)
	add(kindLeases, kindLeases, func(b *bucketConfig) { b.maxAge = c.LeaseTTL })
	shards := cmp.Or(c.Shards, 1)
	for i := range shards {
		for _, kind := range []string{kindWorks, kindIntents, kindRenders} {
			add(kind, kind+"_"+strconv.Itoa(shards-1-i), func(b *bucketConfig) {
				b.maxAge, b.metadata = longest, map[string]string{shardsKey: strconv.Itoa(shards)}
			})
		}
	}
	return all
}

// Access is what a role needs of NATS for the ledger that cfg describes. Its
// Shards must be those of the farm.
func Access(cfg Config, role access.Role) access.NATS {
	cfg.Role = role
	var n access.NATS
	for _, b := range cfg.buckets() {
		stream, keys := "KV_"+b.name, "$KV."+b.name+"."
		api := func(call string) string { return access.DefaultAPI + "." + call + "." + stream }
		switch b.access {
		case accessNone:
			continue
		case accessOwn:
			n.Publish = append(n.Publish, keys+">", api("STREAM.CREATE"), api("STREAM.UPDATE"))
			// For scans and watches.
			n.Publish = append(n.Publish, api("CONSUMER.CREATE")+".>", api("CONSUMER.DELETE")+".*", api("CONSUMER.INFO")+".*")
			n.Pull = append(n.Pull, api("CONSUMER.MSG.NEXT")+".*")
		case accessWrite:
			n.Publish = append(n.Publish, keys+b.below)
		case accessRead:
		}
		n.Publish = append(n.Publish, api("STREAM.INFO"), api("STREAM.MSG.GET"))
	}
	return n.Add(access.NATS{Publish: n.Pull})
}
