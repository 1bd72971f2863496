package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/embedded/embeddedtest"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker"
)

// line is a farm with a real worker, both in this process.
type line struct {
	*farm.Farm
	tenant render.Tenant
	t      *testing.T
}

func newLine(t *testing.T) *line {
	t.Helper()
	share := embeddedtest.Servers(t)
	backends := share.Dial(t)
	l := &line{Farm: farm.New(backends.Stores, farm.Config{Logger: quiet()}), tenant: "acme", t: t}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	ready := make(chan struct{})
	wg.Go(func() {
		if err := l.Run(ctx); err != nil {
			t.Errorf("farm: %v", err)
		}
	})
	wg.Go(func() {
		err := worker.Run(ctx, worker.Config{
			Endpoints: share.Endpoints, ID: "w1", ScratchDir: t.TempDir(), Logger: quiet(),
			Ready: func() { close(ready) },
		})
		if err != nil {
			t.Errorf("worker: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	<-ready
	return l
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// clip makes a small source with sound.
func clip(t *testing.T, seconds int, size string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "clip.mp4")
	run(t, "ffmpeg", "-v", "error", "-f", "lavfi", "-i", fmt.Sprintf("testsrc2=size=%s:rate=30:duration=%d", size, seconds),
		"-f", "lavfi", "-i", fmt.Sprintf("sine=frequency=440:duration=%d", seconds),
		"-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac", file)
	return file
}

func run(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, stderr.String())
	}
	return out
}

func (l *line) put(file, mime string) *render.Asset {
	l.t.Helper()
	f, err := os.Open(file)
	if err != nil {
		l.t.Fatal(err)
	}
	defer f.Close()
	a, err := l.Upload(l.t.Context(), l.tenant, farm.Upload{Name: filepath.Base(file), MIMEType: mime, Size: -1, Body: f})
	if err != nil {
		l.t.Fatalf("upload %s: %v", file, err)
	}
	return a
}

// until watches a render up to a state.
func (l *line) until(id render.ID, want render.State) *farm.View {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 3*time.Minute)
	defer cancel()
	var last *farm.View
	done := errors.New("reached")
	err := l.Watch(ctx, l.tenant, id, func(v *farm.View) error {
		if last = v; v.Record.State == want {
			return done
		}
		return nil
	})
	if last == nil || last.Record.State != want {
		l.t.Fatalf("render %s: %v; last %+v, failure %+v", id, err, last.Record.State, last.Record.Failure)
	}
	return last
}

func (l *line) save(c *farm.Content, name string) string {
	l.t.Helper()
	r, err := c.Open(l.t.Context(), 0, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	defer r.Close()
	file := filepath.Join(l.t.TempDir(), name)
	f, err := os.Create(file)
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := io.Copy(f, r); err != nil {
		l.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		l.t.Fatal(err)
	}
	return file
}

// looked is what ffprobe says of a file.
type looked struct {
	Streams []struct {
		CodecType string `json:"codec_type"`
		CodecName string `json:"codec_name"`
		Width     int    `json:"width"`
		Height    int    `json:"height"`
		Frames    string `json:"nb_read_frames"`
		Rate      string `json:"avg_frame_rate"`
		Start     string `json:"start_time"`
		Duration  string `json:"duration"`
		PixFmt    string `json:"pix_fmt"`
	} `json:"streams"`
}

func look(t *testing.T, file string) looked {
	t.Helper()
	var l looked
	if err := json.Unmarshal(run(t, "ffprobe", "-v", "error", "-count_frames", "-show_streams", "-of", "json", file), &l); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestWorkerRendersAnApprovedWatermark(t *testing.T) {
	l := newLine(t)
	a := l.put(clip(t, 2, "320x240"), "video/mp4")
	if a.State != render.AssetReady || !a.Facts.Renderable || a.Facts.GridFrames != 60 {
		t.Fatalf("the probe found %+v", a.Facts)
	}
	text := "vidforge"
	v, _, err := l.Submit(t.Context(), l.tenant, farm.Submission{Request: render.Request{
		SourceAssetURI: a.ID.URI(), OutputFormat: "mp4", Resolution: "720p", Watermark: &render.WatermarkRequest{Text: &text}}})
	if err != nil {
		t.Fatal(err)
	}
	id := v.Record.ID
	l.until(id, render.StateAwaitingApproval)
	preview, err := l.Preview(t.Context(), l.tenant, id)
	if err != nil {
		t.Fatal(err)
	}
	if p := look(t, l.save(preview, "preview.png")); p.Streams[0].CodecName != "png" || p.Streams[0].Width != 960 {
		t.Errorf("preview %+v", p.Streams[0])
	}
	if _, err := l.Decide(t.Context(), l.tenant, id, render.Decision{Approved: true, Channel: render.ChannelTool}); err != nil {
		t.Fatal(err)
	}
	done := l.until(id, render.StateSucceeded).Record
	content, err := l.Video(t.Context(), l.tenant, id)
	if err != nil {
		t.Fatal(err)
	}
	file := l.save(content, "out.mp4")
	got := look(t, file)
	if len(got.Streams) != 2 {
		t.Fatalf("streams %+v", got.Streams)
	}
	video, audio := got.Streams[0], got.Streams[1]
	if video.CodecName != "h264" || video.Width != 960 || video.Height != 720 || video.Frames != "60" || video.PixFmt != "yuv420p" {
		t.Errorf("video %+v", video)
	}
	if audio.CodecName != "aac" {
		t.Errorf("audio %+v", audio)
	}
	if d, err := strconv.ParseFloat(audio.Duration, 64); err != nil || d < 1.95 || d > 2.1 {
		t.Errorf("the sound lasts %s s", audio.Duration)
	}
	if o := done.Output; o.Frames != 60 || o.Width != 960 || !o.WatermarkApplied || o.Encoder != "libx264" || o.SegmentsTotal != 1 || o.VideoCodec != "h264" || o.AudioCodec != "aac" {
		t.Errorf("output %+v", o)
	}
	log, err := l.Log(t.Context(), l.tenant, id)
	if err != nil {
		t.Errorf("log: %v", err)
	}
	t.Logf("log:\n%s", log)
}
