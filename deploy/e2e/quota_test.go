package e2e

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

// film is the stand-in of every stage whose video has the length of its plan.
func film(c *farm.Claim) (*render.StageResult, error) {
	res, err := standIn(c)
	if err == nil && res.Output != nil {
		res.Output.Duration = 10 * time.Second
	}
	return res, err
}

// time10 is what the source of these tests takes of a quota.
const time10 = int64(10_000)

// used reads what the tenant has used and holds of this month's time.
func (b *bundle) used() render.Usage {
	b.t.Helper()
	u, err := b.stores.Ledger.Usage(context.Background(), b.tenant, "time-"+render.WindowMonth.Name(b.clock.now()))
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		b.t.Fatal(err)
	}
	return u
}

// wantQuota checks a refusal and returns when to come again.
func wantQuota(t *testing.T, err error, limit string) time.Duration {
	t.Helper()
	var e *render.Error
	if !errors.As(err, &e) || e.Code != render.CodeRenderQuotaExceeded || !e.Temporary || e.Details.Extra["limit"] != limit || e.RetryAfter <= 0 {
		t.Fatalf("error %v (%+v), want the quota %s", err, e, limit)
	}
	return e.RetryAfter
}

func TestRenderMinutes(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{RenderTime: 25 * time.Second})
	ctx := context.Background()
	a, another := b.upload(b.tenant), b.upload("another")
	one, two := b.submit(request(a, "", "")), b.submit(request(a, "", ""))
	if u := b.used(); u.Used != 0 || u.Total() != 2*time10 {
		t.Fatalf("two renders hold %+v", u)
	}
	_, _, err := b.Submit(ctx, b.tenant, request(a, "", "key"))
	if wait := wantQuota(t, err, "render_minutes"); wait > time.Minute {
		t.Errorf("what is only held may come back sooner than in %s", wait)
	}
	if _, _, err := b.Submit(ctx, "another", request(another, "", "")); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	if n := slotsOf(t, b); n != 2 {
		t.Errorf("%d slots are taken after a refusal, want 2", n)
	}
	// One that is cancelled gives back what it held.
	if _, err := b.Cancel(ctx, b.tenant, one.Record.ID, "me"); err != nil {
		t.Fatal(err)
	}
	if u := b.used(); u.Used != 0 || u.Total() != time10 {
		t.Errorf("after a cancel: %+v", u)
	}
	three := b.submit(request(a, "", "key"))
	if v := b.submit(request(a, "", "key")); v.Record.ID != three.Record.ID {
		t.Errorf("the same key made %s and %s", three.Record.ID, v.Record.ID)
	}
	// One that fails does as well.
	b.finishes(func(c *farm.Claim) (*render.StageResult, error) {
		if c.Work.Task == three.Record.ID {
			return nil, render.Errorf(render.CodeRenderFailed, render.BlameSource, "no film")
		}
		return film(c)
	}, two.Record.ID, three.Record.ID)
	if u := b.used(); u.Used != time10 || u.Total() != time10 {
		t.Errorf("after a video and a failure: %+v", u)
	}
	// Whatever is done again is counted once.
	for range 2 {
		if err := b.Reconcile(ctx); err != nil {
			t.Fatal(err)
		}
	}
	four := b.submit(request(a, "", ""))
	b.finishes(film, four.Record.ID)
	if u := b.used(); u.Used != 2*time10 || len(u.Holds) > 0 {
		t.Errorf("after two videos: %+v", u)
	}
	_, _, err = b.Submit(ctx, b.tenant, request(a, "", ""))
	wait := wantQuota(t, err, "render_minutes")
	end := render.WindowMonth.End(b.clock.now())
	if until := b.clock.now().Add(wait); until.After(end.Add(time.Second)) || until.Before(end.Add(-time.Minute)) {
		t.Errorf("come again at %s, the window ends at %s", until, end)
	}
	if _, err := b.Validate(ctx, b.tenant, request(a, "", "").Request); err != nil {
		t.Errorf("validate: %v", err)
	}
	// With the next window everything is there again.
	b.clock.advance(wait)
	b.submit(request(b.upload(b.tenant), "", ""))
}

func TestATenantsOwnQuota(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{RenderTime: time.Hour, LimitsOf: func(tenant render.Tenant, l farm.Limits) farm.Limits {
		if own, ok := map[render.Tenant]func(){
			"acme":  func() { l.MaxConcurrent = 1 },
			"small": func() { l.RenderTime = 5 * time.Second },
			"free":  func() { l.RenderTime = 0 },
		}[tenant]; ok {
			own()
		}
		return l
	}})
	ctx := context.Background()
	a, small, free := b.upload(b.tenant), b.upload("small"), b.upload("free")
	b.submit(request(a, "", ""))
	_, _, err := b.Submit(ctx, b.tenant, request(a, "", ""))
	wantQuota(t, err, "concurrent_renders")
	_, _, err = b.Submit(ctx, "small", request(small, "", ""))
	if e := (*render.Error)(nil); !errors.As(err, &e) || e.Code != render.CodeSourceTooLarge || e.Temporary || e.Details.Field != "source_asset_uri" {
		t.Errorf("longer than the whole quota: %v", err)
	}
	if _, _, err := b.Submit(ctx, "free", request(free, "", "")); err != nil {
		t.Errorf("no limit: %v", err)
	}
	if _, err := b.stores.Ledger.Usage(ctx, "free", "time-"+render.WindowMonth.Name(b.clock.now())); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("what has no limit is counted: %v", err)
	}
}

