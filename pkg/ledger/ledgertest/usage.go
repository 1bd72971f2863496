package ledgertest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

var errNo = errors.New("no")

func testUsage(t *testing.T, b *bench) {
	ctx := t.Context()
	_, err := b.Usage(ctx, alice, "time-2026-12")
	wantErr(t, err, ledger.ErrNotFound)
	now := time.Now().UTC().Truncate(time.Millisecond)
	hold := func(id string, amount int64) func(*render.Usage) (bool, error) {
		return func(u *render.Usage) (bool, error) {
			return true, u.Hold(render.Hold{ID: id, Amount: amount, At: now}, 100)
		}
	}
	u, err := b.ChangeUsage(ctx, alice, "time-2026-12", time.Hour, hold("a", 70))
	ok(t, err)
	if u.Tenant != alice || u.Total() != 70 {
		t.Errorf("the first hold: %+v", u)
	}
	b.wantTTL(t, ".time-2026-12", time.Hour)
	// Refused and unchanged ones write nothing, and say what is there.
	before := b.messages(t)
	u, err = b.ChangeUsage(ctx, alice, "time-2026-12", time.Hour, hold("b", 31))
	wantErr(t, err, render.ErrOverQuota)
	if u.Total() != 70 {
		t.Errorf("refused: %+v", u)
	}
	_, err = b.ChangeUsage(ctx, alice, "time-2026-12", time.Hour, func(u *render.Usage) (bool, error) { u.Used = 9; return false, nil })
	ok(t, err)
	_, err = b.ChangeUsage(ctx, bob, "time-2026-12", time.Hour, func(*render.Usage) (bool, error) { return true, errNo })
	wantErr(t, err, errNo)
	if after := b.messages(t); after != before {
		t.Errorf("%d messages were written for nothing", after-before)
	}
	// Others' accounts, and other accounts, are their own.
	_, err = b.ChangeUsage(ctx, bob, "time-2026-12", time.Hour, hold("a", 100))
	ok(t, err)
	_, err = b.ChangeUsage(ctx, alice, "time-2027-01", time.Hour, hold("a", 100))
	ok(t, err)
	got := map[string]int64{}
	for a, err := range b.Accounts(ctx) {
		ok(t, err)
		got[string(a.Usage.Tenant)+" "+a.Name] = a.Usage.Total()
	}
	if len(got) != 3 || got[string(alice)+" time-2026-12"] != 70 || got[string(bob)+" time-2026-12"] != 100 || got[string(alice)+" time-2027-01"] != 100 {
		t.Errorf("accounts: %v", got)
	}
	u, err = b.Usage(ctx, alice, "time-2026-12")
	ok(t, err)
	if len(u.Holds) != 1 || u.Holds[0].ID != "a" || !u.Holds[0].At.Equal(now) || u.Used != 0 {
		t.Errorf("read: %+v", u)
	}
}

// testUsageAtOnce: two processes that hold and settle at once neither give more
// than there is nor lose any.
func testUsageAtOnce(t *testing.T, b *bench) {
	second := b.open(t, b.nc)
	const limit, tasks = 5, 40
	now := time.Now().UTC()
	var mu sync.Mutex
	var held []string
	var wg sync.WaitGroup
	for i := range tasks {
		l := []ledger.Ledger{b.Ledger, second}[i%2]
		wg.Go(func() {
			id := string(render.NewID())
			_, err := l.ChangeUsage(t.Context(), alice, "time", time.Hour, func(u *render.Usage) (bool, error) {
				return true, u.Hold(render.Hold{ID: id, Amount: 1, At: now}, limit)
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				held = append(held, id)
			case !errors.Is(err, render.ErrOverQuota):
				t.Errorf("hold: %v", err)
			}
		})
	}
	wg.Wait()
	if len(held) != limit {
		t.Fatalf("%d holds, want %d", len(held), limit)
	}
	for _, id := range held {
		for _, l := range []ledger.Ledger{b.Ledger, second} {
			wg.Go(func() {
				_, err := l.ChangeUsage(t.Context(), alice, "time", time.Hour, func(u *render.Usage) (bool, error) { return u.Settle(id, now, 3), nil })
				if err != nil {
					t.Errorf("settle: %v", err)
				}
			})
		}
	}
	wg.Wait()
	u, err := b.Usage(t.Context(), alice, "time")
	ok(t, err)
	if u.Used != 3*limit || len(u.Holds) > 0 {
		t.Errorf("settled: %+v", u)
	}
}
