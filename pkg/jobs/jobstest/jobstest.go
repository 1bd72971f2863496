// Package jobstest is the suite that a queue's JetStream must pass, embedded or
// real. It takes a connection, so that the module of the contract does not
// depend on a server.
package jobstest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/vidforge/vidforge/pkg/internal/hostile"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/render"
)

const (
	alice render.Tenant = "alice@example.com"
	bob   render.Tenant = "bob > * . tenant"

	// soon is how long a wait may last that is expected to end by itself,
	// moment how long one that is expected to end empty.
	soon   = 3 * time.Minute
	moment = 300 * time.Millisecond
)

// bench is a queue of its own on a shared server.
type bench struct {
	jobs.Queue
	nc      *nats.Conn
	js      jetstream.JetStream
	cfg     jobs.Config
	connect func(*testing.T) *nats.Conn
}

func setup(t *testing.T, connect func(*testing.T) *nats.Conn, cfg jobs.Config) *bench {
	t.Helper()
	cfg.Prefix = rand.Text()
	b := &bench{nc: connect(t), cfg: cfg, connect: connect}
	var err error
	if b.js, err = jetstream.New(b.nc); err != nil {
		t.Fatal(err)
	}
	b.Queue = b.open(t, b.nc)
	return b
}

// open opens the same queue again, as another process would.
func (b *bench) open(t *testing.T, nc *nats.Conn) jobs.Queue {
	t.Helper()
	q, err := jobs.Open(t.Context(), nc, b.cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return q
}

// dispatch runs a dispatcher until the test ends or stop is called.
func (b *bench) dispatch(t *testing.T, q jobs.Queue, class render.Class) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- q.Dispatch(ctx, class) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the dispatcher ended with %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// fetch waits for a message that must come.
func (b *bench) fetch(t *testing.T, class render.Class) jobs.Delivery {
	t.Helper()
	d, err := b.Fetch(t.Context(), class, soon)
	if err != nil {
		t.Fatalf("fetch: %v", err)
	}
	return d
}

// wantNone checks that nothing comes.
func (b *bench) wantNone(t *testing.T, class render.Class) {
	t.Helper()
	d, err := b.Fetch(t.Context(), class, moment)
	if !errors.Is(err, jobs.ErrNone) {
		t.Fatalf("fetch: %v %v, want ErrNone", d, err)
	}
}

// wantDepth waits for a depth, which follows a while after its cause.
func (b *bench) wantDepth(t *testing.T, class render.Class, want jobs.Depth) {
	t.Helper()
	var got jobs.Depth
	defer func() {
		if got != want {
			t.Logf("the depth was %+v at last", got)
		}
	}()
	eventually(t, fmt.Sprintf("the depth is %+v", want), func() bool {
		var err error
		got, err = b.Depth(t.Context(), class)
		ok(t, err)
		return got == want
	})
}

// eventually polls for what the server or a dispatcher does by itself.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("still waiting until %s", what)
		}
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func segment(tenant render.Tenant, task render.ID, index int) jobs.Message {
	return jobs.Message{Work: render.Work{Tenant: tenant, Task: task, Generation: 1, Stage: render.StageSegment, Index: index}}
}

func segments(tenant render.Tenant, n int) []jobs.Message {
	task := render.NewID()
	msgs := make([]jobs.Message, n)
	for i := range msgs {
		msgs[i] = segment(tenant, task, i)
	}
	return msgs
}

// Run runs the suite. connect returns a connection that lives as long as its
// test; the server may be shared.
func Run(t *testing.T, connect func(*testing.T) *nats.Conn) {
	RunReplicated(t, connect, 1)
}

