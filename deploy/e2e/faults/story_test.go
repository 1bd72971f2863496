package faults

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/render"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

// story is what a client does on a farm a program of which dies or stands still
// meanwhile.
type story struct {
	// gateway or worker are the points that the program meets.
	gateway, worker []string
	// may says what the story leaves behind.
	may left
	// tell is what the client does.
	tell func(c *client)
	// cast is, instead, what the client and a cast of its own do.
	cast func(c *client)
}

// stages are the full names of a point for those stages, without any for all.
func stages(p failpoint.Point, of ...string) []string {
	if len(of) == 0 {
		of = []string{"probe", "preview", "plan", "segment", "audio", "assemble"}
	}
	var names []string
	for _, stage := range of {
		names = append(names, string(p)+"/"+stage)
	}
	return names
}

func events(names ...string) []string { return stages(failpoint.RecordChanged, names...) }

func points(list ...failpoint.Point) []string {
	var names []string
	for _, p := range list {
		names = append(names, string(p))
	}
	return names
}

// stories meet every point once.
func stories() map[string]story {
	return map[string]story{
		"upload": {
			gateway: append(points(failpoint.UploadStored, failpoint.UploadRecorded, failpoint.UploadPublished, failpoint.AssetChanged), stages(failpoint.Enqueued, "probe")...),
			may:     left{litter: true}, tell: (*client).rendersApproved,
		},
		"finalize":            {gateway: points(failpoint.FinalizeCopied, failpoint.FinalizeRecorded), may: left{litter: true}, tell: (*client).rendersPresigned},
		"finalize, published": {gateway: points(failpoint.FinalizePublished), may: left{litter: true}, tell: (*client).rendersPresigned},
		"large upload":        {gateway: points(failpoint.PartStored), may: left{litter: true}, tell: (*client).uploadsInParts},
		"submit":              {gateway: points(failpoint.SubmitBound, failpoint.SubmitSlotted, failpoint.SubmitHeld, failpoint.SubmitStated, failpoint.SubmitRecorded), tell: (*client).rendersApproved},
		"submit, confirmed":   {gateway: append(points(failpoint.SubmitConfirmed), stages(failpoint.Enqueued, "preview")...), tell: (*client).rendersApproved},
		"submit, published":   {gateway: points(failpoint.SubmitPublished), tell: (*client).rendersApproved},
		"submit, refused":     {gateway: points(failpoint.SubmitRefused), tell: (*client).isRefused},
		"dispatch":            {gateway: points(failpoint.DispatchMoved), tell: (*client).rendersApproved},
		"reconcile":           {gateway: points(failpoint.ReconcileLeased, failpoint.ReconcileAdvanced), may: left{some: true}, tell: (*client).rendersApproved},
		"sweep":               {gateway: points(failpoint.SweepTurned, failpoint.SweepMarked), may: left{some: true}, tell: (*client).rendersApproved},
		"decide":              {gateway: append(events("input minted", "decided"), stages(failpoint.Enqueued, "plan")...), tell: (*client).rendersApproved},
		"pause":               {gateway: points(failpoint.PauseTimed), tell: (*client).rendersAfterThought},
		"decide, ended":       {gateway: points(failpoint.PauseEnded), tell: (*client).rendersApproved},
		"answer":              {gateway: events("input answered"), tell: (*client).declinesFirst},
		"cancel":              {gateway: append(events("cancelled"), points(failpoint.EndBroadcast, failpoint.EndRemoved, failpoint.EndSettled, failpoint.EndSlotFreed)...), tell: (*client).cancels},
		"time out":            {gateway: append(events("approval timed out"), points(failpoint.TimerAdvanced)...), tell: (*client).timesOut},
		"delete":              {gateway: points(failpoint.DeleteRecorded), may: left{litter: true}, tell: (*client).deletes},
		"claim, fetched":      {worker: stages(failpoint.ClaimFetched), tell: (*client).rendersApproved},
		"claim, leased":       {worker: stages(failpoint.ClaimLeased), tell: (*client).rendersApproved},
		"claim, opened":       {worker: stages(failpoint.ClaimOpened), tell: (*client).rendersApproved},
		"work, stored":        {worker: stages(failpoint.WorkStored, "preview", "segment", "audio", "assemble"), tell: (*client).rendersApproved},
		"work, drawn":         {worker: stages(failpoint.WorkStored, "plan"), tell: (*client).rendersUnasked},
		"complete, recorded":  {worker: slices.Concat(stages(failpoint.CompleteRecorded), stages(failpoint.ClaimDone)), tell: (*client).rendersApproved},
		"complete, closed":    {worker: stages(failpoint.CompleteClosed), tell: (*client).rendersApproved},
		"complete, advanced":  {worker: stages(failpoint.CompleteAdvanced), tell: (*client).rendersApproved},
		"complete, acked":     {worker: stages(failpoint.CompleteAcked), tell: (*client).rendersApproved},
		"complete, second":    {worker: points(failpoint.CompleteSecond), cast: (*client).withASecond},
		"advance": {
			worker: events("claimed", "preview ready", "planned", "encoded", "assembled"),
			tell:   (*client).rendersApproved,
		},
		"settle": {
			worker: stages(failpoint.Enqueued, "segment", "assemble"),
			tell:   (*client).rendersApproved,
		},
		"settle, sound": {worker: stages(failpoint.Enqueued, "audio"), tell: (*client).rendersApproved},
		"fail":          {worker: append(points(failpoint.FailClosed), events("failed")...), may: left{noSource: true}, tell: (*client).losesItsSource},
		"failed":        {worker: points(failpoint.FailSettled), may: left{noSource: true}, tell: (*client).losesItsSource},
		"bury":          {worker: points(failpoint.FailBuried), may: left{letter: true}, cast: (*client).withClumsyWorkers},
		"handback":      {worker: points(failpoint.HandbackClosed, failpoint.HandbackReleased), cast: (*client).withWorkersThatStop},
	}
}

