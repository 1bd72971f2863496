package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/embedded/embeddedtest"
	"github.com/vidforge/vidforge/gateway"
	"github.com/vidforge/vidforge/pkg/render"
)

// seedVariable repeats a run of TestReplicasThatDie.
const seedVariable = "VIDFORGE_E2E_SEED"

// wish is what a client does with a task of its own, and how that must end.
type wish struct {
	key   string
	old   bool // by MCP 2025-11-25
	ask   string
	state render.State
	code  render.Code
}

const (
	askNothing = "a video"
	askApprove = "a video with a watermark that is approved"
	askReject  = "a video with a watermark that is rejected"
	askCancel  = "nothing any more"
)

// wishes are n tasks of both generations, in an order of the seed's.
func wishes(rng *rand.Rand, n int) []wish {
	all := make([]wish, n)
	for i := range all {
		w := wish{key: fmt.Sprintf("task %d", i), old: i%2 == 0, state: render.StateSucceeded}
		switch i / 2 % 4 {
		case 0:
			w.ask = askNothing
		case 1:
			w.ask = askApprove
		case 2:
			w.ask, w.state, w.code = askReject, render.StateFailed, render.CodeWatermarkRejected
		case 3:
			w.ask, w.state = askCancel, render.StateCancelled
		}
		all[i] = w
	}
	rng.Shuffle(n, func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// arguments of the render tool.
func (w wish) arguments(source string) map[string]any {
	more := map[string]any{"idempotency_key": w.key}
	if w.ask != askNothing {
		more["watermark"] = map[string]any{"text": w.key}
	}
	return args(source, more)
}

// deadlyFarm is three replicas, one of which dies after every k-th operation
// that was acknowledged.
type deadlyFarm struct {
	*replicas
	source string
	k      int
	deaths chan struct{} // asks for one

	mu    sync.Mutex
	acked int
	ids   map[string]string // by key
}

// acknowledged counts an operation, and waits for the death that it brings.
func (f *deadlyFarm) acknowledged() {
	f.mu.Lock()
	f.acked++
	deadly := f.acked%f.k == 0
	f.mu.Unlock()
	if deadly {
		f.deaths <- struct{}{}
	}
}

// TestReplicasThatDie: 200 tasks of both generations, through a balancer without
// stickiness, while one gateway after the other is killed. Every task ends as it
// must, and none is done twice.
func TestReplicasThatDie(t *testing.T) {
	const tasks, clients = 200, 24
	seed := rand.Uint64()
	if s := os.Getenv(seedVariable); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	share := embeddedtest.Servers(t)
	workers := hireStandIns(t, share, 20*time.Millisecond)
	f := &deadlyFarm{
		replicas: newReplicas(t, 3, gateway.Config{Endpoints: share.Endpoints, MaxConcurrent: tasks}),
		k:        20 + rng.IntN(20), deaths: make(chan struct{}), ids: map[string]string{},
	}
	t.Logf("%s=%d: a gateway dies after every %d. operation", seedVariable, seed, f.k)
	f.source = (&agent{url: f.url, t: t}).upload(clip(t, 1, "160x120"))

	queue := make(chan wish)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			old := &oldAgent{url: f.url, t: t}
			for w := range queue {
				if w.old {
					f.old(old, w)
				} else {
					f.modern(&persistent{f.url, t}, w)
				}
			}
		})
	}
	all := wishes(rng, tasks)
	go func() {
		for _, w := range all {
			queue <- w
		}
		close(queue)
		wg.Wait()
		close(f.deaths)
	}()
	died := 0
	for range f.deaths { // here, since only a test's own goroutine may start a process
		f.replace(rng.IntN(len(f.all)))
		died++
	}
	if died < 2*len(f.all) {
		t.Errorf("only %d gateways died", died)
	}
	t.Logf("%d operations were acknowledged, %d gateways died", f.acked, died)
	f.check(all)
	f.checkOnce(share, all)
	workers.checkOnce(t)
}

// modern does what is wished by tasks of MCP 2026-07-28.
func (f *deadlyFarm) modern(a *persistent, w wish) {
	a.t.Helper()
	task := a.call("vidforge_render_video", w.arguments(f.source))
	id, _ := task.Result["taskId"].(string)
	if id == "" {
		a.t.Errorf("%s: %+v", w.key, task)
		return
	}
	f.begun(w, id)
	if w.ask != askNothing {
		paused := f.poll(a, id, "input_required")
		if requests, _ := paused.Result["inputRequests"].(map[string]any); len(requests) != 1 {
			a.t.Errorf("%s: input requests %v", w.key, requests)
		}
		var got answer
		if w.ask == askCancel {
			got = a.ask("tasks/cancel", map[string]any{"taskId": id})
		} else {
			got = a.ask("tasks/update", map[string]any{"taskId": id, "inputResponses": map[string]any{
				"watermark-approval-1": map[string]any{"action": "accept", "content": map[string]any{"approved": w.ask == askApprove}}}})
		}
		if got.Result["resultType"] != "complete" {
			a.t.Errorf("%s: %+v", w.key, got)
		}
		f.acknowledged()
	}
	f.poll(a, id, "completed", "cancelled")
}

