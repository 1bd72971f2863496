package programs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Hold is an ffmpeg in front of the real one. While it is on, a video encode
// tells its first frame again and again and waits, so that a test that acts in the midst
// of an encode does not race against its end.
type Hold struct {
	// Env is the environment of the programs that are to find it.
	Env []string

	t    testing.TB
	file string
}

// holdScript stands for ffmpeg. What is no video encode, such as a question to
// the program, goes through at once.
const holdScript = `#!/bin/sh
case " $* " in
*" libx264 "* | *" libvpx-vp9 "*)
	while [ -e '%[1]s' ]; do
		printf 'frame=1\nprogress=continue\n'
		: >>'%[1]s.waits'
		sleep 0.1
	done
	;;
esac
exec '%[2]s' "$@"
`

// NewHold makes a hold, not yet on, for the programs that get its Env.
func NewHold(t testing.TB) *Hold {
	t.Helper()
	ffmpeg, err := exec.LookPath("ffmpeg")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if strings.ContainsRune(dir+ffmpeg, '\'') {
		t.Fatalf("%q or %q cannot stand in a script", dir, ffmpeg)
	}
	h := &Hold{t: t, file: filepath.Join(dir, "hold"), Env: []string{"PATH=" + dir + string(os.PathListSeparator) + os.Getenv("PATH")}}
	if err := os.WriteFile(filepath.Join(dir, "ffmpeg"), fmt.Appendf(nil, holdScript, h.file, ffmpeg), 0o700); err != nil {
		t.Fatal(err)
	}
	return h
}

// On holds the video encodes that begin from now on.
func (h *Hold) On() {
	h.t.Helper()
	if err := os.WriteFile(h.file, nil, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// Waits waits until an encode waits.
func (h *Hold) Waits() {
	h.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) { // a script's sign in another process
		switch _, err := os.Stat(h.file + ".waits"); {
		case err == nil:
			return
		case !errors.Is(err, fs.ErrNotExist):
			h.t.Fatal(err)
		case time.Now().After(deadline):
			h.t.Fatalf("no encode began in %s", patience)
		}
	}
}

// Release lets the encodes go on, those that wait and those to come.
func (h *Hold) Release() {
	h.t.Helper()
	if err := os.Remove(h.file); err != nil {
		h.t.Fatal(err)
	}
}
