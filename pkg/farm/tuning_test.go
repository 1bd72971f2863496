package farm

import (
	"testing"
	"time"
)

func TestTuning(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tuning Tuning
		beat   time.Duration // 0: refused
	}{
		"defaults":                   {Tuning{}, 6 * time.Second},
		"a short lease":              {Tuning{LeaseTime: 3 * time.Second}, time.Second},
		"a short wait":               {Tuning{AckWait: 6 * time.Second}, 2 * time.Second},
		"a beat of its own":          {Tuning{BeatEvery: 2 * time.Second}, 2 * time.Second},
		"a beat too rare":            {Tuning{BeatEvery: 7 * time.Second}, 0},
		"a beat too rare for leases": {Tuning{BeatEvery: 6 * time.Second, LeaseTime: 15 * time.Second}, 0},
		"two replicas":               {Tuning{Replicas: 2}, 0},
		"too many shards":            {Tuning{Shards: 65}, 0},
		"a lease of no time":         {Tuning{LeaseTime: time.Millisecond}, 0},
		"a cluster":                  {Tuning{Replicas: 3, Shards: 8}, 6 * time.Second},
	} {
		err := c.tuning.Validate()
		if (err == nil) != (c.beat > 0) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && c.tuning.beat() != c.beat {
			t.Errorf("%s: beat every %s, want %s", name, c.tuning.beat(), c.beat)
		}
	}
}
