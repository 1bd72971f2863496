package media

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// tools finds ffmpeg, which these tests need.
func tools(t *testing.T) *ffmpeg.Tools {
	t.Helper()
	tools, err := ffmpeg.Find(t.Context())
	if err != nil {
		t.Fatalf("these tests run the real ffmpeg: %v", err)
	}
	return tools
}

// realFile names a file of the folder VIDFORGE_TEST_MEDIA.
func realFile(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("VIDFORGE_TEST_MEDIA")
	if dir == "" {
		t.Skip("VIDFORGE_TEST_MEDIA names no folder of real files")
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("VIDFORGE_TEST_MEDIA has no %s", name)
	}
	return path
}

func probeFile(t *testing.T, tools *ffmpeg.Tools, path string) *render.Facts {
	t.Helper()
	f, err := Probe(t.Context(), tools, t.TempDir(), path)
	if err != nil {
		t.Fatalf("probe %s: %v", filepath.Base(path), err)
	}
	return f
}

// draft is the cheapest spec.
func draft() render.Spec {
	return render.Spec{Format: render.FormatMP4, Resolution: render.Resolution720p, Quality: render.QualityDraft}
}

// newJob plans a render of a file; it fails the test when the file cannot be
// rendered.
func newJob(t *testing.T, tools *ffmpeg.Tools, path string, s render.Spec, p render.Policy) Job {
	t.Helper()
	f := probeFile(t, tools, path)
	if !f.Renderable {
		t.Fatalf("%s is not renderable: %s %s", filepath.Base(path), f.Code, f.Reason)
	}
	return Job{Tools: tools, Dir: t.TempDir(), Source: path, Facts: f, Spec: s, Plan: render.MakePlan(f, s, 0, p)}
}

func mkdir(t *testing.T, parts ...string) string {
	t.Helper()
	dir := filepath.Join(parts...)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}
