// Package encoder knows how frames become H.264 and sound becomes AAC: the
// presets of each quality as data, which encoder this machine really has, and
// the arguments for it.
package encoder

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// X264 is the software encoder.
const X264 = "libx264"

// ErrUnknown is returned for an encoder that this version cannot drive.
var ErrUnknown = errors.New("unknown encoder")

// Preset is what a quality means.
type Preset struct {
	// X264Preset and CRF trade time and size against fidelity.
	X264Preset string
	CRF        int
	// AudioKbps is the bit rate of stereo sound.
	AudioKbps int
}

// PresetOf returns the preset of a quality; an unknown one is standard.
func PresetOf(q render.Quality) Preset {
	switch q {
	case render.QualityDraft:
		return Preset{X264Preset: "veryfast", CRF: 26, AudioKbps: 128}
	case render.QualityHigh:
		return Preset{X264Preset: "medium", CRF: 20, AudioKbps: 192}
	default:
		return Preset{X264Preset: "veryfast", CRF: 23, AudioKbps: 160}
	}
}

// keyframeSeconds is the longest distance between two keyframes: what a player
// decodes at most to show a place that was jumped to.
const keyframeSeconds = 2

// Video returns the arguments of a video encoder for one segment. Equal
// arguments give equal stream headers, which joining without re-encoding
// needs. threads 0 leaves the number to the encoder.
func Video(name string, q render.Quality, rate render.Rational, threads int) ([]string, error) {
	if name != X264 {
		return nil, fmt.Errorf("%w %q", ErrUnknown, name)
	}
	p := PresetOf(q)
	args := []string{
		"-c:v", X264,
		"-preset", p.X264Preset,
		"-crf", strconv.Itoa(p.CRF),
		"-profile:v", "high",
		"-g", strconv.Itoa(max(1, int(math.Round(rate.Float()*keyframeSeconds)))),
		"-flags:v", "+cgop",
		"-x264-params", "open-gop=0",
	}
	if threads > 0 {
		args = append(args, "-threads:v", strconv.Itoa(threads))
	}
	return args, nil
}

// Audio returns the arguments of the AAC encoder for a source with that many
// channels (0: unknown).
func Audio(q render.Quality, channels int) []string {
	kbps := PresetOf(q).AudioKbps
	switch {
	case channels == 1:
		kbps /= 2
	case channels > 2:
		kbps = kbps * 5 / 2
	}
	return []string{"-c:a", "aac", "-b:a", strconv.Itoa(kbps) + "k"}
}

// Select names the encoder that this machine renders with.
func Select(t *ffmpeg.Tools) (string, error) {
	if !t.HasEncoder(X264) {
		return "", fmt.Errorf("select encoder: this ffmpeg (%s) was built without %s", t.Version, X264)
	}
	return X264, nil
}

// The try-encode: long enough for B-frames and lookahead, small enough for
// every machine.
const (
	tryFrames  = 60
	tryTimeout = 10 * time.Second
	tryFile    = "encoder-try.mp4"
)

// Try really encodes a short picture with the encoder, in dir, and decodes it
// back. That an encoder is listed proves nothing.
func Try(ctx context.Context, t *ffmpeg.Tools, dir, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, tryTimeout, fmt.Errorf("encoder %s took longer than %s", name, tryTimeout))
	defer cancel()
	args, err := Video(name, render.QualityDraft, render.Rational{Num: 30, Den: 1}, 0)
	if err != nil {
		return fmt.Errorf("try encoder: %w", err)
	}
	made, err := t.Run(ctx, ffmpeg.Cmd{
		Name:   "try encoder",
		Dir:    dir,
		Inputs: []ffmpeg.Input{{Path: "testsrc2=size=640x360:rate=30", Formats: ffmpeg.CanvasFormats, Format: "lavfi"}},
		Args: append(append([]string{"-frames:v", strconv.Itoa(tryFrames), "-pix_fmt", "yuv420p"}, args...),
			"-f", "mp4", "file:"+tryFile),
	})
	if err != nil {
		return fmt.Errorf("try encoder %s: %w", name, err)
	}
	read, err := t.Run(ctx, ffmpeg.Cmd{
		Name:   "try encoder",
		Dir:    dir,
		Inputs: []ffmpeg.Input{{Path: filepath.Join(dir, tryFile), Options: []string{"-err_detect", "explode"}}},
		Args:   []string{"-xerror", "-map", "0:v:0", "-fps_mode", "passthrough", "-f", "null", "-"},
	})
	if err != nil {
		return fmt.Errorf("try encoder %s: decode its output: %w", name, err)
	}
	if made.Frames() != tryFrames || read.Frames() != tryFrames {
		return fmt.Errorf("try encoder %s: %d of %d frames encoded, %d decoded", name, made.Frames(), tryFrames, read.Frames())
	}
	return nil
}
