package faults

import (
	"slices"
	"testing"

	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/render"
)

// story is what happens to one farm while its programs die.
type story struct {
	// gateway and worker die at each of these points, once, and are started
	// again.
	gateway, worker []string
	// litter says that an object is left that only a sweep finds.
	litter bool
	// tell is what the client does; nil: rendersApproved.
	tell func(t *testing.T, s *site, c *client)
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

func event(names ...string) []string { return stages(failpoint.RecordChanged, names...) }

func points(list ...failpoint.Point) []string {
	var names []string
	for _, p := range list {
		names = append(names, string(p))
	}
	return names
}

// rendersApproved renders one video with a watermark that is approved.
func rendersApproved(t *testing.T, s *site, c *client) {
	t.Helper()
	id := c.submit(order(c.upload(), t.Name(), nil))
	c.video(id, c.follow(id, approve))
	if all := s.renders(); len(all) != 1 || all[0].State != render.StateSucceeded {
		t.Errorf("one request made %d renders: %+v", len(all), all)
	}
}

func killStories() map[string]story {
	return map[string]story{
		"upload": {
			gateway: append(points(failpoint.UploadStored, failpoint.UploadRecorded, failpoint.UploadPublished), stages(failpoint.Enqueued, "probe")...),
			litter:  true,
		},
		"submit":                 {gateway: points(failpoint.SubmitBound, failpoint.SubmitSlotted, failpoint.SubmitRecorded)},
		"submit, confirmed":      {gateway: append(points(failpoint.SubmitConfirmed), stages(failpoint.Enqueued, "preview")...)},
		"submit, published":      {gateway: points(failpoint.SubmitPublished)},
		"dispatch":               {gateway: points(failpoint.DispatchMoved)},
		"reconcile":              {gateway: points(failpoint.ReconcileLeased, failpoint.ReconcileAdvanced)},
		"decide":                 {gateway: append(event("input minted", "decided"), stages(failpoint.Enqueued, "plan")...)},
		"claim, fetched":         {worker: stages(failpoint.ClaimFetched)},
		"claim, leased":          {worker: stages(failpoint.ClaimLeased)},
		"claim, opened":          {worker: stages(failpoint.ClaimOpened)},
		"work, stored":           {worker: stages(failpoint.WorkStored, "preview", "segment", "audio", "assemble")},
		"complete, recorded":     {worker: slices.Concat(stages(failpoint.CompleteRecorded), stages(failpoint.ClaimDone))},
		"complete, closed":       {worker: stages(failpoint.CompleteClosed)},
		"complete, advanced":     {worker: stages(failpoint.CompleteAdvanced)},
		"complete, acknowledged": {worker: stages(failpoint.CompleteAcked)},
		"advance":                {worker: slices.Concat(points(failpoint.AssetChanged), event("claimed", "preview ready", "planned", "encoded", "assembled"))},
		"settle": {worker: slices.Concat(stages(failpoint.Enqueued, "segment", "audio", "assemble"),
			points(failpoint.PauseTimed, failpoint.EndSlotFreed, failpoint.EndRemoved))},
	}
}

func TestKilledAtEachStep(t *testing.T) {
	for name, story := range killStories() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			gateway, worker := s.gatewayThatDies(story.gateway...), s.workerThatDies(story.worker...)
			tell := story.tell
			if tell == nil {
				tell = rendersApproved
			}
			tell(t, s, s.client())
			s.quiet(story.litter)
			if left := slices.Concat(gateway.spared(), worker.spared()); len(left) > 0 {
				t.Errorf("never died at %q", left)
			}
		})
	}
}
