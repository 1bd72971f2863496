package faults

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vidforge/vidforge/deploy/e2e/servers"
	"github.com/vidforge/vidforge/pkg/failpoint"
)

// briefly are the points at which programs stand still for every change; the
// nightly run has all.
func briefly() []string {
	return slices.Concat(
		points(failpoint.SubmitBound, failpoint.SubmitRecorded, failpoint.DispatchMoved),
		events("decided", "encoded"),
		stages(failpoint.ClaimFetched, "segment"), stages(failpoint.ClaimOpened, "segment"), stages(failpoint.WorkStored, "segment"),
		stages(failpoint.CompleteRecorded, "segment"), stages(failpoint.CompleteAdvanced, "assemble"),
	)
}

// Stopped at a step until another did its work, and continued, a program
// changes nothing of what the other did, and goes on with the next render.
func TestStoppedAndContinued(t *testing.T) {
	on := servers.Start(t)
	for name, story := range stories() {
		for _, point := range slices.Concat(story.gateway, story.worker) {
			if story.tell == nil || !everyStop && !slices.Contains(briefly(), point) {
				continue
			}
			t.Run(strings.ReplaceAll(point, "/", ", ")+" of "+name, func(t *testing.T) {
				t.Parallel()
				s := newSite(t, on)
				start := s.gateway
				if len(story.worker) == 0 {
					s.hand("hand")
				} else {
					s.gateway(nil)
					start = s.worker
				}
				if stage, ok := strings.CutPrefix(point, string(failpoint.ClaimDone)+"/"); ok {
					s.leaveDone(stage)
				}
				stopAndContinue(s, start, point, story)
			})
		}
	}
}

// leaveDone starts a worker that will die with a stage done and its message not
// acknowledged, which the next worker finds.
func (s *site) leaveDone(stage string) {
	s.worker(nil, stages(failpoint.CompleteRecorded, stage)[0]+"=kill").ending.Store(true)
}

func stopAndContinue(s *site, start func([]string, ...string) *process, point string, story story) {
	first := start(nil, point+"=stop")
	second := make(chan *process, 1)
	go func() {
		first.stopped()
		second <- start(nil)
	}()
	c := s.client()
	c.wait = stoppedWait
	story.tell(c)
	other := <-second
	first.signal(syscall.SIGCONT)
	other.quit()
	s.client().rendersAgain()
	may := story.may
	may.litter, may.some = false, true
	s.quiet(may)
}

// rendersAgain renders one more video.
func (c *client) rendersAgain() {
	c.t.Helper()
	id := c.submit(order(c.upload(), c.name+", again", nil))
	c.video(id, c.follow(id, approve))
}
