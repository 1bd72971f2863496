package media

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/encoder"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// runFailed classifies the failure of a run: whose fault it was, and what a
// client is told. what completes "could not …".
func runFailed(ctx context.Context, what string, res ffmpeg.Result, err error) error {
	var exit *ffmpeg.ExitError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, ffmpeg.ErrStalled):
		return render.Errorf(render.CodeRenderFailed, render.BlameJob, "ffmpeg stopped making progress and could not %s.", what).WithCause(err)
	case errors.As(err, &exit):
		// SIGKILL that we did not send is the kernel out of memory, or an
		// operator; a full disk, refused memory and the limit of a file's length
		// are this machine's too.
		if exit.Signal == syscall.SIGKILL || exit.Signal == syscall.SIGTERM || exit.Signal == syscall.SIGXFSZ || exhausted(res.Log) {
			return workerFault(what, err)
		}
		return render.Errorf(render.CodeRenderFailed, render.BlameJob, "ffmpeg could not %s.", what).WithCause(err)
	default:
		return workerFault(what, err)
	}
}

func workerFault(what string, err error) *render.Error {
	return render.Errorf(render.CodeRenderFailed, render.BlameWorker, "A worker of the farm could not %s.", what).WithCause(err)
}

// exhausted reports whether the log tells of a resource that this machine has
// run out of.
func exhausted(l *ffmpeg.Log) bool {
	for _, line := range l.Lines() {
		if !strings.Contains(line, "[error]") && !strings.Contains(line, "[fatal]") {
			continue // other lines may hold the media's own words
		}
		for _, errno := range []string{"No space left on device", "Disk quota exceeded", "File too large",
			"Cannot allocate memory", "Resource temporarily unavailable"} {
			if strings.Contains(line, errno) {
				return true
			}
		}
	}
	return false
}

// sourceFault is an error of the uploaded media: no retry helps.
func sourceFault(format string, args ...any) *render.Error {
	e := render.Errorf(render.CodeUnsupportedCodec, render.BlameSource, format, args...)
	e.Details = &render.Details{Field: "source_asset_uri", Reason: e.Message}
	return e
}

// deviceFault is the failure of an encode that needs a graphics device, of which nobody
// can tell whether device, driver or source is to blame: without the device it
// will show. Its message is part of the render's result.
func deviceFault(name string, tail []string, err error) *render.Error {
	reason := encoder.Reason(tail)
	if reason == "" {
		reason = strings.TrimSuffix(render.AsError(err).Message, ".")
	}
	what := "encoder"
	if name == render.DecoderCUDA {
		what = "decoder"
	}
	return jobFault("The hardware %s %s failed: %s.", what, name, strings.TrimSuffix(reason, ".")).WithCause(err)
}

// jobFault is a stage that failed here and may succeed elsewhere.
func jobFault(format string, args ...any) *render.Error {
	return render.Errorf(render.CodeRenderFailed, render.BlameJob, format, args...)
}
