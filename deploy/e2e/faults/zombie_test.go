package faults

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/e2e/programs"
	"github.com/vidforge/vidforge/deploy/e2e/servers"
	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

// A worker that wakes in mid-encode, when its stage was done elsewhere and the
// render has ended, changes nothing, leaves nothing, and does the next render.
func TestZombieWakesInMidEncode(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Start(t))
	s.gateway(nil)
	hold := programs.NewHold(t)
	hold.On()
	zombie := s.worker(hold.Env)
	c := s.client()
	id := c.submit(order(c.upload(), t.Name(), nil))
	c.until(id, "input_required")
	c.answer(id, map[string]any{"action": "accept", "content": map[string]any{"approved": true}})
	c.untilFrames(id)
	zombie.signal(syscall.SIGSTOP)
	second := s.worker(nil)
	done := c.until(id, "completed", "cancelled")
	before := s.entry(id)
	zombie.signal(syscall.SIGCONT)
	hold.Release()
	// It says so when it found out, or has come second.
	zombie.await("the end of the stage", func(line string) bool {
		return strings.Contains(line, `"stage":"segment"`) && (strings.Contains(line, `"stage ended without a result"`) || strings.Contains(line, `"counts":false`))
	})
	if after := s.entry(id); after.Revision != before.Revision {
		t.Errorf("the record was written once more: %+v", after.Record)
	}
	c.video(id, done)
	second.quit()
	s.client().rendersAgain()
	s.quiet(left{some: true})
}

func (s *site) entry(id string) ledger.RenderEntry {
	s.t.Helper()
	e, err := s.stores.Ledger.GetRender(s.t.Context(), render.LocalTenant, render.ID(id))
	if err != nil {
		s.t.Fatal(err)
	}
	return e
}

// untilFrames waits until the encoder has made a frame.
func (c *client) untilFrames(id string) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) { // an encoder in another process
		a := c.call("vidforge_get_render_status", map[string]any{"render_id": id})
		if n, _ := a.structured()["frames_done"].(float64); n > 0 {
			return
		}
	}
	c.t.Fatalf("render %s makes no frames", id)
}

// Two workers that both lost the same work come back in the wrong order, while
// a third does it: a late acknowledgement must not cost anybody's message.
func TestTwoZombiesOfOneWork(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Start(t))
	s.gateway(nil)
	first := s.worker(nil, stages(failpoint.ClaimOpened, "segment")[0]+"=stop")
	done := make(chan struct{})
	go func() {
		defer close(done)
		first.stopped()
		second := s.worker(nil, stages(failpoint.WorkStored, "segment")[0]+"=stop")
		second.stopped()
		first.signal(syscall.SIGCONT) // its work is with the second now
		s.worker(nil, stages(failpoint.Enqueued, "assemble")[0]+"=stop").await("anything", func(string) bool { return true })
		second.signal(syscall.SIGCONT)
		s.worker(nil)
	}()
	s.client().rendersApproved()
	<-done
	s.quiet(left{some: true})
}

// A gateway that dies while an upload streams through it leaves what the sweep
// finds; the client uploads through another.
func TestGatewayDiesWhileAnUploadStreams(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Start(t))
	s.hand("hand")
	first := s.gateway(nil)
	url := s.gateways()[0]
	body, in := io.Pipe()
	failed := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/assets?name=half.mp4", body)
		if err == nil {
			var res *http.Response
			if res, err = http.DefaultClient.Do(req); err == nil {
				err = res.Body.Close()
				t.Errorf("half an upload was answered %s", res.Status)
			}
		}
		_ = body.CloseWithError(err)
		failed <- err
	}()
	// A part and a half: the first part is with the store when the gateway dies.
	chunk := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for range 24 {
		if _, err := in.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	s.untilUnfinished(t.Context())
	first.ending.Store(true)
	first.signal(syscall.SIGKILL)
	<-first.done
	if err := in.CloseWithError(io.ErrUnexpectedEOF); err != nil { // the client's library waits for more to send
		t.Fatal(err)
	}
	if err := <-failed; err == nil {
		t.Error("the upload did not fail")
	}
	s.gateway(nil)
	s.client().rendersApproved()
	s.quiet(left{litter: true})
}

func (s *site) untilUnfinished(ctx context.Context) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) { // a store in another process
		for _, err := range s.stores.Blobs.ListUnfinished(ctx, "") {
			if err != nil {
				s.t.Fatal(err)
			}
			return
		}
	}
	s.t.Fatal("no part came to the store")
}