// rendersApproved renders one video with a watermark that is approved.
func (c *client) rendersApproved() {
	c.t.Helper()
	id := c.submit(order(c.upload(), c.name, nil))
	c.video(id, c.follow(id, approve))
	c.hasOne(render.StateSucceeded)
}

// rendersAfterThought approves when the pause's timer is set.
func (c *client) rendersAfterThought() {
	c.t.Helper()
	id := c.submit(order(c.upload(), c.name, nil))
	c.until(id, "input_required")
	stream, err := c.site.js.Stream(c.t.Context(), c.site.prefix+"timers")
	if err != nil {
		c.t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) { // a gateway in another process
		if info, err := stream.Info(c.t.Context()); err != nil || time.Now().After(deadline) {
			c.t.Fatalf("no timer is set: %v", err)
		} else if info.State.Msgs > 0 {
			break
		}
	}
	c.video(id, c.follow(id, approve))
	c.hasOne(render.StateSucceeded)
}

// rendersUnasked renders one with a watermark that nobody is asked about.
func (c *client) rendersUnasked() {
	c.t.Helper()
	id := c.submit(order(c.upload(), c.name, map[string]any{"require_watermark_approval": false}))
	c.video(id, c.follow(id, ""))
	c.hasOne(render.StateSucceeded)
}

// hasOne checks that all requests of a client made one render, and how each
// ended.
func (c *client) hasOne(state render.State) {
	c.t.Helper()
	all := c.site.renders()
	if len(all) != c.site.clients || slices.ContainsFunc(all, func(r *render.Record) bool { return r.State != state }) {
		c.t.Errorf("%d clients made %d renders: %+v", c.site.clients, len(all), all)
	}
}

// failsWith checks a task that was carried out without a video.
func (c *client) failsWith(end answer, code string) {
	c.t.Helper()
	result, _ := end.Result["result"].(map[string]any)
	said, _ := result["structuredContent"].(map[string]any)
	if end.Result["status"] != "completed" || result["isError"] != true || said["code"] != code {
		c.t.Errorf("the task ended with %+v, want %s", end, code)
	}
	c.hasOne(render.StateFailed)
}

// uploadsInParts uploads what is stored in several parts. It is no video.
func (c *client) uploadsInParts() {
	c.t.Helper()
	body := bytes.Repeat([]byte("0123456789abcdef"), (33<<20)/16) // two parts and a bit
	status, raw := c.send(http.MethodPost, "/v1/assets?name=large.mp4", map[string]string{"Content-Type": "video/mp4"}, body)
	if status != http.StatusCreated {
		c.t.Errorf("upload: %d %s", status, raw)
	}
}

