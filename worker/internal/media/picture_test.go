package media

import (
	"context"
	"errors"
	"fmt"
	"image"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// frameOf renders frame n of a job.
func frameOf(t *testing.T, j Job, n int64) image.Image {
	t.Helper()
	m, err := j.frame(t.Context(), n, -1)
	if err != nil {
		t.Fatalf("frame %d: %v\n%s", n, err, strings.Join(m.LogTail, "\n"))
	}
	img, err := readPNG(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	if img.Bounds().Dx() != j.Plan.Width || img.Bounds().Dy() != j.Plan.Height {
		t.Fatalf("frame of %v, planned was %d×%d", img.Bounds(), j.Plan.Width, j.Plan.Height)
	}
	return img
}

// colour is the mean of a part of a picture, 0 to 255 each.
func colour(img image.Image, part image.Rectangle) (c [3]float64) {
	for y := part.Min.Y; y < part.Max.Y; y++ {
		for x := part.Min.X; x < part.Max.X; x++ {
			r, g, b, _ := img.At(x, y).RGBA()
			c[0], c[1], c[2] = c[0]+float64(r)/257, c[1]+float64(g)/257, c[2]+float64(b)/257
		}
	}
	for i := range c {
		c[i] /= float64(part.Dx() * part.Dy())
	}
	return c
}

func far(a, b [3]float64, most float64) bool {
	for i := range a {
		if math.Abs(a[i]-b[i]) > most {
			return true
		}
	}
	return false
}

// TestPreviewEqualsRender compares the preview with the same frame of a
// lossless render.
func TestPreviewEqualsRender(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	for _, name := range []string{"variable rate", "transport stream with start time and open GOPs", "full range, mute", "interlaced, mute"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := small(newJob(t, tools, awkwardSource(t, name).make(t, tools, t.TempDir()), draft(), render.Policy{}), 3)
			j.Spec.Watermark = textMark("Mark")
			j.Spec.Watermark.Opacity = 0.7
			var err error
			if j.Overlay, err = DrawOverlay(t.Context(), tools, j.Dir, j.Spec.Watermark, "", j.Plan.Width, j.Plan.Height); err != nil {
				t.Fatal(err)
			}
			p, err := Preview(t.Context(), j)
			if err != nil {
				t.Fatal(err)
			}
			m, err := j.encodeSegment(t.Context(), 0, lossless())
			if err != nil {
				t.Fatal(err)
			}
			const rgb = "scale=in_color_matrix=bt709:in_range=tv:out_range=pc:flags=bicubic+accurate_rnd+full_chroma_int,format=rgb24"
			video := frameHashes(t, tools, m.Path, "v:0", "-vf", rgb)
			dir := t.TempDir()
			if _, err := tools.Run(t.Context(), ffmpeg.Cmd{Name: "hash", Dir: dir, Inputs: []ffmpeg.Input{pictureInput(p.Path, "png")},
				Args: []string{"-f", "framehash", "-hash", "md5", "file:h"}}); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(filepath.Join(dir, "h"))
			if err != nil {
				t.Fatal(err)
			}
			if want := video[previewFrame(j.Plan.Frames)]; !strings.Contains(string(b), want) {
				t.Errorf("the preview is another picture than frame %d", previewFrame(j.Plan.Frames))
			}
		})
	}
}

