package media

import (
	"bytes"
	"fmt"
	"image"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
)

// decodeRGB decodes a video in BT.709 and limited range to full-range RGB, one
// frame after the other, by an ffmpeg of the test's own.
func decodeRGB(t *testing.T, path string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "ffmpeg", "-v", "error", "-i", path, "-map", "0:v:0",
		"-vf", "scale=in_color_matrix=bt709:in_range=tv:out_range=pc:flags=bicubic+accurate_rnd+full_chroma_int,format=rgb24",
		"-fps_mode", "passthrough", "-f", "rawvideo", "-")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("decode %s: %v\n%s", path, err, stderr.String())
	}
	return out
}

// pngRGB reads a PNG's pixels, and its size in pixels and bytes.
func pngRGB(t *testing.T, path string) (pixels []byte, w, h int, size int64) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	rgba, ok := img.(*image.RGBA) // as a PNG without transparency is read
	if !ok {
		t.Fatalf("%s is a %T", path, img)
	}
	pixels = make([]byte, 0, len(rgba.Pix)/4*3)
	for i := 0; i < len(rgba.Pix); i += 4 {
		pixels = append(pixels, rgba.Pix[i:i+3]...)
	}
	return pixels, rgba.Rect.Dx(), rgba.Rect.Dy(), int64(len(b))
}

// differing is the smallest rectangle that holds every pixel in which two
// pictures of a width differ.
func differing(a, b []byte, width int) (box image.Rectangle) {
	for i := 0; i+2 < min(len(a), len(b)); i += 3 {
		if !bytes.Equal(a[i:i+3], b[i:i+3]) {
			x, y := i/3%width, i/3/width
			box = box.Union(image.Rect(x, y, x+1, y+1))
		}
	}
	return box
}

// TestPreviewAgrees: whatever is drawn, wherever and however large the video
// is, the preview's pixels are those of the same frame of a lossless render.
// The source compresses so well that no preview needs to be scaled down. Without
// a watermark all frames are rendered, to see that they differ; with one, only
// that frame, as a segment of its own.
func TestPreviewAgrees(t *testing.T) {
	t.Parallel()
	tools, dir := tools(t), t.TempDir()
	source := recipe{inputs: []string{"smptebars=size=320x180:rate=25:duration=0.12"}, args: "-vf hue=h=40*n -c:v libx264 -preset ultrafast -qp 2 -pix_fmt yuv420p", file: "bars.mp4"}.make(t, tools, dir)
	picture := filepath.Join(dir, "logo.png")
	if err := writePNG(picture, logo(t, 300, 200), png.DefaultCompression); err != nil {
		t.Fatal(err)
	}
	marks := map[render.WatermarkMode]render.Watermark{
		render.WatermarkText:  {Mode: render.WatermarkText, Text: "© Vidforge 視頻", Opacity: 0.8},
		render.WatermarkImage: {Mode: render.WatermarkImage, Image: "a_logo", Opacity: 0.6},
	}
	for _, resolution := range []render.Resolution{render.Resolution720p, render.Resolution1080p, render.Resolution4K} {
		spec := draft()
		spec.Resolution = resolution
		bare := newJob(t, tools, source, spec, render.Policy{})
		n := previewFrame(bare.Plan.Frames)
		m, err := Preview(t.Context(), bare)
		if err != nil {
			t.Fatal(err)
		}
		unmarked, w, h, _ := pngRGB(t, m.Path)
		if bw, bh := resolution.Box(); w != bw || h != bh || n == 0 {
			t.Fatalf("%s: preview of frame %d is %d×%d", resolution, n, w, h)
		}
		whole, err := bare.encodeSegment(t.Context(), 0, lossless())
		if err != nil {
			t.Fatal(err)
		}
		for i, frames, size := int64(0), decodeRGB(t, whole.Path), len(unmarked); i < bare.Plan.Frames; i++ {
			if same := bytes.Equal(frames[:size], unmarked); same != (i == n) {
				t.Fatalf("%s: the preview of frame %d equals frame %d: %t", resolution, n, i, same)
			}
			frames = frames[size:]
		}
		bare.Plan.Segments = []render.Segment{{From: n, To: n + 1, Seek: -1}}
		places := map[render.Position]image.Rectangle{
			render.PositionTopLeft:     image.Rect(0, 0, w/2, h/4),
			render.PositionTopRight:    image.Rect(w/2, 0, w, h/4),
			render.PositionBottomLeft:  image.Rect(0, h*3/4, w/2, h),
			render.PositionBottomRight: image.Rect(w/2, h*3/4, w, h),
			render.PositionCenter:      image.Rect(w/4, h/3, w*3/4, h*2/3),
		}
		for mode, mark := range marks {
			overlay, err := DrawOverlay(t.Context(), tools, mkdir(t, dir, string(mode)+string(resolution)), &mark, picture, bare.Plan.Width, bare.Plan.Height)
			if err != nil {
				t.Fatal(err)
			}
			for position, place := range places {
				t.Run(fmt.Sprintf("%s %s %s", mode, position, resolution), func(t *testing.T) {
					t.Parallel()
					j := bare
					j.Dir = t.TempDir()
					mark := mark
					mark.Position = position
					j.Spec.Watermark, j.Overlay = &mark, overlay
					p, err := Preview(t.Context(), j)
					if err != nil {
						t.Fatal(err)
					}
					preview, pw, ph, size := pngRGB(t, p.Path)
					if pw != w || ph != h || size > MaxPreview {
						t.Fatalf("the preview is %d×%d in %d bytes", pw, ph, size)
					}
					video, err := j.encodeSegment(t.Context(), 0, lossless())
					if err != nil {
						t.Fatal(err)
					}
					if frame := decodeRGB(t, video.Path); !bytes.Equal(preview, frame) {
						t.Errorf("the preview differs from frame %d in %v (%d and %d bytes)", n, differing(preview, frame, w), len(preview), len(frame))
					}
					if got := differing(preview, unmarked, w); got.Empty() || !got.In(place) {
						t.Errorf("the watermark changed %v, want something within %v", got, place)
					}
				})
			}
		}
	}
}