// RunReplicated runs the suite with so many replicas of everything, which needs
// a cluster of as many servers.
func RunReplicated(t *testing.T, connect func(*testing.T) *nats.Conn, replicas int) {
	for name, test := range map[string]struct {
		run func(*testing.T, *bench)
		cfg jobs.Config
	}{
		"OneMessagePerWork":    {run: testOneMessagePerWork},
		"Messages":             {run: testMessages},
		"Classes":              {run: testClasses},
		"Redelivery":           {run: testRedelivery, cfg: jobs.Config{AckWait: time.Second}},
		"Handback":             {run: testHandback},
		"Undecodable":          {run: testUndecodable},
		"MalformedIDs":         {run: testMalformedIDs},
		"Window":               {run: testWindow, cfg: jobs.Config{Window: 3}},
		"Fairness":             {run: testFairness},
		"TwoDispatchers":       {run: testTwoDispatchers},
		"DispatcherInterrupts": {run: testDispatcherInterrupts},
		"LostHint":             {run: testLostHint, cfg: jobs.Config{Poll: 200 * time.Millisecond}},
		"Recount":              {run: testRecount, cfg: jobs.Config{Poll: 200 * time.Millisecond}},
		"ManyPullers":          {run: testManyPullers},
		"Timers":               {run: testTimers},
		"TimerReplaced":        {run: testTimerReplaced},
		"Cancel":               {run: testCancel},
		"DeadLetters":          {run: testDeadLetters},
		"Open":                 {run: testOpen},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.cfg.Replicas = replicas
			test.run(t, setup(t, connect, test.cfg))
		})
	}
}

func testOneMessagePerWork(t *testing.T, b *bench) {
	ctx := t.Context()
	m := segment(alice, render.NewID(), 0)
	for range 3 { // while it waits in the backlog
		ok(t, b.Enqueue(ctx, m))
	}
	b.wantDepth(t, render.ClassCPU, jobs.Depth{Backlog: 1})
	b.dispatch(t, b, render.ClassCPU)
	b.wantDepth(t, render.ClassCPU, jobs.Depth{Ready: 1})
	ok(t, b.Enqueue(ctx, m)) // while it is ready
	d := b.fetch(t, render.ClassCPU)
	b.wantDepth(t, render.ClassCPU, jobs.Depth{Running: 1})
	ok(t, b.Enqueue(ctx, m, m)) // while it runs
	b.wantDepth(t, render.ClassCPU, jobs.Depth{Running: 1})
	ok(t, d.Ack(ctx))
	b.wantNone(t, render.ClassCPU)
	ok(t, d.Ack(ctx)) // a second time does no harm

	ok(t, b.Enqueue(ctx, m)) // after the acknowledgement it is accepted
	d = b.fetch(t, render.ClassCPU)
	if d.Message().Work != m.Work {
		t.Errorf("got %+v, want %+v", d.Message().Work, m.Work)
	}
	ok(t, d.Ack(ctx))
	b.wantDepth(t, render.ClassCPU, jobs.Depth{})
}

func testMessages(t *testing.T, b *bench) {
	ctx := t.Context()
	b.dispatch(t, b, render.ClassCPU)
	for name, trace := range map[string]render.TraceContext{
		"none":    {},
		"full":    {Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Tracestate: "a=1,b=2", Baggage: "k=v;p=1,x=%20y"},
		"hostile": {Traceparent: "00-x", Baggage: "k=v\r\nNats-Msg-Id: 1"},
	} {
		m := segment(bob, render.NewID(), 7)
		m.Trace = trace
		ok(t, b.Enqueue(ctx, m))
		d := b.fetch(t, render.ClassCPU)
		got := d.Message()
		if got.Work != m.Work {
			t.Errorf("%s: got %+v, want %+v", name, got.Work, m.Work)
		}
		if got.Enqueued.IsZero() || got.Enqueued.After(time.Now().Add(time.Minute)) {
			t.Errorf("%s: enqueued at %v", name, got.Enqueued)
		}
		if strings.ContainsAny(got.Trace.Baggage, "\r\n") || got.Trace.Traceparent != trace.Traceparent || (name == "full" && got.Trace != trace) {
			t.Errorf("%s: trace %+v, want %+v", name, got.Trace, trace)
		}
		ok(t, d.Ack(ctx))
	}

	// Header names in another case, as a proxy may write them.
	m := segment(bob, render.NewID(), 0)
	ok(t, b.Enqueue(ctx, m))
	d := b.fetch(t, render.ClassCPU)
	msg := b.raw(t, "work", m.Work)
	ok(t, d.Ack(ctx))
	again := &nats.Msg{Subject: msg.Subject, Data: msg.Data, Header: nats.Header{"TraceParent": {"00-y"}, "BAGGAGE": {"k=v"}}}
	// A replicated stream lets go of an acknowledged message a little later.
	_, err := b.js.PublishMsg(ctx, again)
	for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); {
		_, err = b.js.PublishMsg(ctx, again)
	}
	ok(t, err)
	if got := b.fetch(t, render.ClassCPU).Message().Trace; got.Traceparent != "00-y" || got.Baggage != "k=v" {
		t.Errorf("trace %+v", got)
	}
}