// begun notes the render of a wish, which is one, however often it was asked
// for.
func (f *deadlyFarm) begun(w wish, id string) {
	f.mu.Lock()
	f.ids[w.key] = id
	f.mu.Unlock()
	f.acknowledged()
}

func (f *deadlyFarm) poll(a *persistent, id string, statuses ...string) answer {
	a.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; <-time.After(100 * time.Millisecond) { // workers in their own time
		got := a.ask("tasks/get", map[string]any{"taskId": id})
		for _, s := range statuses {
			if got.Result["status"] == s {
				return got
			}
		}
		if got.Error != nil || time.Now().After(deadline) {
			a.t.Errorf("task %s is %+v, not %v", id, got, statuses)
			return got
		}
	}
}

// old does it by tasks of MCP 2025-11-25, in a session. What is asked comes on
// the stream of a result that is waited for.
func (f *deadlyFarm) old(a *oldAgent, w wish) {
	a.t.Helper()
	got := a.ask("tools/call", map[string]any{"name": "vidforge_render_video", "arguments": w.arguments(f.source), "task": map[string]any{}})
	task, _ := got.Result["task"].(map[string]any)
	id, _ := task["taskId"].(string)
	if id == "" {
		a.t.Errorf("%s: %+v", w.key, got)
		return
	}
	f.begun(w, id)
	if w.ask == askCancel {
		for deadline := time.Now().Add(5 * time.Minute); ; <-time.After(100 * time.Millisecond) { // as above
			got := a.ask("tasks/get", map[string]any{"taskId": id})
			if got.Result["status"] == "input_required" {
				break
			}
			if got.Result["status"] != "working" || time.Now().After(deadline) {
				a.t.Errorf("%s: %+v", w.key, got)
				return
			}
		}
		// One whose acknowledgement was lost is refused: it is cancelled already.
		if got := a.ask("tasks/cancel", map[string]any{"taskId": id}); got.Result["status"] != "cancelled" && (got.Error == nil || got.Error.Code != -32602) {
			a.t.Errorf("%s: %+v", w.key, got)
		}
		f.acknowledged()
	}
	got = untilAnswered(a.t, func() (answer, error) { return a.result(id, w.ask == askApprove) })
	failed, said := got.Result["isError"] == true, got.structured()
	if failed == (w.state == render.StateSucceeded) || !failed && said["render_id"] != id || w.code != "" && said["code"] != string(w.code) {
		a.t.Errorf("%s wished %s: %+v", w.key, w.ask, got)
	}
	if w.state != render.StateCancelled && w.ask != askNothing {
		f.acknowledged() // its decision was
	}
}

// check asks every replica for every task.
func (f *deadlyFarm) check(all []wish) {
	f.t.Helper()
	for i, r := range f.all {
		a := &persistent{r.url, f.t}
		for _, w := range all {
			got := a.ask("tasks/get", map[string]any{"taskId": f.ids[w.key]})
			result, _ := got.Result["result"].(map[string]any)
			said, _ := result["structuredContent"].(map[string]any)
			var ok bool
			switch w.state {
			case render.StateCancelled:
				ok = got.Result["status"] == "cancelled"
			case render.StateFailed:
				ok = got.Result["status"] == "completed" && result["isError"] == true && said["code"] == string(w.code)
			default:
				ok = got.Result["status"] == "completed" && said["status"] == "completed" && said["render_id"] == f.ids[w.key]
			}
			if !ok {
				f.t.Errorf("%s wished %s; gateway %d says %+v", w.key, w.ask, i, got)
			}
		}
	}
}

// checkOnce looks into the ledger: there is one render for each wish, in the
// state it must have.
func (f *deadlyFarm) checkOnce(share embeddedtest.Farm, all []wish) {
	f.t.Helper()
	stores := share.Dial(f.t)
	states := map[render.ID]render.State{}
	for entry, err := range stores.Ledger.Renders(f.t.Context()) {
		if err != nil {
			f.t.Fatal(err)
		}
		states[entry.Record.ID] = entry.Record.State
	}
	for _, w := range all {
		if id := render.ID(f.ids[w.key]); states[id] != w.state {
			f.t.Errorf("%s: render %s is %s, want %s", w.key, id, states[id], w.state)
		}
	}
	if len(states) != len(all) {
		f.t.Errorf("%d wishes made %d renders", len(all), len(states))
	}
}

// checkOnce: no work was done twice.
func (s *standIns) checkOnce(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for work, n := range s.done {
		if n != 1 {
			t.Errorf("%s was done %d times", work, n)
		}
	}
}
