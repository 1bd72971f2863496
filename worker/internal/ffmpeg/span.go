package ffmpeg

import (
	"context"
	"errors"
	"path/filepath"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/vidforge/vidforge/pkg/telemetry"
)

// Attributes of a run's span beside those of the semantic conventions.
const (
	keyFrames = "vidforge.ffmpeg.frames"
	keySpeed  = "vidforge.ffmpeg.speed" // seconds of media per second
	keyCPU    = "vidforge.ffmpeg.cpu_seconds"
	keyRSS    = "vidforge.ffmpeg.max_rss_bytes"
)

// traced runs a child inside a span of its own.
func traced(ctx context.Context, program, name string, run func(context.Context) (Result, error)) (Result, error) {
	program = filepath.Base(program)
	ctx, span := telemetry.Tracer().Start(ctx, program+" "+name, trace.WithAttributes(semconv.ProcessExecutableName(program)))
	defer span.End()
	res, err := run(ctx)
	attributes := []attribute.KeyValue{
		semconv.ProcessExitCode(res.ExitCode),
		attribute.Float64(keyCPU, res.CPU.Seconds()),
		attribute.Int64(keyRSS, res.MaxRSS),
	}
	if n := res.Frames(); n > 0 {
		attributes = append(attributes, attribute.Int64(keyFrames, n))
	}
	if s := res.Last.Speed; s != nil {
		attributes = append(attributes, attribute.Float64(keySpeed, *s))
	}
	span.SetAttributes(attributes...)
	if err != nil {
		span.SetStatus(codes.Error, outcome(err))
	}
	return res, err
}

// outcome says in few words why a run failed; the error itself may hold what
// the child wrote.
func outcome(err error) string {
	switch {
	case errors.Is(err, ErrStalled):
		return "stalled"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "stopped"
	default:
		return "failed"
	}
}