// TestPreviewSeeks takes a preview far into a source, where reading from the
// start would take long, and expects the same picture.
func TestPreviewSeeks(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	path := recipe{inputs: []string{"testsrc2=size=64x48:rate=10:duration=60"}, args: x264 + "-g 50 -output_ts_offset 100", file: "long.ts"}.make(t, tools, t.TempDir())
	j := small(newJob(t, tools, path, draft(), render.Policy{}), 4)
	n := previewFrame(j.Plan.Frames)
	seek := j.previewSeek(n)
	if want := j.Facts.Start.Float() + 20 - previewLead; math.Abs(seek-want) > 0.2 {
		t.Fatalf("seeks to %v, want about %v", seek, want)
	}
	from, err := j.frame(t.Context(), n, -1)
	if err != nil {
		t.Fatal(err)
	}
	a, err := os.ReadFile(from.Path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Preview(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(p.Path)
	if err != nil {
		t.Fatal(err)
	}
	if string(a) != string(b) {
		t.Error("seeking shows another frame")
	}
	// A seek that lands behind the frame falls back to the start.
	if m, err := j.frame(t.Context(), n, seek+40); err != nil || m.Frames != 1 {
		t.Errorf("a seek too far: %v", err)
	}
}

func TestPreviewShrinks(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	path := recipe{inputs: []string{"color=gray:size=1280x720:rate=25:duration=0.04"}, args: "-vf noise=alls=100:allf=t -c:v libx264 -preset ultrafast -qp 5 -pix_fmt yuv420p", file: "noise.mp4"}.make(t, tools, t.TempDir())
	j := newJob(t, tools, path, draft(), render.Policy{})
	p, err := Preview(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	s, err := os.Stat(p.Path)
	if err != nil {
		t.Fatal(err)
	}
	w, h, err := pngSize(p.Path)
	if err != nil || s.Size() > MaxPreview || w != p.Width || h != p.Height || w >= 1280 || math.Abs(float64(w)/float64(h)-16.0/9) > 0.01 {
		t.Errorf("%d bytes, %d×%d, said to be %d×%d: %v", s.Size(), w, h, p.Width, p.Height, err)
	}
}

// TestRotated turns a picture that is red on the left and blue on the right.
func TestRotated(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	const halves = "color=red:size=80x120:rate=25:duration=0.2[a];color=blue:size=80x120:rate=25:duration=0.2[b];[a][b]hstack"
	for _, degrees := range []int{90, 180, 270} {
		t.Run(strconv.Itoa(degrees), func(t *testing.T) {
			t.Parallel()
			path := recipe{inputs: []string{halves}, args: x264, file: "r.mp4"}.make(t, tools, t.TempDir())
			rotateMP4(t, path, degrees)
			j := small(newJob(t, tools, path, draft(), render.Policy{}), 4)
			if j.Facts.VideoStream().Rotation != degrees {
				t.Fatalf("rotation %d", j.Facts.VideoStream().Rotation)
			}
			if portrait := j.Plan.Height > j.Plan.Width; portrait != (degrees%180 != 0) {
				t.Fatalf("planned %d×%d", j.Plan.Width, j.Plan.Height)
			}
			img := frameOf(t, j, 2)
			w, h := j.Plan.Width, j.Plan.Height
			parts := map[int][2]image.Rectangle{ // red, blue
				90:  {image.Rect(0, 0, w, h/2-4), image.Rect(0, h/2+4, w, h)},
				180: {image.Rect(w/2+4, 0, w, h), image.Rect(0, 0, w/2-4, h)},
				270: {image.Rect(0, h/2+4, w, h), image.Rect(0, 0, w, h/2-4)},
			}[degrees]
			if far(colour(img, parts[0]), [3]float64{254, 0, 0}, 8) || far(colour(img, parts[1]), [3]float64{0, 0, 254}, 8) {
				t.Errorf("red part is %v, blue part is %v", colour(img, parts[0]), colour(img, parts[1]))
			}
			segments, _ := encodeAll(t, j)
			if _, _, err := Assemble(t.Context(), j, segments, ""); err != nil { // checks that nothing turns it again
				t.Error(err)
			}
		})
	}
}

// TestColours renders the same colours from sources that store them
// differently.
func TestColours(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	const orange = "color=0xC86432:size=64x48:rate=25:duration=0.12"
	want := [3]float64{0xc8, 0x64, 0x32}
	for name, c := range map[string]struct {
		args string
		most float64
	}{
		"untagged, small":  {"-pix_fmt yuv420p", 4},
		"bt601":            {"-vf scale=out_color_matrix=bt601 -pix_fmt yuv420p -colorspace smpte170m", 4},
		"bt709":            {"-vf scale=out_color_matrix=bt709 -pix_fmt yuv420p -colorspace bt709 -color_primaries bt709 -color_trc bt709", 4},
		"untagged, large":  {"-vf scale=1280:720:out_color_matrix=bt709 -pix_fmt yuv420p", 4},
		"full range":       {"-vf scale=out_range=pc -pix_fmt yuvj420p -color_range pc", 4},
		"full range bt709": {"-vf scale=out_range=pc:out_color_matrix=bt709 -pix_fmt yuvj420p -color_range pc -colorspace bt709", 4},
		"4:4:4":            {"-pix_fmt yuv444p", 4},
		"ten bits":         {"-pix_fmt yuv420p10le", 4},
		"rgb":              {"-c:v libx264rgb -pix_fmt rgb24", 4},
		"wide, not hdr":    {"-vf zscale=matrixin=bt709:matrix=2020_ncl:primariesin=709:primaries=2020:transferin=709:transfer=2020_10:rangein=limited:range=limited,format=yuv420p10le -colorspace bt2020nc -color_primaries bt2020 -color_trc bt2020-10", 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := "-c:v libx264 -preset ultrafast -qp 1 " + c.args
			path := recipe{inputs: []string{orange}, args: args, file: "c.mkv"}.make(t, tools, t.TempDir())
			j := small(newJob(t, tools, path, draft(), render.Policy{}), 4)
			img := frameOf(t, j, 1)
			if got := colour(img, img.Bounds()); far(got, want, c.most) {
				t.Errorf("got %.1f, want %v", got, want)
			}
		})
	}
}

// TestToneMapped renders HDR grey: neither left alone, which looks dull, nor
// blown out.
func TestToneMapped(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	for transfer, tag := range map[string]string{"smpte2084": hdr10, "arib-std-b67": hdrHLG} {
		path := recipe{
			inputs: []string{"color=gray:size=64x48:rate=25:duration=0.12"},
			args:   "-c:v libx264 -preset ultrafast -pix_fmt yuv420p10le -color_primaries bt2020 -color_trc " + transfer + " -colorspace bt2020nc -color_range tv",
			file:   "hdr.mp4",
		}.make(t, tools, t.TempDir())
		j := small(newJob(t, tools, path, draft(), render.Policy{}), 4)
		if got := j.Facts.VideoStream().HDR; got != tag {
			t.Errorf("%s is %q", transfer, got)
		}
		img := frameOf(t, j, 1)
		c := colour(img, img.Bounds())
		if far(c, [3]float64{c[0], c[0], c[0]}, 4) || c[0] < 60 || c[0] > 220 || math.Abs(c[0]-128) < 3 {
			t.Errorf("%s: half of the signal becomes %.1f", transfer, c)
		}
	}
}

// TestSizeChanges renders a source whose picture changes its size in
// mid-stream, with a watermark, which must stay.
func TestSizeChanges(t *testing.T) {
	t.Parallel()
	tools, dir := tools(t), t.TempDir()
	var whole []byte
	for i, size := range []string{"160x120", "320x180", "96x96"} {
		name := fmt.Sprintf("part%d.ts", i)
		path := recipe{inputs: []string{"testsrc2=size=" + size + ":rate=25:duration=1"}, args: fmt.Sprintf("%s-bf 0 -output_ts_offset %d -f mpegts", x264, 10+i), file: name}.make(t, tools, dir)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		whole = append(whole, b...)
	}
	path := filepath.Join(dir, "changes.ts")
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	j := small(newJob(t, tools, path, draft(), render.Policy{}), 3)
	if j.Plan.Frames != 75 {
		t.Fatalf("%d frames", j.Plan.Frames)
	}
	plain := j
	j.Spec.Watermark = textMark("Mark")
	var err error
	if j.Overlay, err = DrawOverlay(t.Context(), tools, j.Dir, j.Spec.Watermark, "", j.Plan.Width, j.Plan.Height); err != nil {
		t.Fatal(err)
	}
	plain.Dir = t.TempDir()
	marked, bare := frameOf(t, j, 60), frameOf(t, plain, 60)
	corner := image.Rect(j.Plan.Width*2/3, j.Plan.Height*5/6, j.Plan.Width, j.Plan.Height)
	if !far(colour(marked, corner), colour(bare, corner), 3) {
		t.Error("the watermark is lost after the change")
	}
	segments, _ := encodeAll(t, j)
	hashes := frameHashes(t, tools, segments[0], "v:0")
	if slices.Sort(hashes); len(slices.Compact(hashes)) < 70 {
		t.Errorf("of 75 frames only %d differ", len(slices.Compact(hashes)))
	}
}

// TestBeginsBetweenKeyframes renders a recording that begins in the middle.
func TestBeginsBetweenKeyframes(t *testing.T) {
	t.Parallel()
	tools, dir := tools(t), t.TempDir()
	path := recipe{inputs: []string{"testsrc2=size=160x120:rate=25:duration=4"}, args: x264 + "-g 50 -b:v 400k -f mpegts", file: "all.ts"}.make(t, tools, dir)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "middle.ts")
	if err := os.WriteFile(path, b[len(b)/8/188*188:], 0o600); err != nil {
		t.Fatal(err)
	}
	j := small(newJob(t, tools, path, draft(), render.Policy{}), 4)
	segments, _ := encodeAll(t, j)
	if _, _, err := Assemble(t.Context(), j, segments, ""); err != nil {
		t.Error(err)
	}
}

// TestBrokenSource: a source that decodes to less than its index promises is
// the source's fault, and never a short success.
func TestBrokenSource(t *testing.T) {
	t.Parallel()
	tools, dir := tools(t), t.TempDir()
	path := recipe{inputs: []string{"testsrc2=size=160x120:rate=25:duration=4"}, args: x264 + "-g 12 -bf 0 -movflags +faststart", file: "s.mp4"}.make(t, tools, dir)
	j := small(newJob(t, tools, path, draft(), render.Policy{}), 4)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := len(b) * 5 / 10; i < len(b); i++ {
		b[i] = 0
	}
	j.Source = filepath.Join(dir, "broken.mp4")
	if err := os.WriteFile(j.Source, b, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = EncodeSegment(t.Context(), j, 0)
	var e *render.Error
	if !errors.As(err, &e) || e.Code != render.CodeUnsupportedCodec || e.Blame != render.BlameSource || !strings.Contains(e.Message, "of 100 frames") {
		t.Errorf("got %v", err)
	}
}

// TestVerifyDamage: a few flipped bytes in a segment are found.
func TestVerifyDamage(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	path := recipe{inputs: []string{picture}, args: x264, file: "s.mp4"}.make(t, tools, t.TempDir())
	j := small(newJob(t, tools, path, draft(), render.Policy{}), 4)
	m, err := EncodeSegment(t.Context(), j, 0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(b), "mdat") + 1500
	for i := range 60 {
		b[at+i*7] ^= 0x55
	}
	if err := os.WriteFile(m.Path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if res, err := verifyDecodes(t.Context(), tools, j.Dir, m.Path); err == nil && res.Frames() == j.Plan.Frames {
		t.Error("the damage was not found")
	}
	// The join of other frames than the plan's is found, too.
	short := j
	short.Plan.Frames, short.Plan.Segments = 40, []render.Segment{{From: 0, To: 40, Seek: -1}}
	if _, _, err := Assemble(t.Context(), short, []string{m.Path}, ""); render.CodeOf(err) != render.CodeRenderFailed {
		t.Errorf("joined: %v", err)
	}
}

// TestCancelled: the context's own error comes back, unclassified.
func TestCancelled(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	path := recipe{inputs: []string{picture, tone}, args: x264 + "-c:a aac", file: "s.mp4"}.make(t, tools, t.TempDir())
	j := newJob(t, tools, path, draft(), render.Policy{})
	why := errors.New("cancelled by the client")
	ctx, cancel := context.WithCancelCause(t.Context())
	j.Progress = func(ffmpeg.Progress) { cancel(why) }
	if _, err := EncodeSegment(ctx, j, 0); !errors.Is(err, why) || render.CodeOf(err) != "" {
		t.Errorf("got %v", err)
	}
	if _, err := Probe(ctx, tools, j.Dir, path); !errors.Is(err, why) {
		t.Errorf("probe: got %v", err)
	}
}

// TestStarved: a machine without memory is the worker's fault.
func TestStarved(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	path := recipe{inputs: []string{picture}, args: x264, file: "s.mp4"}.make(t, tools, t.TempDir())
	j := newJob(t, tools, path, draft(), render.Policy{})
	poor := *tools
	poor.FFmpeg = filepath.Join(j.Dir, "ffmpeg")
	if err := os.WriteFile(poor.FFmpeg, []byte("#!/bin/sh\necho '[error] x: No space left on device' >&2; exit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	j.Tools = &poor
	_, err := EncodeSegment(t.Context(), j, 0)
	var e *render.Error
	if !errors.As(err, &e) || e.Blame != render.BlameWorker || e.Code != render.CodeRenderFailed {
		t.Errorf("got %v", err)
	}
}
