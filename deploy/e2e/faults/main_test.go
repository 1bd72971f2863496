package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// built is what TestMain made for all tests.
var built struct {
	dir string // with vidforge-gateway and vidforge-worker
	// clip is a source of clipFrames frames with sound.
	clip []byte
}

// clipFrames is 1 s; small, because every test renders it a few times over.
const clipFrames = 10

// patience bounds each wait of these tests; what they wait for takes seconds on
// an idle machine.
const patience = 5 * time.Minute

// atOnce is how many scenarios run at the same time: most of a scenario is
// waiting for a dead process's lease and message to run out.
const atOnce = "12"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	if built.dir, err = os.MkdirTemp("", "vidforge-faults-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(built.dir)) }()
	clip := filepath.Join(built.dir, "clip.mp4")
	for _, cmd := range [][]string{
		{"go", "build", "-tags", "failpoint", "-ldflags=-s -w", "-o", built.dir + "/", "github.com/vidforge/vidforge/gateway/cmd/vidforge-gateway", "github.com/vidforge/vidforge/worker/cmd/vidforge-worker"},
		{
			"ffmpeg", "-v", "error", "-f", "lavfi", "-i", fmt.Sprintf("testsrc2=size=64x64:rate=%d:duration=1", clipFrames),
			"-f", "lavfi", "-i", "sine=duration=1", "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac", clip,
		},
	} {
		if out, err := exec.CommandContext(context.Background(), cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			return 1, fmt.Errorf("%v: %w: %s", cmd, err, out)
		}
	}
	if built.clip, err = os.ReadFile(clip); err != nil {
		return 1, err
	}
	return m.Run(), nil
}