// isRefused asks for what cannot be, and finds its key free for a better one.
func (c *client) isRefused() {
	c.t.Helper()
	source := c.upload()
	for range 2 {
		a := c.call("vidforge_render_video", order(render.NewAssetID().URI(), c.name, nil))
		result, _ := a.Result["result"].(map[string]any) // a task's, if it were one
		if code := a.structured()["code"]; code != "source_not_found" || result != nil {
			c.t.Fatalf("an unknown source: %+v", a)
		}
	}
	id := c.submit(order(source, c.name, nil))
	c.video(id, c.follow(id, approve))
	c.hasOne(render.StateSucceeded)
}

// declinesFirst declines the form, which decides nothing, and approves by tool.
func (c *client) declinesFirst() {
	c.t.Helper()
	id := c.submit(order(c.upload(), c.name, nil))
	c.until(id, "input_required")
	c.answer(id, map[string]any{"action": "decline"})
	if status, a := c.look(id); status != "input_required" || len(a.Result["inputRequests"].(map[string]any)) != 0 {
		c.t.Errorf("after a decline: %+v", a)
	}
	for range 2 { // a recorded decision wins
		if a := c.call("vidforge_approve_watermark", map[string]any{"render_id": id, "approved": true}); a.Result["isError"] == true {
			c.t.Errorf("approve: %+v", a)
		}
	}
	c.video(id, c.until(id, "completed", "cancelled"))
	c.hasOne(render.StateSucceeded)
}

// cancels cancels while it is asked to decide.
func (c *client) cancels() {
	c.t.Helper()
	id := c.submit(order(c.upload(), c.name, nil))
	c.until(id, "input_required")
	for range 2 {
		if a := c.ask("tasks/cancel", map[string]any{"taskId": id}); a.Error != nil {
			c.t.Errorf("tasks/cancel: %+v", a)
		}
	}
	c.until(id, "completed", "cancelled")
	if last := c.statuses[len(c.statuses)-1]; last != "cancelled" {
		c.t.Errorf("a cancelled task is %s", last)
	}
	c.hasOne(render.StateCancelled)
}

// timesOut does not decide. The half hour is taken from the record.
func (c *client) timesOut() {
	c.t.Helper()
	ctx := c.t.Context()
	id := c.submit(order(c.upload(), c.name, nil))
	c.until(id, "input_required")
	c.site.overdue(id)
	timer := jobs.Timer{Tenant: render.LocalTenant, Task: render.ID(id), Name: "approval", At: time.Now()}
	if err := c.site.stores.Jobs.Schedule(ctx, timer); err != nil {
		c.t.Fatal(err)
	}
	c.failsWith(c.until(id, "completed", "cancelled"), "watermark_approval_timeout")
}

