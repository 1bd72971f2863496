package encoder

import (
	"math"

	"github.com/vidforge/vidforge/pkg/render"
)

// Preset is what a quality means to each encoder: it trades time and size
// against fidelity.
type Preset struct {
	X264 X264Preset
	VP9  VP9Preset
	AAC  Rates
	Opus Rates
}

// X264Preset is x264's own preset, and its constant rate factor.
type X264Preset struct {
	Preset string
	CRF    int
}

// VP9Preset are libvpx's deadline and speed, and its constant quality.
type VP9Preset struct {
	Deadline string
	CPUUsed  int
	CRF      int
}

// Rates are bit rates of sound in kbit/s.
type Rates struct{ Mono, Stereo, Surround int }

// PresetOf returns the preset of a quality; an unknown one is standard.
func PresetOf(q render.Quality) Preset {
	switch q {
	case render.QualityDraft:
		return Preset{
			X264: X264Preset{Preset: "veryfast", CRF: 26},
			VP9:  VP9Preset{Deadline: "realtime", CPUUsed: 8, CRF: 40},
			AAC:  Rates{Mono: 64, Stereo: 128, Surround: 320},
			Opus: Rates{Mono: 64, Stereo: 96, Surround: 256},
		}
	case render.QualityHigh:
		return Preset{
			X264: X264Preset{Preset: "medium", CRF: 20},
			VP9:  VP9Preset{Deadline: "good", CPUUsed: 2, CRF: 28},
			AAC:  Rates{Mono: 96, Stereo: 192, Surround: 480},
			Opus: Rates{Mono: 96, Stereo: 160, Surround: 448},
		}
	default:
		return Preset{
			X264: X264Preset{Preset: "veryfast", CRF: 23},
			VP9:  VP9Preset{Deadline: "good", CPUUsed: 4, CRF: 32},
			AAC:  Rates{Mono: 80, Stereo: 160, Surround: 400},
			Opus: Rates{Mono: 80, Stereo: 128, Surround: 320},
		}
	}
}

// tileColumns is the binary logarithm of the number of tiles side by side,
// which decoders and encoders work on at once. libvpx makes none narrower than
// 256 pixels.
func tileColumns(width int) int {
	switch {
	case width >= 3840:
		return 3
	case width >= 1280:
		return 2
	case width >= 640:
		return 1
	default:
		return 0
	}
}

// level is a row of table A-1 of ITU-T H.264: what a decoder of that level can
// do.
type level struct {
	name string
	// blocksPerSecond and blocks bound the macroblocks of 16×16 pixels, each
	// second and in a frame.
	blocksPerSecond, blocks int
	// kbps and bufferKbits are MaxBR and MaxCPB of the Baseline and Main
	// profiles, in units of 1000 bits.
	kbps, bufferKbits int
}

// levels from 3 on, below which no output is.
func levels() []level {
	return []level{
		{"3.0", 40_500, 1_620, 10_000, 10_000},
		{"3.1", 108_000, 3_600, 14_000, 14_000},
		{"3.2", 216_000, 5_120, 20_000, 20_000},
		{"4.0", 245_760, 8_192, 20_000, 25_000},
		{"4.1", 245_760, 8_192, 50_000, 62_500},
		{"4.2", 522_240, 8_704, 50_000, 62_500},
		{"5.0", 589_824, 22_080, 135_000, 135_000},
		{"5.1", 983_040, 36_864, 240_000, 240_000},
		{"5.2", 2_073_600, 36_864, 240_000, 240_000},
		{"6.0", 4_177_920, 139_264, 240_000, 240_000},
		{"6.1", 8_355_840, 139_264, 480_000, 480_000},
		{"6.2", 16_711_680, 139_264, 800_000, 800_000},
	}
}

// highKbps and highBufferKbits are the limits for the High profile, 1.25 times
// those of Main (ITU-T H.264, table A-2).
func (l level) highKbps() int        { return l.kbps * 5 / 4 }
func (l level) highBufferKbits() int { return l.bufferKbits * 5 / 4 }

// levelOf is the lowest level that holds a picture of that size, shown that
// often (ITU-T H.264, A.3.1: a side may have at most √(8·MaxFS) macroblocks).
func levelOf(width, height int, rate render.Rational) level {
	w, h := (width+15)/16, (height+15)/16
	all := levels()
	for _, l := range all {
		side := math.Sqrt(8 * float64(l.blocks))
		if w*h <= l.blocks && float64(max(w, h)) <= side && float64(w*h)*rate.Float() <= float64(l.blocksPerSecond) {
			return l
		}
	}
	return all[len(all)-1]
}
