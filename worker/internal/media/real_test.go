package media

import (
	"math"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
)

// TestRealFiles renders media that no one here made, as their table says.
func TestRealFiles(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	for _, c := range []struct {
		name          string
		frames        int64
		rate          render.Rational
		seconds       float64 // of the output, within a frame
		width, height int
		audio         string
	}{
		{"rabbit320.mp4", 234, render.Rational{Num: 30, Den: 1}, 7.8, 960, 720, "aac"},
		{"rabbit320.webm", 234, render.Rational{Num: 30, Den: 1}, 7.8, 960, 720, "aac"},
		{"cockatoo.mp4", 280, render.Rational{Num: 20, Den: 1}, 14, 1280, 720, "aac"},
		{"phone.3gp", 226, render.Rational{Num: 15, Den: 1}, 15.04, 960, 720, "aac"},
		{"camera-yuvj420p.mp4", 51, render.Rational{Num: 25, Den: 1}, 2.04, 1270, 720, "aac"},
		{"foreman-hevc.mp4", 248, render.Rational{Num: 24000, Den: 1001}, 10.344, 1280, 720, ""},
		{"bbb_sunflower_QCIF_30fps_h263_noaudio_1f.3gp", 1, render.Rational{Num: 30, Den: 1}, 1.0 / 30, 1080, 720, ""},
		{"hevc_white_frame.mp4", 1, render.Rational{Num: 25, Den: 1}, 0.04, 960, 720, ""},
		{"tiny_av1.mp4", 1, render.Rational{Num: 24, Den: 1}, 1.0 / 24, 720, 720, ""},
		{"minimal.mp4", 1, render.Rational{Num: 25, Den: 1}, 0.0625, 960, 720, "aac"},
		{"h264_white_frame_sar_16_9.mp4", 1, render.Rational{Num: 25, Den: 1}, 0.04, 1280, 540, ""},
		{"video_colr_nclx_hdr10.mp4", 3, render.Rational{Num: 25, Den: 1}, 0.12, 720, 720, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t, tools, realFile(t, c.name), draft(), render.Policy{})
			if j.Facts.GridRate != c.rate || j.Facts.GridFrames != c.frames {
				t.Errorf("grid: %d frames at %v, want %d at %v", j.Facts.GridFrames, j.Facts.GridRate, c.frames, c.rate)
			}
			if c.frames > 50 && !strings.HasPrefix(c.name, "rabbit") {
				j.Spec.Quality = fastest
			}
			m, out, err := renderAll(t.Context(), j)
			if err != nil {
				t.Fatalf("render: %v (log %q)", err, m.LogTail)
			}
			if out.Frames != c.frames || out.Width != c.width || out.Height != c.height || out.AudioCodec != c.audio || out.VideoCodec != "h264" {
				t.Errorf("output: %+v", out)
			}
			if d := out.Duration.Seconds(); math.Abs(d-c.seconds) > 1/c.rate.Float() {
				t.Errorf("output lasts %.3f s, want %.3f s", d, c.seconds)
			}
			if c.frames > 3 && c.name != "rabbit320.mp4" {
				return
			}
			preview, err := Preview(t.Context(), j)
			if err != nil {
				t.Fatalf("preview: %v", err)
			}
			if w, h, err := pngSize(preview.Path); err != nil || w != preview.Width || h != preview.Height {
				t.Errorf("preview is %d×%d, said to be %d×%d: %v", w, h, preview.Width, preview.Height, err)
			}
		})
	}
}

// TestRealFilesRefused probes media that cannot be rendered.
func TestRealFilesRefused(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	for name, reason := range map[string]string{
		"invalid_userdata.mp4":   "can be decoded",
		"chunk_out_of_range.mp4": "damaged",
		"short-cenc.mp4":         "encrypted",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := probeFile(t, tools, realFile(t, name))
			if f.Renderable || f.Code != render.CodeUnsupportedCodec || !strings.Contains(f.Reason, reason) {
				t.Errorf("got renderable %t, %s, %q; want %q", f.Renderable, f.Code, f.Reason, reason)
			}
		})
	}
}
