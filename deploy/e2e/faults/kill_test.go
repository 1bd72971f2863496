package faults

import (
	"slices"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/e2e/servers"
	"github.com/vidforge/vidforge/pkg/failpoint"
)

// A new point without a story, or a story about a point that is no more, fails.
func TestEveryPointHasItsStory(t *testing.T) {
	t.Parallel()
	var told []string
	for _, story := range stories() {
		told = append(told, slices.Concat(story.gateway, story.worker)...)
	}
	slices.Sort(told)
	want := failpoint.Names()
	slices.Sort(want)
	if !slices.Equal(told, want) {
		t.Errorf("the stories meet\n%q\nthe points are\n%q", told, want)
	}
}

// Killed at each step in turn, and started again as a supervisor would, every
// render comes to one end with one video, and nothing else is left.
func TestKilledAtEachStep(t *testing.T) {
	on := servers.Start(t)
	for name, story := range stories() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, on)
			c := s.client()
			if story.cast != nil {
				story.cast(c)
				s.quiet(story.may)
				return
			}
			dying := s.mortals(story)
			story.tell(c)
			// What another process was quicker to do, or does in its own time,
			// is met by a later render.
			for range extraTellings {
				if len(dying.unmet(unmetWait)) == 0 {
					break
				}
				story.tell(s.client())
			}
			if left := dying.unmet(time.Minute); len(left) > 0 {
				t.Errorf("never died at %q", left)
			}
			s.quiet(story.may)
		})
	}
}

const (
	extraTellings = 4
	// unmetWait is time enough for what comes right after a render's end.
	unmetWait = 5 * time.Second
)

// mortals starts the story's program that dies, and the other one.
func (s *site) mortals(story story) *mortal {
	if len(story.worker) == 0 {
		s.hand("hand")
		return newMortal(s.t, story.gateway, func(arms []string) *process { return s.gateway(nil, arms...) })
	}
	s.gateway(nil)
	return newMortal(s.t, story.worker, func(arms []string) *process { return s.worker(nil, arms...) })
}
