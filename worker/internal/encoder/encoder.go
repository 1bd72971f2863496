// Package encoder knows how frames become H.264 or VP9 and sound becomes AAC or
// Opus: the presets of each quality as data, which encoders this machine really
// has, and the arguments for them.
package encoder

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// The software encoders.
const (
	x264 = "libx264"
	vp9  = "libvpx-vp9"
	aac  = "aac"
	opus = "libopus"
)

// ErrUnknown is returned for an encoder that this version cannot drive, or that
// this machine does not have.
var ErrUnknown = errors.New("unknown encoder")

// keyframeSeconds is the longest distance between two keyframes: what a player
// decodes at most to show a place that was jumped to.
const keyframeSeconds = 2

// Picture is what the arguments of a video encoder depend on. Equal ones give
// equal stream headers, which joining without re-encoding needs.
type Picture struct {
	Quality       render.Quality
	Width, Height int
	Rate          render.Rational
	// Threads is the number of the encoder's threads; 0 leaves it to the
	// encoder.
	Threads int
}

// Video returns the arguments of a software encoder for one segment; those of a
// device come from its Offer.
func Video(name string, p Picture) ([]string, error) {
	preset := PresetOf(p.Quality)
	args := []string{"-c:v", name}
	switch name {
	case x264:
		l := levelOf(p.Width, p.Height, p.Rate)
		args = append(args,
			"-preset", preset.X264.Preset,
			"-crf", strconv.Itoa(preset.X264.CRF),
			"-profile:v", "high",
			"-level:v", l.name,
			"-maxrate:v", kbps(l.highKbps()),
			"-bufsize:v", kbps(l.highBufferKbits()),
			"-flags:v", "+cgop",
			"-x264-params", "open-gop=0",
		)
	case vp9:
		args = append(args,
			"-deadline", preset.VP9.Deadline,
			"-cpu-used", strconv.Itoa(preset.VP9.CPUUsed),
			"-b:v", "0", "-crf", strconv.Itoa(preset.VP9.CRF),
			"-profile:v", "0",
			"-row-mt", "1",
			"-tile-columns", strconv.Itoa(tileColumns(p.Width)),
		)
	default:
		return nil, fmt.Errorf("%w %q", ErrUnknown, name)
	}
	args = append(args, "-g", strconv.Itoa(keyframes(p.Rate)))
	if p.Threads > 0 {
		args = append(args, "-threads:v", strconv.Itoa(p.Threads))
	}
	return args, nil
}

// keyframes is the distance between two keyframes in frames.
func keyframes(rate render.Rational) int {
	return max(1, int(math.Round(rate.Float()*keyframeSeconds)))
}

func kbps(n int) string { return strconv.Itoa(n) + "k" }

// Sound is how the sound of a source is encoded.
type Sound struct {
	// Encoder, and the Codec that it makes as ffmpeg calls it.
	Encoder, Codec string
	// Layout is the channel layout that the sound is brought into.
	Layout string
	// Kbps is the bit rate.
	Kbps int
}

// Audio chooses how sound with so many channels (0: unknown) becomes a codec.
// Players know mono, stereo and 5.1: everything with more than two channels
// becomes 5.1.
func Audio(codec string, q render.Quality, channels int) (Sound, error) {
	p := PresetOf(q)
	s := Sound{Codec: codec}
	var rates Rates
	switch codec {
	case "aac":
		s.Encoder, rates = aac, p.AAC
	case "opus":
		s.Encoder, rates = opus, p.Opus
	default:
		return s, fmt.Errorf("%w for %q", ErrUnknown, codec)
	}
	switch {
	case channels == 1:
		s.Layout, s.Kbps = "mono", rates.Mono
	case channels > 2:
		s.Layout, s.Kbps = "5.1", rates.Surround
	default:
		s.Layout, s.Kbps = "stereo", rates.Stereo
	}
	return s, nil
}

// Args are the encoder's arguments.
func (s Sound) Args() []string { return []string{"-c:a", s.Encoder, "-b:a", kbps(s.Kbps)} }

// Pictures lists the software encoders of video that this version drives.
func Pictures() []string { return []string{x264, vp9} }

// Sounds lists those of sound.
func Sounds() []string { return []string{aac, opus} }

// Found returns those of them that this ffmpeg was built with, and the others.
func Found(t *ffmpeg.Tools) (found, missing []string) {
	for _, name := range slices.Concat(Pictures(), Sounds()) {
		if t.HasEncoder(name) {
			found = append(found, name)
		} else {
			missing = append(missing, name)
		}
	}
	return found, missing
}

// Require reports an encoder that this machine does not have.
func Require(t *ffmpeg.Tools, name string) error {
	if !t.HasEncoder(name) {
		return fmt.Errorf("%w: ffmpeg %s was built without %s", ErrUnknown, t.Version, name)
	}
	return nil
}
