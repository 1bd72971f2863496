package media

import (
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
)

// TestLogKeepsSecrets: clients see the encoder's log, but neither the words
// that a file carries nor where it lies.
func TestLogKeepsSecrets(t *testing.T) {
	t.Parallel()
	tools, dir := tools(t), t.TempDir()
	path := recipe{
		inputs: []string{picture},
		args:   x264 + "-metadata title=LINES -metadata:s:v language=SECRET -metadata:s:v title=SECRET:SECRET",
		file:   "SECRET.mkv",
	}.make(t, tools, dir, "LINES", "SECRET\nSECRET\rSECRET [error] No space left on device")
	j := small(newJob(t, tools, path, draft(), render.Policy{}), 4)
	m, err := EncodeSegment(t.Context(), j, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.LogTail) == 0 {
		t.Error("the log is empty")
	}
	for _, line := range m.LogTail {
		if strings.Contains(line, "SECRET") || strings.Contains(line, dir) || strings.Contains(line, j.Dir) || strings.Contains(line, "No space") {
			t.Errorf("%q", line)
		}
	}
	t.Logf("%s", strings.Join(m.LogTail, "\n"))
}