// raw reads the stored message of a work.
func (b *bench) raw(t *testing.T, stream string, w render.Work) *jetstream.RawStreamMsg {
	t.Helper()
	s, err := b.js.Stream(t.Context(), b.cfg.Prefix+"vidforge_"+stream)
	ok(t, err)
	key, valid := w.Key()
	if !valid {
		t.Fatalf("no key for %+v", w)
	}
	msg, err := s.GetLastMsgForSubject(t.Context(), b.cfg.Prefix+"vidforge."+stream+"."+string(w.Stage.Class())+"."+key)
	ok(t, err)
	return msg
}

func testClasses(t *testing.T, b *bench) {
	ctx := t.Context()
	for _, class := range render.Classes() {
		b.dispatch(t, b, class)
	}
	task := render.NewID()
	ok(t, b.Enqueue(ctx,
		jobs.Message{Work: render.Work{Tenant: alice, Asset: render.NewAssetID(), Generation: 1, Stage: render.StageProbe}},
		jobs.Message{Work: render.Work{Tenant: alice, Task: task, Generation: 1, Stage: render.StagePlan}},
		jobs.Message{Work: render.Work{Tenant: alice, Task: task, Generation: 1, Stage: render.StageAudio}},
		segment(alice, task, 0),
	))
	onDevice := segment(alice, task, 1)
	onDevice.Class = render.ClassGPU
	ok(t, b.Enqueue(ctx, onDevice))
	for class, n := range map[render.Class]int{render.ClassPreview: 2, render.ClassCPU: 2, render.ClassGPU: 1} {
		for i := range n {
			d := b.fetch(t, class)
			if got := d.Message().InClass(); got != class {
				t.Errorf("%s came from class %s", got, class)
			}
			// One that was just moved may count twice for a moment.
			eventually(t, fmt.Sprintf("%d are unfinished in class %s", n-i, class), func() bool {
				got, err := b.Unfinished(ctx, class)
				ok(t, err)
				return got == n-i
			})
			ok(t, d.Ack(ctx))
		}
		b.wantNone(t, class)
	}
	ok(t, b.Enqueue(ctx)) // nothing
	for _, class := range []render.Class{"", "*", "cpu.>", "none"} {
		if _, err := b.Fetch(ctx, class, moment); err == nil || errors.Is(err, jobs.ErrNone) {
			t.Errorf("fetch of class %q: %v", class, err)
		}
		if _, err := b.Depth(ctx, class); err == nil {
			t.Errorf("depth of class %q", class)
		}
		if err := b.Dispatch(ctx, class); err == nil {
			t.Errorf("dispatch of class %q", class)
		}
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := b.Fetch(cancelled, render.ClassCPU, soon); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled fetch: %v", err)
	}
}

