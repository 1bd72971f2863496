package encoder

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// The try-encode: long enough for B-frames and lookahead, small enough for
// every machine.
const (
	tryWidth  = 640
	tryHeight = 360
	tryRate   = 30
	tryFrames = 60
	tryFile   = "encoder-try.mp4"
	tryStats  = "encoder-try.psnr"
	// tryPSNR, in decibels, is what every frame must reach: encoders that work
	// stay above 30 for the test picture, and one that is green, shifted or of
	// another frame is below 15.
	tryPSNR = 22
	// tryLimit is the longest that one may take.
	tryLimit = 30 * time.Second
)

// Try really encodes a short picture with a software encoder, in dir, decodes it
// back and compares. That an encoder is listed proves nothing.
func Try(ctx context.Context, t *ffmpeg.Tools, dir, name string) error {
	args, err := Video(name, tryPicture())
	if err == nil {
		err = try(ctx, t, dir, Encoding{Args: args}, tryLimit)
	}
	if err != nil {
		return fmt.Errorf("try encoder %s: %w", name, err)
	}
	return nil
}

// errSlow is the cause of a try that was stopped.
var errSlow = errors.New("it took too long")

func tryPicture() Picture {
	return Picture{Quality: render.QualityDraft, Width: tryWidth, Height: tryHeight, Rate: render.Rational{Num: tryRate, Den: 1}}
}

func try(ctx context.Context, t *ffmpeg.Tools, dir string, e Encoding, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: longer than %s", errSlow, limit))
	defer cancel()
	filters := "format=yuv420p"
	if e.Filters != "" {
		filters += "," + e.Filters
	}
	args := append([]string{"-frames:v", strconv.Itoa(tryFrames), "-vf", filters}, e.Args...)
	made, err := t.Run(ctx, ffmpeg.Cmd{
		Name: "try encoder", Dir: dir, Device: e.Device, Inputs: []ffmpeg.Input{canvas()},
		Args: append(args, "-f", "mp4", "file:"+tryFile),
	})
	if err != nil {
		return told(err, made.Log)
	}
	if made.Frames() != tryFrames {
		return fmt.Errorf("%d of %d frames encoded", made.Frames(), tryFrames)
	}
	return compare(ctx, t, dir, Encoding{}, "format=yuv420p")
}

// tryDecode is try for a device that decodes, and makes frames of half the size.
func tryDecode(ctx context.Context, t *ffmpeg.Tools, dir string, e Encoding, limit time.Duration) error {
	args, err := Video(x264, tryPicture())
	if err == nil {
		err = try(ctx, t, dir, Encoding{Args: args}, limit)
	}
	if err != nil {
		return fmt.Errorf("make something to decode: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: longer than %s", errSlow, limit))
	defer cancel()
	return compare(ctx, t, dir, e, fmt.Sprintf("scale=w=%d:h=%d:flags=bicubic,format=yuv420p", tryWidth/2, tryHeight/2))
}

// compare decodes what was made of the canvas, by a device if e has one, and
// compares each frame with the canvas after the filters.
func compare(ctx context.Context, t *ffmpeg.Tools, dir string, e Encoding, filters string) error {
	scale := e.Scale
	if scale == "" {
		scale = "format=yuv420p"
	}
	read, err := t.Run(ctx, ffmpeg.Cmd{
		Name: "try encoder", Dir: dir, Device: e.Device,
		Inputs: []ffmpeg.Input{{Path: filepath.Join(dir, tryFile), Options: append([]string{"-err_detect", "explode"}, e.Input...)}, canvas()},
		Args: []string{"-xerror", "-filter_complex",
			"[0:v]" + scale + ",settb=1/1000,setpts=N[made];[1:v]" + filters + ",settb=1/1000,setpts=N[want];[made][want]psnr=shortest=1:stats_file=" + tryStats,
			"-fps_mode", "passthrough", "-f", "null", "-"},
	})
	if err != nil {
		return fmt.Errorf("decode it: %w", told(err, read.Log))
	}
	if read.Frames() != tryFrames {
		return fmt.Errorf("%d of %d frames decoded", read.Frames(), tryFrames)
	}
	worst, err := WorstPSNR(filepath.Join(dir, tryStats))
	if err != nil {
		return err
	}
	if worst < tryPSNR {
		return fmt.Errorf("the picture that came out is another: a frame is only %.1f dB like its original", worst)
	}
	return nil
}

// canvas is the picture that is tried.
func canvas() ffmpeg.Input {
	return ffmpeg.Input{Path: fmt.Sprintf("testsrc2=size=%dx%d:rate=%d", tryWidth, tryHeight, tryRate), Formats: ffmpeg.CanvasFormats, Format: "lavfi"}
}

var framePSNR = regexp.MustCompile(`\bpsnr_avg:(\S+)`)

// WorstPSNR reads a file of statistics of the psnr filter, and returns how like
// the other its worst frame is, in decibels.
func WorstPSNR(path string) (float64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("compare its output: %w", err)
	}
	defer f.Close()
	worst, n := 0.0, 0
	for lines := bufio.NewScanner(f); lines.Scan(); n++ {
		m := framePSNR.FindStringSubmatch(lines.Text())
		if m == nil {
			return 0, errors.New("compare its output: unknown statistics")
		}
		v, err := strconv.ParseFloat(m[1], 64) // "inf" too
		if err != nil {
			return 0, fmt.Errorf("compare its output: %w", err)
		}
		if n == 0 || v < worst {
			worst = v
		}
	}
	if n == 0 {
		return 0, errors.New("compare its output: no frame")
	}
	return worst, nil
}

// told adds to an error what the encoder or its device said first: the last
// line, which the error has already, only follows from it.
func told(err error, log *ffmpeg.Log) error {
	if reason := Reason(log.Tail()); reason != "" && !strings.Contains(err.Error(), reason) {
		return fmt.Errorf("%w (%s)", err, reason)
	}
	return err
}

var logPrefix = regexp.MustCompile(`^(\[[^\]]*\] )+`)

// Reason picks the line of a log's tail that says why an encoder or its device
// failed, without ffmpeg's prefixes; "" when there is none.
func Reason(tail []string) string {
	for _, line := range tail {
		if strings.Contains(line, "[error]") || strings.Contains(line, "[fatal]") {
			if text := strings.TrimSpace(logPrefix.ReplaceAllString(line, "")); text != "" {
				return text
			}
		}
	}
	return ""
}
