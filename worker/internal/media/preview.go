package media

import (
	"context"
	"image/png"
	"math"
	"os"
	"path/filepath"

	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

const (
	previewFile = "preview.png"
	// MaxPreview is the longest preview in bytes.
	MaxPreview = 1 << 20
	// previewLead is how many seconds before its frame a preview begins to
	// decode.
	previewLead = 8
)

// previewFrame is the frame of the grid that a preview shows: one third in,
// past titles and black.
func previewFrame(frames int64) int64 { return frames / 3 }

// Preview renders one frame of the plan, exactly as the video will have it
// before it is encoded, into a PNG of at most MaxPreview bytes; only a picture
// that would be longer however it is compressed is scaled down.
func Preview(ctx context.Context, j Job) (Made, error) {
	n := previewFrame(j.Plan.Frames)
	m, err := j.frame(ctx, n, j.previewSeek(n))
	if err != nil {
		return m, err
	}
	if err := shrink(&m, MaxPreview); err != nil {
		return m, workerFault("store the preview", err)
	}
	return m, nil
}

// previewSeek is where to begin so that frame n is seen soon: some seconds
// before it, which puts the decoder on a keyframe before that. Negative means
// from the start.
func (j *Job) previewSeek(n int64) float64 {
	at := float64(n) / j.Plan.FrameRate.Float()
	if j.Facts.WholeOnly || at < 2*previewLead {
		return -1
	}
	return float64(j.Plan.StartTicks)*j.Facts.VideoStream().TimeBase.Float() + at - previewLead
}

// frame renders frame n of the grid as a PNG.
func (j *Job) frame(ctx context.Context, n int64, seek float64) (Made, error) {
	g, err := j.graph(n, n+1, seek)
	if err != nil {
		return Made{}, err
	}
	g.rgb = true
	m := Made{Path: filepath.Join(j.Dir, previewFile), Frames: 1, Width: j.Plan.Width, Height: j.Plan.Height}
	c := j.run("preview")
	c.Inputs = []ffmpeg.Input{{Path: j.Source, Options: inputOptions(g.video, seek)}}
	c.Args = append([]string{"-copyts"}, j.videoArgs(g)...)
	c.Args = append(c.Args, "-c:v", "png", "-pred", "mixed", "-f", "image2", "-update", "1", "file:"+previewFile)
	res, err := j.Tools.Run(ctx, c)
	m.CPU, m.LogTail = res.CPU, res.Log.Tail()
	switch {
	case err != nil:
		return m, runFailed(ctx, "make the preview", res, err)
	case res.Frames() == 1:
		return m, nil
	case seek >= 0: // the frame shown here began long before
		return j.frame(ctx, n, -1)
	default:
		return m, sourceFault("The frame for the preview could not be decoded; the file is damaged or cut off.")
	}
}

// pressable is how much longer than allowed, as a factor, a PNG may be for it
// to be worth compressing it harder before it is scaled down: the best that
// deflate can do saves about so much.
const pressable = 1.5

// shrink makes a PNG at most limit bytes long: compressed as well as it can be,
// pixel for pixel, if that may do, else scaled down. Colours are never reduced:
// a person decides by them.
func shrink(m *Made, limit int64) error {
	s, err := os.Stat(m.Path)
	if err != nil || s.Size() <= limit {
		return err //nolint:wrapcheck // a path error says it all
	}
	img, err := readPNG(m.Path)
	if err != nil {
		return err
	}
	if float64(s.Size()) <= pressable*float64(limit) {
		if err := writePNG(m.Path, img, png.BestCompression); err != nil {
			return err
		}
		if s, err = os.Stat(m.Path); err != nil {
			return err //nolint:wrapcheck // a path error says it all
		}
	}
	width, height, part := m.Width, m.Height, 1.0
	for s.Size() > limit && m.Width > 1 && m.Height > 1 {
		// Bytes go roughly with pixels.
		part *= max(0.5, math.Sqrt(float64(limit)/float64(s.Size()))*0.97)
		m.Width, m.Height = max(1, int(float64(width)*part)), max(1, int(float64(height)*part))
		if err := writePNG(m.Path, resize(img, img.Bounds(), m.Width, m.Height), png.BestCompression); err != nil {
			return err
		}
		if s, err = os.Stat(m.Path); err != nil {
			return err //nolint:wrapcheck // a path error says it all
		}
	}
	return nil
}
