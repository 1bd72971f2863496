package media

import (
	"errors"
	"syscall"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// A file that ffmpeg may not write to its end, at each place where it writes
// one, is a worker's fault: another may have the room, and nothing of it passes
// for a result.
func TestFileTooLong(t *testing.T) {
	t.Parallel()
	free := tools(t)
	source := awkwardSource(t, "plain").make(t, free, t.TempDir())
	whole := newJob(t, free, source, draft(), render.Policy{})
	made, err := EncodeSegment(t.Context(), whole, 0)
	if err != nil {
		t.Fatal(err)
	}
	sound, err := EncodeAudio(t.Context(), whole)
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(Job) error{
		"segment":  func(j Job) error { _, err := EncodeSegment(t.Context(), j, 0); return err },
		"sound":    func(j Job) error { _, err := EncodeAudio(t.Context(), j); return err },
		"assemble": func(j Job) error { _, _, err := Assemble(t.Context(), j, []string{made.Path}, sound.Path); return err },
	} {
		limited := *free
		limited.Limits.FileSize = 2 << 10
		j := whole
		j.Tools = &limited
		if name != "assemble" { // which reads what is there
			j.Dir = t.TempDir()
		}
		err := call(j)
		var exit *ffmpeg.ExitError
		if e := render.AsError(err); e.Blame != render.BlameWorker || !errors.As(err, &exit) || exit.Signal != syscall.SIGXFSZ && exit.Code <= 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