func testRedelivery(t *testing.T, b *bench) {
	ctx := t.Context()
	b.dispatch(t, b, render.ClassCPU)
	m := segment(alice, render.NewID(), 0)
	ok(t, b.Enqueue(ctx, m))
	first := b.fetch(t, render.ClassCPU)
	// Signs of life keep it for longer than the ack wait.
	tick := time.NewTicker(b.cfg.AckWait / 3)
	defer tick.Stop()
	for range 6 {
		<-tick.C
		ok(t, first.InProgress(ctx))
		if d, err := b.Fetch(ctx, render.ClassCPU, 10*time.Millisecond); !errors.Is(err, jobs.ErrNone) {
			t.Fatalf("fetched what is in progress: %v %v", d, err)
		}
	}
	// Then the worker falls silent.
	second := b.fetch(t, render.ClassCPU)
	if second.Message() != first.Message() {
		t.Errorf("got %+v again, want %+v", second.Message(), first.Message())
	}
	ok(t, second.Ack(ctx))
	b.wantDepth(t, render.ClassCPU, jobs.Depth{})
}

func testHandback(t *testing.T, b *bench) {
	ctx := t.Context()
	b.dispatch(t, b, render.ClassCPU)
	m := segment(alice, render.NewID(), 0)
	ok(t, b.Enqueue(ctx, m))
	for range 3 {
		ok(t, b.fetch(t, render.ClassCPU).Handback(ctx, 0))
	}
	ok(t, b.fetch(t, render.ClassCPU).Handback(ctx, 100*time.Millisecond))
	ok(t, b.fetch(t, render.ClassCPU).Handback(ctx, time.Hour))
	b.wantNone(t, render.ClassCPU) // not before its time
	ok(t, b.Enqueue(ctx, m))       // it counts as under way
	b.wantNone(t, render.ClassCPU)
	b.wantDepth(t, render.ClassCPU, jobs.Depth{Running: 1})
}

// testUndecodable shows that a message that nobody can read is removed instead
// of coming back for ever.
func testUndecodable(t *testing.T, b *bench) {
	ctx := t.Context()
	m, other := segment(alice, render.NewID(), 0), segment(alice, render.NewID(), 1)
	ok(t, b.Enqueue(ctx, m))
	msg := b.raw(t, "backlog", m.Work)
	key, valid := other.Work.Key()
	if !valid {
		t.Fatal("no key")
	}
	work := b.cfg.Prefix + "vidforge.work.cpu."
	_, err := b.js.Publish(ctx, work+"x.y", []byte("\xff\xff"))
	ok(t, err)
	_, err = b.js.Publish(ctx, work+key, msg.Data) // says something else than its subject
	ok(t, err)
	for range 2 {
		if d, err := b.Fetch(ctx, render.ClassCPU, soon); err == nil || errors.Is(err, jobs.ErrNone) {
			t.Errorf("got %v %v, want an error", d, err)
		}
	}
	b.wantDepth(t, render.ClassCPU, jobs.Depth{Backlog: 1})
	b.dispatch(t, b, render.ClassCPU)
	ok(t, b.fetch(t, render.ClassCPU).Ack(ctx))
}