// TestTwoGatewaysShareAQuota: whatever two gateways accept at once is within the
// quota, and all that is in it can be used.
func TestTwoGatewaysShareAQuota(t *testing.T) {
	t.Parallel()
	cfg := farm.Config{RenderTime: 50 * time.Second, MaxConcurrent: 32}
	b := setup(t, cfg)
	cfg.Now = b.clock.now
	both := []*farm.Farm{b.Farm, farm.New(b.stores, cfg)}
	a := b.upload(b.tenant)
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		ids []render.ID
	)
	for i := range 24 {
		wg.Go(func() {
			v, _, err := both[i%2].Submit(context.Background(), b.tenant, request(a, "", ""))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				ids = append(ids, v.Record.ID)
			case render.CodeOf(err) != render.CodeRenderQuotaExceeded:
				t.Errorf("submit: %v", err)
			}
		})
	}
	wg.Wait()
	if len(ids) != 5 {
		t.Fatalf("%d renders of 10 s in a quota of 50 s", len(ids))
	}
	if u := b.used(); u.Total() != 5*time10 {
		t.Errorf("held: %+v", u)
	}
	// The end of each, heard of by both, gives its time back once.
	for _, id := range ids {
		for _, f := range both {
			wg.Go(func() {
				if _, err := f.Cancel(context.Background(), b.tenant, id, "me"); err != nil {
					t.Errorf("cancel: %v", err)
				}
			})
		}
	}
	wg.Wait()
	if err := errors.Join(both[0].Reconcile(context.Background()), both[1].Reconcile(context.Background())); err != nil {
		t.Fatal(err)
	}
	if u := b.used(); u.Total() != 0 || len(u.Holds) > 0 {
		t.Errorf("after all were cancelled: %+v", u)
	}
}

// TestTheSameKeyHoldsOnce: fifty submits of one key, at two gateways, hold the
// time of one render.
func TestTheSameKeyHoldsOnce(t *testing.T) {
	t.Parallel()
	cfg := farm.Config{RenderTime: 10 * time.Second}
	b := setup(t, cfg)
	cfg.Now = b.clock.now
	both := []*farm.Farm{b.Farm, farm.New(b.stores, cfg)}
	a := b.upload(b.tenant)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if _, _, err := both[i%2].Submit(context.Background(), b.tenant, request(a, "", "the key")); err != nil {
				t.Errorf("submit: %v", err)
			}
		})
	}
	wg.Wait()
	if u := b.used(); u.Total() != time10 {
		t.Errorf("held: %+v", u)
	}
	v := b.submit(request(a, "", "the key"))
	b.finishes(film, v.Record.ID)
	if u := b.used(); u.Used != time10 || len(u.Holds) > 0 {
		t.Errorf("counted: %+v", u)
	}
}

// TestTimeOfNobodyIsGivenBack: a submit that died between its hold and its
// record, and a render whose end nobody settled.
func TestTimeOfNobodyIsGivenBack(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{RenderTime: time.Minute})
	ctx := context.Background()
	account := "time-" + render.WindowMonth.Name(b.clock.now())
	if _, err := b.stores.Ledger.ChangeUsage(ctx, b.tenant, account, time.Hour, func(u *render.Usage) (bool, error) {
		return true, u.Hold(render.Hold{ID: string(render.NewID()), Amount: 60_000, At: b.clock.now()}, 60_000)
	}); err != nil {
		t.Fatal(err)
	}
	a := b.upload(b.tenant)
	if err := b.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	_, _, err := b.Submit(ctx, b.tenant, request(a, "", ""))
	wantQuota(t, err, "render_minutes")
	b.clock.advance(3 * time.Minute)
	if err := b.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	v := b.submit(request(a, "", ""))
	b.finishes(film, v.Record.ID)
	// A second submit of its key came late and died with its hold.
	if _, err := b.stores.Ledger.ChangeUsage(ctx, b.tenant, account, time.Hour, func(u *render.Usage) (bool, error) {
		return true, u.Hold(render.Hold{ID: string(v.Record.ID), Amount: time10, At: b.clock.now()}, 60_000)
	}); err != nil {
		t.Fatal(err)
	}
	if err := b.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	if u := b.used(); u.Used != time10 || len(u.Holds) > 0 {
		t.Errorf("after reconciliation: %+v", u)
	}
}

// finishes does the work of these renders until all have ended and are settled.
func (b *bundle) finishes(fn func(*farm.Claim) (*render.StageResult, error), ids ...render.ID) {
	b.t.Helper()
	classes := []render.Class{render.ClassPreview, render.ClassCPU}
	for n := 0; ; n++ {
		left := 0
		for _, id := range ids {
			if !b.state(id).Terminal() {
				left++
			}
		}
		if left == 0 {
			break
		}
		c, err := b.Claim(context.Background(), classes[n%2], "w1", 200*time.Millisecond)
		if err != nil {
			continue
		}
		res, err := fn(c)
		if err == nil {
			_, err = c.Complete(res)
		} else {
			err = c.Fail(err)
		}
		if err != nil {
			b.t.Fatalf("end %s: %v", c.Work.Stage, err)
		}
	}
	if err := b.Reconcile(context.Background()); err != nil {
		b.t.Fatal(err)
	}
}

func slotsOf(t *testing.T, b *bundle) int {
	t.Helper()
	holders, err := b.stores.Ledger.SlotsOf(context.Background(), b.tenant.Key())
	if err != nil {
		t.Fatal(err)
	}
	return len(holders)
}