// overdue moves the deadline of a stored pause into the past.
func (s *site) overdue(id string) {
	s.t.Helper()
	ctx := s.t.Context()
	states, err := s.js.KeyValue(ctx, s.prefix+"renders_0")
	if err != nil {
		s.t.Fatal(err)
	}
	key := render.LocalTenant.Key() + "." + id
	state, err := states.Get(ctx, key)
	if err != nil {
		s.t.Fatal(err)
	}
	p := &vidforgev1.RenderRecord{}
	if err := proto.Unmarshal(state.Value(), p); err != nil {
		s.t.Fatal(err)
	}
	p.Preview.Deadline = timestamppb.New(time.Now().Add(-time.Minute))
	b, err := proto.Marshal(p)
	if err == nil {
		_, err = states.Update(ctx, key, b, state.Revision())
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// rendersPresigned uploads by a presigned URL and renders that.
func (c *client) rendersPresigned() {
	c.t.Helper()
	body, err := json.Marshal(map[string]any{"name": "clip.mp4", "mime_type": "video/mp4", "size_bytes": len(c.clip)})
	if err != nil {
		c.t.Fatal(err)
	}
	status, raw := c.send(http.MethodPost, "/v1/assets:presign", map[string]string{"Content-Type": "application/json"}, body)
	var presigned struct {
		URI     string            `json:"asset_uri"`
		URL     string            `json:"upload_url"`
		Headers map[string]string `json:"headers"`
	}
	if err := json.Unmarshal(raw, &presigned); err != nil || presigned.URL == "" {
		c.t.Fatalf("presign: %d %s, %v", status, raw, err)
	}
	if status, raw := c.send(http.MethodPut, presigned.URL, presigned.Headers, c.clip); status != http.StatusOK {
		c.t.Fatalf("put: %d %s", status, raw)
	}
	path := "/v1/assets/" + strings.TrimPrefix(presigned.URI, "vidforge://assets/")
	if status, raw := c.send(http.MethodPost, path+":finalize", nil, nil); status != http.StatusOK && status != http.StatusCreated {
		c.t.Fatalf("finalize: %d %s", status, raw)
	}
	c.ready(presigned.URI)
	id := c.submit(order(presigned.URI, c.name, nil))
	c.video(id, c.follow(id, approve))
	c.hasOne(render.StateSucceeded)
}

// deletes deletes what it uploaded.
func (c *client) deletes() {
	c.t.Helper()
	path := "/v1/assets/" + strings.TrimPrefix(c.upload(), "vidforge://assets/")
	if status, raw := c.send(http.MethodDelete, path, nil, nil); status != http.StatusNoContent && status != http.StatusNotFound {
		c.t.Errorf("delete: %d %s", status, raw)
	}
	if status, raw := c.send(http.MethodGet, path, nil, nil); status != http.StatusNotFound {
		c.t.Errorf("after the deletion: %d %s", status, raw)
	}
}

// losesItsSource renders what somebody removed from the store.
func (c *client) losesItsSource() {
	c.t.Helper()
	source := c.upload()
	for info, err := range c.site.stores.Blobs.List(c.t.Context(), "sources/") {
		if err != nil {
			c.t.Fatal(err)
		}
		if err := c.site.stores.Blobs.Delete(c.t.Context(), info.Key); err != nil {
			c.t.Fatal(err)
		}
	}
	id := c.submit(order(source, c.name, nil))
	c.failsWith(c.follow(id, ""), "source_not_found")
}

// isGivenUp renders what the farm cannot finish.
func (c *client) isGivenUp() {
	c.t.Helper()
	id := c.submit(order(c.upload(), c.name, nil))
	c.failsWith(c.follow(id, approve), "render_failed")
}

// withASecond lets a worker stand still before it can say that it has a result,
// until another has done everything.
func (c *client) withASecond() {
	s := c.site
	s.gateway(nil)
	first := s.worker(nil, stages(failpoint.WorkStored, "segment")[0]+"=stop", string(failpoint.CompleteSecond)+"=kill")
	go func() {
		first.stopped()
		s.worker(nil)
	}()
	c.rendersApproved()
	first.signal(syscall.SIGCONT)
	first.dies(failpoint.CompleteSecond)
}

// dies waits for the process's death at a point.
func (p *process) dies(at failpoint.Point) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Errorf("%s lives", p.name)
	}
	if fired := p.fired(); fired != string(at) {
		p.t.Errorf("%s died at %q, not %s", p.name, fired, at)
	}
}

// withClumsyWorkers lets three workers fail at the same work, the last of which
// dies while it gives up.
func (c *client) withClumsyWorkers() {
	s := c.site
	s.gateway(nil)
	clumsy := stages(failpoint.WorkStored, "segment")[0] + "=panic@*"
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2 {
			w := s.worker(nil, clumsy)
			w.logged("stage failed")
			w.ending.Store(true)
			w.signal(syscall.SIGKILL)
			<-w.done
		}
		s.worker(nil, clumsy, string(failpoint.FailBuried)+"=kill").dies(failpoint.FailBuried)
		s.worker(nil)
	}()
	c.isGivenUp()
	<-done
}

// withWorkersThatStop asks workers to stop while they work, who die while they
// hand their work back.
func (c *client) withWorkersThatStop() {
	s := c.site
	s.gateway(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, at := range []failpoint.Point{failpoint.HandbackClosed, failpoint.HandbackReleased} {
			w := s.worker([]string{"VIDFORGE_GRACE=0s"}, stages(failpoint.ClaimOpened, "segment")[0]+"=term", string(at)+"=kill")
			w.dies(at)
		}
		s.worker(nil)
	}()
	c.rendersApproved()
	<-done
}