// testMalformedIDs: what is no id moves, tells and cancels nothing, while
// another tenant has something of everything.
func testMalformedIDs(t *testing.T, b *bench) {
	ctx := t.Context()
	id := render.NewID()
	m := segment(bob, id, 0)
	ok(t, b.Enqueue(ctx, m))
	ok(t, b.Schedule(ctx, jobs.Timer{Tenant: bob, Task: id, Name: "x", At: time.Now().Add(time.Hour)}))
	ok(t, b.Bury(ctx, jobs.DeadLetter{Work: m.Work}))
	stop, err := b.OnCancel(func(id render.ID) { t.Errorf("cancelled %q", id) })
	ok(t, err)
	defer stop()
	before := b.stored(t)
	var tried []string
	for _, s := range append(hostile.Strings(string(id)), hostile.Strings(string(render.NewAssetID()))...) {
		class := render.Class(s)
		calls := map[string]func() error{
			"Schedule task": func() error {
				return b.Schedule(ctx, jobs.Timer{Tenant: alice, Task: render.ID(s), Name: "x", At: time.Now()})
			},
			"Schedule name": func() error {
				return b.Schedule(ctx, jobs.Timer{Tenant: alice, Task: id, Name: s + "*", At: time.Now()})
			},
			"Cancel":     func() error { return b.Cancel(ctx, render.ID(s)) },
			"Fetch":      func() error { _, err := b.Fetch(ctx, class, moment); return err },
			"Dispatch":   func() error { return b.Dispatch(ctx, class) },
			"Depth":      func() error { _, err := b.Depth(ctx, class); return err },
			"Unfinished": func() error { _, err := b.Unfinished(ctx, class); return err },
		}
		for part, w := range map[string]render.Work{
			"task":  {Tenant: alice, Task: render.ID(s), Generation: 1, Stage: render.StagePlan},
			"asset": {Tenant: alice, Asset: render.AssetID(s), Generation: 1, Stage: render.StageProbe},
			"stage": {Tenant: alice, Task: id, Generation: 1, Stage: render.Stage(s)},
			"index": {Tenant: alice, Task: id, Generation: 1, Stage: render.StagePlan, Index: -1},
		} {
			calls["Enqueue "+part] = func() error { return b.Enqueue(ctx, jobs.Message{Work: w}) }
			calls["Bury "+part] = func() error { return b.Bury(ctx, jobs.DeadLetter{Work: w}) }
		}
		for name, call := range calls {
			if err := call(); err == nil || errors.Is(err, jobs.ErrNone) {
				t.Errorf("%s took %.60q: %v", name, s, err)
			}
		}
		tried = slices.Collect(maps.Keys(calls))
	}
	hostile.Complete[jobs.Queue](t, tried, "FetchTimer", "OnCancel", "DeadLetters")
	ok(t, b.nc.Flush()) // a cancellation would have come before the answer
	if after := b.stored(t); !maps.Equal(before, after) {
		t.Errorf("the streams hold %v, before %v", after, before)
	}
}

// stored is how many messages each stream holds.
func (b *bench) stored(t *testing.T) map[string]uint64 {
	t.Helper()
	// Not ListStreams: a cluster may leave out some states when it is asked for
	// all of them at once.
	names := b.js.StreamNames(t.Context(), jetstream.WithStreamListSubject(b.cfg.Prefix+"vidforge.>"))
	n := map[string]uint64{}
	for name := range names.Name() {
		s, err := b.js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		n[name] = s.CachedInfo().State.Msgs
	}
	if len(n) == 0 || names.Err() != nil {
		t.Fatalf("%d streams: %v", len(n), names.Err())
	}
	return n
}

func testWindow(t *testing.T, b *bench) {
	ctx := t.Context()
	ok(t, b.Enqueue(ctx, segments(alice, 40)...))
	b.dispatch(t, b, render.ClassCPU)
	b.wantDepth(t, render.ClassCPU, jobs.Depth{Backlog: 37, Ready: 3})
	for i := range 5 {
		d := b.fetch(t, render.ClassCPU)
		b.wantDepth(t, render.ClassCPU, jobs.Depth{Backlog: 36 - i, Ready: 3, Running: 1})
		ok(t, d.Ack(ctx))
	}
}

// testFairness: what a tenant queued delays another's by what is running, not
// by what is queued.
func testFairness(t *testing.T, b *bench) {
	ctx := t.Context()
	ok(t, b.Enqueue(ctx, segments(alice, 300)...))
	b.dispatch(t, b, render.ClassCPU)
	b.wantDepth(t, render.ClassCPU, jobs.Depth{Backlog: 298, Ready: 2})
	ok(t, b.Enqueue(ctx, segments(bob, 5)...))
	b.wantDepth(t, render.ClassCPU, jobs.Depth{Backlog: 303, Ready: 2})
	last, served := 0, 0
	for i := range 40 {
		d := b.fetch(t, render.ClassCPU)
		if d.Message().Work.Tenant == bob {
			last, served = i+1, served+1
		}
		ok(t, d.Ack(ctx))
	}
	// Two of alice's were ready before; then they take turns.
	if served != 5 || last > 2+5*2+2 {
		t.Errorf("%d of bob's 5 were served, the last as number %d", served, last)
	}
}

