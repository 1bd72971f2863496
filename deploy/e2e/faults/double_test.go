package faults

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/e2e/servers"
	"github.com/vidforge/vidforge/pkg/apikey"
	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/render"
)

// Two gateways dispatch and reconcile at once, one of which stands still in the
// middle of a move and of a look, and comes back: nothing is lost or doubled.
func TestTwoDispatchersAndReconcilers(t *testing.T) {
	t.Parallel()
	const tenants, each = 3, 20
	s := newSite(t, servers.Start(t))
	keys := filepath.Join(t.TempDir(), "keys.yaml")
	var clients []*client
	for i := range tenants {
		secret, entry, err := apikey.New(fmt.Sprintf("tenant%d", i), "test", apikey.Scopes(), time.Now())
		if err == nil {
			err = apikey.Add(keys, entry)
		}
		if err != nil {
			t.Fatal(err)
		}
		c := s.client()
		c.key, c.wait = secret, stoppedWait
		clients = append(clients, c)
	}
	env := []string{"VIDFORGE_KEYS_FILE=" + keys, fmt.Sprint("VIDFORGE_MAX_CONCURRENT=", each)}
	for i := range 3 {
		s.hand(fmt.Sprint("hand", i))
	}
	var sources []string
	halting := s.gateway(env, string(failpoint.DispatchMoved)+"=stop@5", string(failpoint.ReconcileAdvanced)+"=stop@3")
	for _, c := range clients {
		sources = append(sources, c.upload())
	}
	s.gateway(env)
	stopping := make(chan struct{})
	go func() { // once in each of the two, whichever comes first
		defer close(stopping)
		for range 2 {
			halting.stopped()
			s.untilDone(each) // the other works on meanwhile
			halting.signal(syscall.SIGCONT)
		}
	}()
	var wg sync.WaitGroup
	for i, c := range clients {
		for n := range each {
			c := *c // statuses of its own
			wg.Go(func() {
				id := c.submit(order(sources[i], strconv.Itoa(n), map[string]any{"watermark": nil}))
				if a := c.until(id, "completed", "cancelled"); a.Result["status"] != "completed" {
					t.Errorf("%s: %+v", id, a)
				}
			})
		}
	}
	wg.Wait()
	// The point that the first stop kept from being met is met by later renders.
	c := clients[0]
	deadline := time.Now().Add(patience)
	for n := each; ; n++ {
		select {
		case <-stopping:
		default:
			if time.Now().After(deadline) {
				t.Fatalf("after %d more renders the gateway has not stopped twice; its last: %q", n-each, halting.fired())
			}
			c.statuses, c.updated = nil, ""
			c.until(c.submit(order(sources[0], strconv.Itoa(n), map[string]any{"watermark": nil})), "completed")
			continue
		}
		break
	}
	s.quiet(left{})
	s.onceEach(tenants * each)
}

// untilDone waits until so many renders have ended.
func (s *site) untilDone(n int) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) { // others do the work
		if len(slices.DeleteFunc(s.renders(), func(r *render.Record) bool { return !r.State.Terminal() })) >= n {
			return
		}
	}
	s.t.Errorf("%d renders did not end", n)
}

// onceEach checks that there are at least n renders, that all succeeded, and
// that each work was done by one attempt.
func (s *site) onceEach(n int) {
	s.t.Helper()
	all := s.renders()
	if len(all) < n {
		s.t.Errorf("%d renders, want %d", len(all), n)
	}
	for _, rec := range all {
		if rec.State != render.StateSucceeded {
			s.t.Errorf("%s %s: %+v", rec.ID, rec.State, rec.Failure)
			continue
		}
		works := []render.Work{
			{Stage: render.StagePlan}, {Stage: render.StageSegment}, {Stage: render.StageAudio}, {Stage: render.StageAssemble},
		}
		for _, w := range works {
			w.Tenant, w.Task, w.Generation = rec.Tenant, rec.ID, rec.Generation
			h, err := s.stores.Ledger.AttemptHistory(s.t.Context(), w)
			if err != nil {
				s.t.Fatal(err)
			}
			done := slices.DeleteFunc(h.Attempts, func(a render.Attempt) bool { return a.Outcome != render.OutcomeDone })
			if len(done) != 1 {
				s.t.Errorf("%s of %s was done by %+v", w.Stage, rec.ID, h.Attempts)
			}
		}
	}
}

// A program without the tag has nothing of this in it.
func TestOrdinaryProgramsHaveNoFailpoints(t *testing.T) {
	t.Parallel()
	ordinary := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", ordinary+"/", "github.com/vidforge/vidforge/worker/cmd/vidforge-worker").CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	for dir, want := range map[string]bool{ordinary: false, built.dir: true} {
		b, err := os.ReadFile(filepath.Join(dir, "vidforge-worker"))
		if err != nil {
			t.Fatal(err)
		}
		for _, trace := range []string{"FAILPOINTS", string(failpoint.CompleteAdvanced)} {
			if found := bytes.Contains(b, []byte(trace)); found != want {
				t.Errorf("the program in %s has %q: %t, want %t", dir, trace, found, want)
			}
		}
	}
}
