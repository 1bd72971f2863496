// Package progresstest is the suite that a progress board must pass on every
// server that it is to run on.
package progresstest

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/vidforge/vidforge/pkg/faultproxy"
	"github.com/vidforge/vidforge/pkg/internal/hostile"
	"github.com/vidforge/vidforge/pkg/progress"
	"github.com/vidforge/vidforge/pkg/render"
)

// Run runs the suite. serve returns the URL of an empty server that nothing
// else uses.
func Run(t *testing.T, serve func(t *testing.T) string) {
	for name, f := range map[string]func(*testing.T, server){
		"Samples":        testSamples,
		"Generations":    testGenerations,
		"Workers":        testWorkers,
		"Allow":          testAllow,
		"AllowAtOnce":    testAllowAtOnce,
		"EverythingEnds": testEverythingEnds,
		"Prefix":         testPrefix,
		"Flushed":        testFlushed,
		"Hangs":          testHangs,
		"Down":           testDown,
		"ForeignValues":  testForeignValues,
		"MalformedIDs":   testMalformedIDs,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, server{serve(t)})
		})
	}
}

type server struct{ url string }

func (s server) client(t *testing.T) redis.UniversalClient {
	t.Helper()
	c, err := progress.Connect(s.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// open makes a board that waits long enough for a slow machine.
func (s server) open(t *testing.T, change ...func(*progress.Config)) *progress.Redis {
	t.Helper()
	c := progress.Config{Deadline: 10 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&c)
	}
	b, err := progress.Open(t.Context(), s.client(t), c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func work(task render.ID, generation uint32, stage render.Stage, index int) render.Work {
	return render.Work{Tenant: "tenant", Task: task, Generation: generation, Stage: stage, Index: index}
}

func report(t *testing.T, b progress.Board, samples ...render.Sample) {
	t.Helper()
	for _, s := range samples {
		if err := b.Report(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
}

func testSamples(t *testing.T, s server) {
	b := s.open(t)
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := render.NewID()
	if live, ok := b.Live(t.Context(), id); ok {
		t.Errorf("an unknown task has %+v", live)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	full := render.Sample{
		Work: work(id, 1, render.StageSegment, 2), Attempt: 3, Worker: "w-1",
		FramesDone: new(int64(0)), FramesTotal: new(int64(250)), FPS: new(59.94), Speed: new(2.5),
		LogTail: []string{"frame= 12", "\xff is no UTF-8"}, At: at,
	}
	unknown := render.Sample{Work: work(id, 1, render.StageAudio, 0), Attempt: 1, Worker: "w-2", At: at}
	earlier := full
	earlier.FramesDone, earlier.Attempt = new(int64(100)), 1
	report(t, b, earlier, full, unknown, render.Sample{Work: work(render.NewID(), 1, render.StageAudio, 0), At: at})
	live, ok := b.Live(t.Context(), id)
	full.LogTail[1] = "\ufffd is no UTF-8"
	if want := []render.Sample{unknown, full}; !ok || !reflect.DeepEqual(live.Samples, want) {
		t.Errorf("live %+v, not %+v", live.Samples, want)
	}
	if err := b.Report(t.Context(), render.Sample{Work: render.Work{Asset: render.NewAssetID(), Stage: render.StageProbe}, At: at}); err != nil {
		t.Errorf("report of a probe: %v", err)
	}
}

func testGenerations(t *testing.T, s server) {
	b := s.open(t)
	id := render.NewID()
	at := time.Unix(1, 0).UTC()
	newest := render.Sample{Work: work(id, 10, render.StageSegment, 1), At: at}
	report(t, b,
		render.Sample{Work: work(id, 9, render.StageSegment, 0), At: at},
		newest,
		render.Sample{Work: work(id, 9, render.StageSegment, 1), At: at}) // a worker that was not told yet
	live, ok := b.Live(t.Context(), id)
	if want := []render.Sample{newest}; !ok || !reflect.DeepEqual(live.Samples, want) {
		t.Errorf("live %+v, not %+v", live.Samples, want)
	}
}

func testWorkers(t *testing.T, s server) {
	b := s.open(t)
	if got, err := b.Workers(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("workers %+v, %v", got, err)
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	w1 := render.Worker{ID: "w-1", Version: "1.2.3", Classes: []render.Class{render.ClassCPU, render.ClassPreview}, Slots: 2, Busy: 1, Encoders: []string{"libx264"}, Started: now, Seen: now}
	w2 := render.Worker{ID: "w-2", Started: now, Seen: now}
	for _, w := range []render.Worker{w2, w1, {ID: "w-1", Started: now, Seen: now}, w1} {
		if err := b.Beat(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	got, err := b.Workers(t.Context())
	if want := []render.Worker{w1, w2}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("workers %+v, %v, not %+v", got, err, want)
	}
	if err := b.Beat(t.Context(), render.Worker{}); err == nil {
		t.Error("a worker without id was taken")
	}

	// A worker that no longer beats leaves the list, and comes back.
	short := s.open(t, func(c *progress.Config) { c.WorkerTTL = time.Millisecond })
	if err := short.Beat(t.Context(), w1); err != nil {
		t.Fatal(err)
	}
	for {
		got, err := b.Workers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if reflect.DeepEqual(got, []render.Worker{w2}) {
			break
		}
	}
	if err := b.Beat(t.Context(), w1); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Workers(t.Context()); err != nil || len(got) != 2 {
		t.Errorf("workers %+v, %v", got, err)
	}
}

func testAllow(t *testing.T, s server) {
	b := s.open(t)
	ctx := t.Context()
	const hour = 1.0 / 3600 // tokens a second
	for i := range 3 {
		if ok, wait := b.Allow(ctx, "t", "call", 1, hour, 3); !ok || wait != 0 {
			t.Errorf("call %d: %v, %s", i, ok, wait)
		}
	}
	for range 2 { // a refused call costs nothing
		if ok, wait := b.Allow(ctx, "t", "call", 1, hour, 3); ok || wait <= 59*time.Minute || wait > time.Hour {
			t.Errorf("one too many: %v, %s", ok, wait)
		}
	}
	if ok, wait := b.Allow(ctx, "t", "call", 2, hour, 3); ok || wait <= 119*time.Minute || wait > 2*time.Hour {
		t.Errorf("two too many: %v, %s", ok, wait)
	}
	for name, allow := range map[string]func() (bool, time.Duration){
		"other tenant":         func() (bool, time.Duration) { return b.Allow(ctx, "u", "call", 3, hour, 3) },
		"tenant with braces":   func() (bool, time.Duration) { return b.Allow(ctx, "}{*", "call", 3, hour, 3) },
		"other bucket":         func() (bool, time.Duration) { return b.Allow(ctx, "t", "poll", 3, hour, 3) },
		"more than the burst":  func() (bool, time.Duration) { return b.Allow(ctx, "t", "burst", 30, hour, 3) },
		"a raised burst":       func() (bool, time.Duration) { return b.Allow(ctx, "t", "call", 1, hour, 4) },
		"no limit":             func() (bool, time.Duration) { return b.Allow(ctx, "t", "call", 1, 0, 3) },
		"no burst":             func() (bool, time.Duration) { return b.Allow(ctx, "t", "call", 1, hour, 0) },
		"nothing":              func() (bool, time.Duration) { return b.Allow(ctx, "t", "call", 0, hour, 3) },
		"a very high rate":     func() (bool, time.Duration) { return b.Allow(ctx, "t", "fast", 1, 1e9, 1) },
		"a bucket that is set": func() (bool, time.Duration) { return b.Allow(ctx, "t", "fast", 1, 1e9, 1) },
	} {
		if ok, wait := allow(); !ok || wait != 0 {
			t.Errorf("%s: %v, %s", name, ok, wait)
		}
	}
	// The bucket fills again: 1000 a second, within milliseconds.
	if ok, _ := b.Allow(ctx, "t", "refill", 100, 1000, 100); !ok {
		t.Error("a full bucket refuses")
	}
	for n := 0; ; n++ {
		if ok, wait := b.Allow(ctx, "t", "refill", 50, 1000, 100); ok {
			break
		} else if wait > 50*time.Millisecond {
			t.Fatalf("try %d: wait %s", n, wait)
		}
	}
}

func testAllowAtOnce(t *testing.T, s server) {
	b := s.open(t)
	var allowed atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if ok, _ := b.Allow(t.Context(), "t", "call", 1, 1e-6, 10); ok {
				allowed.Add(1)
			}
		})
	}
	wg.Wait()
	if n := allowed.Load(); n != 10 {
		t.Errorf("%d of 10 tokens were given", n)
	}
}

// Nothing stays in Redis for ever.
func testEverythingEnds(t *testing.T, s server) {
	b := s.open(t)
	report(t, b, render.Sample{Work: work(render.NewID(), 1, render.StageAudio, 0), At: time.Now()})
	if err := b.Beat(t.Context(), render.Worker{ID: "w", Started: time.Now(), Seen: time.Now()}); err != nil {
		t.Fatal(err)
	}
	b.Allow(t.Context(), "t", "call", 1, 1, 1)
	c := s.client(t)
	keys, err := c.Keys(t.Context(), "*").Result()
	if err != nil || len(keys) != 4 {
		t.Fatalf("keys %q, %v", keys, err)
	}
	for _, k := range keys {
		if ttl, err := c.PTTL(t.Context(), k).Result(); err != nil || ttl <= 0 || ttl > time.Hour {
			t.Errorf("%s ends in %s, %v", k, ttl, err)
		}
	}
}

func testPrefix(t *testing.T, s server) {
	one, two := s.open(t, func(c *progress.Config) { c.Prefix = "one:" }), s.open(t, func(c *progress.Config) { c.Prefix = "two:" })
	id := render.NewID()
	report(t, one, render.Sample{Work: work(id, 1, render.StageAudio, 0), At: time.Now()})
	if err := one.Beat(t.Context(), render.Worker{ID: "w", Started: time.Now(), Seen: time.Now()}); err != nil {
		t.Fatal(err)
	}
	one.Allow(t.Context(), "t", "call", 1, 1e-6, 1)
	if _, ok := two.Live(t.Context(), id); ok {
		t.Error("samples of another prefix")
	}
	if got, err := two.Workers(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("workers of another prefix: %v, %v", got, err)
	}
	if ok, _ := two.Allow(t.Context(), "t", "call", 1, 1e-6, 1); !ok {
		t.Error("the bucket of another prefix")
	}
	keys, err := s.client(t).Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if !strings.HasPrefix(k, "one:") && !strings.HasPrefix(k, "two:") {
			t.Errorf("key %q", k)
		}
	}
}

// After everything is lost the next report is seen, and so is the next beat.
func testFlushed(t *testing.T, s server) {
	b, c := s.open(t), s.client(t)
	id := render.NewID()
	sample := render.Sample{Work: work(id, 1, render.StageAudio, 0), At: time.Now()}
	w := render.Worker{ID: "w", Started: time.Now(), Seen: time.Now()}
	for range 2 {
		report(t, b, sample)
		if err := b.Beat(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if ok, _ := b.Allow(t.Context(), "t", "call", 1, 1e-6, 1); !ok {
			t.Error("refused")
		}
		if _, ok := b.Live(t.Context(), id); !ok {
			t.Error("no samples")
		}
		if got, err := b.Workers(t.Context()); err != nil || len(got) != 1 {
			t.Errorf("workers %v, %v", got, err)
		}
		if err := c.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if err := c.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if _, ok := b.Live(t.Context(), id); ok {
			t.Error("samples after a flush")
		}
	}
}

// While Redis hangs the calls come back with nothing, soon without even asking
// it; when it is there again, so are the numbers.
func testHangs(t *testing.T, s server) {
	u, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := faultproxy.New(t, u.Host)
	proxy.SetFault(func(int) faultproxy.Fault { return faultproxy.Fault{Stall: true} })
	u.Host = proxy.Addr()
	cooldown := 200 * time.Millisecond
	b := server{u.String()}.open(t, func(c *progress.Config) {
		c.Deadline, c.Cooldown, c.Failures = 20*time.Millisecond, cooldown, 2
	})
	id := render.NewID()
	sample := render.Sample{Work: work(id, 1, render.StageAudio, 0), At: time.Now()}
	outage(t, b, sample)
	before := proxy.Accepted()
	if before == 0 {
		t.Fatal("nobody asked Redis")
	}
	for range 100 {
		outage(t, b, sample)
	}
	// A probe a cooldown may have gone through, and no more.
	if n := proxy.Accepted() - before; n > 50 {
		t.Errorf("%d connections while the breaker should be open", n)
	}

	proxy.SetFault(func(int) faultproxy.Fault { return faultproxy.Fault{} })
	recovered(t, b, sample)
}

func testDown(t *testing.T, _ server) {
	down := server{"redis://127.0.0.1:1"}.open(t)
	outage(t, down, render.Sample{Work: work(render.NewID(), 1, render.StageAudio, 0), At: time.Now()})
}

// outage makes every call of a board whose Redis is away.
func outage(t *testing.T, b *progress.Redis, sample render.Sample) {
	t.Helper()
	ctx := t.Context()
	if err := b.Report(ctx, sample); err == nil {
		t.Error("report succeeded")
	}
	if _, ok := b.Live(ctx, sample.Work.Task); ok {
		t.Error("live numbers")
	}
	if err := b.Beat(ctx, render.Worker{ID: "w"}); err == nil {
		t.Error("beat succeeded")
	}
	if _, err := b.Workers(ctx); err == nil {
		t.Error("workers were listed")
	}
	if ok, wait := b.Allow(ctx, "t", "call", 1, 1e-6, 1); !ok || wait != 0 {
		t.Error("a rate was limited")
	}
	if err := b.Ping(ctx); err == nil {
		t.Error("ping succeeded")
	}
}

// recovered waits for the numbers to be back.
func recovered(t *testing.T, b *progress.Redis, sample render.Sample) {
	t.Helper()
	for tick := time.Tick(10 * time.Millisecond); ; {
		select {
		case <-t.Context().Done():
			t.Fatal("no recovery")
		case <-tick:
		}
		if err := b.Report(context.WithoutCancel(t.Context()), sample); err != nil {
			continue
		}
		if _, ok := b.Live(t.Context(), sample.Work.Task); ok {
			return
		}
	}
}

// What another version left under our keys harms nothing.
func testForeignValues(t *testing.T, s server) {
	b, c := s.open(t), s.client(t)
	id := render.NewID()
	sample := render.Sample{Work: work(id, 1, render.StageAudio, 0), At: time.Now().UTC()}
	report(t, b, sample)
	if err := c.HSet(t.Context(), fmt.Sprintf("live:{%s}", id), "9/else/0", "\xff\xff").Err(); err != nil {
		t.Fatal(err)
	}
	if live, ok := b.Live(t.Context(), id); !ok || !reflect.DeepEqual(live.Samples, []render.Sample{sample}) {
		t.Errorf("live %+v", live)
	}
}

// testMalformedIDs: what is no id stores and tells nothing, while another
// tenant has something of everything.
func testMalformedIDs(t *testing.T, s server) {
	ctx := t.Context()
	b, client := s.open(t), s.client(t)
	task := render.NewID()
	report(t, b, render.Sample{Work: work(task, 1, render.StageSegment, 0)})
	ok(t, b.Beat(ctx, render.Worker{ID: "w"}))
	b.Allow(ctx, "tenant", "call", 1, 1, 10)
	keys := func() []string {
		all, err := client.Keys(ctx, "*").Result()
		ok(t, err)
		slices.Sort(all)
		return all
	}
	before := keys()
	var tried []string
	for _, id := range hostile.Strings(string(task)) {
		calls := map[string]func() bool{ // whether it did something
			"Report task": func() bool {
				return b.Report(ctx, render.Sample{Work: work(render.ID(id), 1, render.StageSegment, 0)}) == nil
			},
			"Report asset": func() bool {
				return b.Report(ctx, render.Sample{Work: render.Work{Tenant: "tenant", Asset: render.AssetID(id), Stage: render.StageProbe}}) == nil
			},
			"Report stage": func() bool { return b.Report(ctx, render.Sample{Work: work(task, 1, render.Stage(id), 0)}) == nil },
			"Live":         func() bool { _, known := b.Live(ctx, render.ID(id)); return known },
			"Beat":         func() bool { return b.Beat(ctx, render.Worker{ID: id + " {x}*"}) == nil },
			"Allow":        func() bool { allowed, _ := b.Allow(ctx, "tenant", id+"*", 1, 1, 10); return allowed },
		}
		for name, call := range calls {
			if call() {
				t.Errorf("%s took %.60q", name, id)
			}
		}
		tried = slices.Collect(maps.Keys(calls))
	}
	hostile.Complete[progress.Board](t, tried, "Workers", "Ping")
	if after := keys(); !slices.Equal(before, after) {
		t.Errorf("keys %q, before %q", after, before)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