// drain fetches and acknowledges with several workers until n different works
// came, and counts how often each did.
func (b *bench) drain(t *testing.T, workers, n int) map[render.Work]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var mu sync.Mutex
	got := map[render.Work]int{}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				d, err := b.Fetch(ctx, render.ClassCPU, soon)
				if err != nil {
					if ctx.Err() == nil {
						t.Errorf("fetch: %v", err)
					}
					return
				}
				// Acknowledged at once, also when the last one came meanwhile.
				if err := d.Ack(context.WithoutCancel(ctx)); err != nil {
					t.Errorf("ack: %v", err)
				}
				mu.Lock()
				got[d.Message().Work]++
				if len(got) == n {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return got
}

func testTwoDispatchers(t *testing.T, b *bench) {
	ctx := t.Context()
	b.dispatch(t, b, render.ClassCPU)
	b.dispatch(t, b.open(t, b.connect(t)), render.ClassCPU)
	const each = 60
	var sent sync.WaitGroup
	for i := range 5 {
		sent.Go(func() {
			if err := b.Enqueue(ctx, segments(render.Tenant(fmt.Sprintf("tenant %d", i)), each)...); err != nil {
				t.Errorf("enqueue: %v", err)
			}
		})
	}
	got := b.drain(t, 8, 5*each)
	sent.Wait()
	if len(got) != 5*each {
		t.Errorf("%d of %d works came", len(got), 5*each)
	}
	for w, n := range got {
		if n != 1 {
			t.Errorf("%+v came %d times", w, n)
		}
	}
	b.wantNone(t, render.ClassCPU)
	b.wantDepth(t, render.ClassCPU, jobs.Depth{})
}

// testDispatcherInterrupts stops and starts dispatchers in the middle.
func testDispatcherInterrupts(t *testing.T, b *bench) {
	const n = 200
	ok(t, b.Enqueue(t.Context(), segments(alice, n)...))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 1; ctx.Err() == nil; i++ {
			short, stop := context.WithTimeout(ctx, time.Duration(i%20+1)*time.Millisecond)
			if err := b.Dispatch(short, render.ClassCPU); err != nil {
				t.Errorf("dispatch: %v", err)
			}
			stop()
		}
	})
	got := b.drain(t, 4, n)
	cancel()
	wg.Wait()
	if len(got) != n {
		t.Errorf("%d of %d works came", len(got), n)
	}
	for w, times := range got {
		if times != 1 {
			t.Errorf("%+v came %d times", w, times)
		}
	}
}

// testLostHint: a message of whose arrival no dispatcher heard is found.
func testLostHint(t *testing.T, b *bench) {
	ctx := t.Context()
	m := segment(alice, render.NewID(), 0)
	ok(t, b.Enqueue(ctx, m))
	msg := b.raw(t, "backlog", m.Work)
	b.dispatch(t, b, render.ClassCPU)
	ok(t, b.fetch(t, render.ClassCPU).Ack(ctx))
	eventually(t, "the dispatcher has deleted the message that it moved", func() bool {
		_, err := b.js.Publish(ctx, msg.Subject, msg.Data)
		return err == nil
	})
	ok(t, b.fetch(t, render.ClassCPU).Ack(ctx))
}

