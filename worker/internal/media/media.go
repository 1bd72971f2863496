// Package media turns files into other files by ffmpeg: it looks at sources,
// draws watermarks, takes previews, encodes segments and sound, joins them and
// checks the result.
//
// What is decided from numbers (frame grid, sizes, filter graphs, argument
// lists, text layout) are functions of values. The rest runs ffmpeg in a job's
// directory and trusts nothing that it made before it was looked at.
//
// Errors that a client may see are *render.Error; their Blame says whose fault
// it was. When the context ends, its error is returned as it is.
package media

import (
	"time"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/encoder"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// Job is what the steps of one render have in common.
type Job struct {
	Tools *ffmpeg.Tools
	// Dir is the job's own directory; all results go there, under names that
	// no one outside chose.
	Dir string
	// Source is the path of the source file, whole and verified.
	Source string
	Facts  *render.Facts
	Spec   render.Spec
	Plan   render.Plan
	// Overlay is the path of the drawn watermark (see DrawOverlay); "" where
	// there is none.
	Overlay string
	// Offers are the encoders of the device that the job may use, for plans
	// whose encoder is a hardware one.
	Offers []encoder.Offer
	// Threads bounds the encoder's threads; 0 leaves it to the encoder.
	Threads int
	// Progress is called about twice a second, never concurrently. Nil is
	// allowed.
	Progress func(ffmpeg.Progress)
}

// Made is a file that a step made.
type Made struct {
	Path string
	// MIMEType of sound.
	MIMEType string
	// Frames of a video, 0 for sound.
	Frames int64
	// Width and Height of a picture or video in pixels.
	Width, Height int
	// CPU is the CPU time of the child processes.
	CPU time.Duration
	// LogTail is the encoder's last lines, fit for clients.
	LogTail []string
}

func (j *Job) run(name string) ffmpeg.Cmd {
	return ffmpeg.Cmd{Name: name, Dir: j.Dir, OnProgress: j.Progress, LogLevel: "info"} // clients may read the log
}
