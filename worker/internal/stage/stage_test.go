package stage

import (
	"errors"
	"log/slog"
	"os"
	"testing"

	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/scratch"
)

func TestAPanicFailsTheJobAlone(t *testing.T) {
	t.Parallel()
	dir, err := scratch.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dir.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &Runner{Scratch: dir, Logger: slog.New(slog.DiscardHandler)}
	// A probe without its asset is a fault of ours, met as a nil pointer.
	res, err := r.do(t.Context(), &farm.Claim{Work: render.Work{Stage: render.StageProbe}})
	var e *render.Error
	if res != nil || !errors.As(err, &e) || e.Blame != render.BlameJob {
		t.Errorf("a stage that panics gave %v, %v", res, err)
	}
	left, err := os.ReadDir(dir.Path())
	if err != nil || len(left) != 1 { // the lock
		t.Errorf("the job's directory is still there: %v, %v", left, err)
	}
}