// testRecount shows that the backlog's number becomes right again: the server
// miscounts when it is asked while messages are deleted.
func testRecount(t *testing.T, b *bench) {
	const n, deleted = 300, 250
	ctx := t.Context()
	ok(t, b.Enqueue(ctx, segments(alice, n)...))
	backlog, err := b.js.Stream(ctx, b.cfg.Prefix+"vidforge_backlog")
	ok(t, err)
	asking, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for asking.Err() == nil {
				if _, err := b.Depth(ctx, render.ClassCPU); err != nil {
					t.Errorf("depth: %v", err)
				}
			}
		})
	}
	for seq := uint64(1); seq <= deleted; seq++ {
		ok(t, backlog.DeleteMsg(ctx, seq))
	}
	stop()
	wg.Wait()
	d, err := b.Depth(ctx, render.ClassCPU)
	ok(t, err)
	t.Logf("the server counts %d of %d messages", d.Backlog, n-deleted)
	b.dispatch(t, b, render.ClassCPU)
	b.wantDepth(t, render.ClassCPU, jobs.Depth{Backlog: n - deleted - 2, Ready: 2})
}

// testManyPullers exceeds the server's own limits of 512 waiting pulls and 1000
// deliveries that wait for their acknowledgement.
func testManyPullers(t *testing.T, b *bench) {
	n := 2000
	if b.cfg.Replicas > 1 {
		n = 1100 // a move costs several writes on each node
	}
	ctx := t.Context()
	b.dispatch(t, b, render.ClassCPU)
	var mu sync.Mutex
	got := map[render.Work]int{}
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			d, err := b.Fetch(ctx, render.ClassCPU, soon)
			if err != nil {
				t.Errorf("fetch: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got[d.Message().Work]++
		})
	}
	cons, err := b.js.Consumer(ctx, b.cfg.Prefix+"vidforge_work", string(render.ClassCPU))
	ok(t, err)
	eventually(t, "all pulls wait at once", func() bool {
		info, err := cons.Info(ctx)
		ok(t, err)
		return info.NumWaiting == n
	})
	ok(t, b.Enqueue(ctx, segments(alice, n)...))
	wg.Wait()
	if len(got) != n {
		t.Errorf("%d works for %d pullers", len(got), n)
	}
	b.wantDepth(t, render.ClassCPU, jobs.Depth{Running: n})
}

func testTimers(t *testing.T, b *bench) {
	ctx := t.Context()
	now := time.Now()
	want := map[string]jobs.Timer{}
	for name, at := range map[string]time.Time{"past": now.Add(-time.Hour), "now": now, "soon": now.Add(1500 * time.Millisecond)} {
		want[name] = jobs.Timer{Tenant: bob, Task: render.NewID(), Name: name, At: at.UTC().Truncate(time.Microsecond)}
		ok(t, b.Schedule(ctx, want[name]))
	}
	ok(t, b.Schedule(ctx, jobs.Timer{Tenant: bob, Task: render.NewID(), Name: "later", At: now.Add(time.Hour)}))
	for range 3 {
		got, ack, err := b.FetchTimer(ctx, soon)
		ok(t, err)
		w, there := want[got.Name]
		if !there || got.Tenant != w.Tenant || got.Task != w.Task || !got.At.Equal(w.At) {
			t.Errorf("got %+v, want %+v", got, w)
		}
		if time.Now().Before(got.At) {
			t.Errorf("timer %s fired before its time", got.Name)
		}
		delete(want, got.Name)
		ok(t, ack(ctx))
	}
	if _, _, err := b.FetchTimer(ctx, moment); !errors.Is(err, jobs.ErrNone) {
		t.Errorf("fetch of no timer: %v", err)
	}
	s, err := b.js.Stream(ctx, b.cfg.Prefix+"vidforge_timers")
	ok(t, err)
	eventually(t, "only the timer of later is stored", func() bool {
		info, err := s.Info(ctx)
		ok(t, err)
		return info.State.Msgs == 1
	})
}

func testTimerReplaced(t *testing.T, b *bench) {
	ctx := t.Context()
	timer := jobs.Timer{Tenant: alice, Task: render.NewID(), Name: "approval", At: time.Now().Add(time.Hour)}
	other := timer
	other.Name = "other"
	ok(t, b.Schedule(ctx, timer))
	ok(t, b.Schedule(ctx, other))
	timer.At = time.Now() // sooner
	ok(t, b.Schedule(ctx, timer))
	got, ack, err := b.FetchTimer(ctx, soon)
	ok(t, err)
	if got.Name != timer.Name || !got.At.Equal(timer.At) {
		t.Errorf("got %+v, want %+v", got, timer)
	}
	ok(t, ack(ctx))

	timer.At = time.Now().Add(2 * time.Second)
	ok(t, b.Schedule(ctx, timer))
	timer.At = timer.At.Add(time.Hour) // later
	ok(t, b.Schedule(ctx, timer))
	if got, _, err := b.FetchTimer(ctx, 4*time.Second); !errors.Is(err, jobs.ErrNone) {
		t.Errorf("a replaced timer fired: %+v %v", got, err)
	}
}

func testCancel(t *testing.T, b *bench) {
	ctx := t.Context()
	other := b.open(t, b.connect(t))
	heard := make(chan render.ID, 100)
	stop, err := other.OnCancel(func(id render.ID) { heard <- id })
	ok(t, err)
	id := render.NewID()
	// The subscription is made at a time that only its first sign shows.
	eventually(t, "a cancellation is heard", func() bool {
		ok(t, b.Cancel(ctx, id))
		return len(heard) > 0
	})
	if got := <-heard; got != id {
		t.Errorf("heard of %s, want %s", got, id)
	}
	stop()
}

func testDeadLetters(t *testing.T, b *bench) {
	ctx := t.Context()
	if letters, err := b.DeadLetters(ctx, 10); err != nil || len(letters) != 0 {
		t.Fatalf("%v %v, want none", letters, err)
	}
	msgs := segments(bob, 5)
	for i, m := range msgs {
		d := jobs.DeadLetter{Work: m.Work, Reason: fmt.Sprintf("reason %d", i), Failure: &render.Failure{Code: render.CodeRenderFailed, Message: "m", Stage: render.StageSegment}, At: time.Now().UTC()}
		ok(t, b.Bury(ctx, d))
		d.Reason = "again"
		ok(t, b.Bury(ctx, d)) // the first one stays
	}
	letters, err := b.DeadLetters(ctx, 3)
	ok(t, err)
	if len(letters) != 3 {
		t.Fatalf("%d letters, limit 3", len(letters))
	}
	for i, l := range letters {
		if l.Work != msgs[4-i].Work || l.Reason != fmt.Sprintf("reason %d", 4-i) || l.Failure == nil || l.Failure.Code != render.CodeRenderFailed || l.At.IsZero() {
			t.Errorf("letter %d is %+v", i, l)
		}
	}
	letters, err = b.DeadLetters(ctx, 100)
	if err != nil || len(letters) != 5 {
		t.Errorf("%d letters (%v), want 5", len(letters), err)
	}
}

func testOpen(t *testing.T, b *bench) {
	cfg := b.cfg
	cfg.AckWait, cfg.MaxWorkers = 15*time.Second, 5000
	_, err := jobs.Open(t.Context(), b.nc, cfg) // with other limits: adjusted
	ok(t, err)
	cons, err := b.js.Consumer(t.Context(), cfg.Prefix+"vidforge_work", string(render.ClassCPU))
	ok(t, err)
	if c := cons.CachedInfo().Config; c.AckWait != cfg.AckWait || c.MaxAckPending != 5000 || c.MaxDeliver != -1 || len(c.BackOff) > 0 {
		t.Errorf("consumer %+v", c)
	}
	for _, bad := range []jobs.Config{{Prefix: "a.b"}, {MaxWorkers: -1}, {Window: -1}} {
		if _, err := jobs.Open(t.Context(), b.nc, bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}
