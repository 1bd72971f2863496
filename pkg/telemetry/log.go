package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// NewLogger makes a logger that writes lines of format "json" or "text" and
// adds the trace_id of the context that a line is logged with.
func NewLogger(w io.Writer, format string, level slog.Leveler) (*slog.Logger, error) {
	o := &slog.HandlerOptions{Level: level}
	var h slog.Handler
	switch format {
	case "json":
		h = slog.NewJSONHandler(w, o)
	case "text":
		h = slog.NewTextHandler(w, o)
	default:
		return nil, fmt.Errorf("telemetry: log format %q is neither json nor text", format)
	}
	return slog.New(traceHandler{h}), nil
}

// traceHandler adds the trace id to each record.
type traceHandler struct{ slog.Handler }

// Handle implements slog.Handler.
func (h traceHandler) Handle(ctx context.Context, r slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		r = r.Clone()
		r.AddAttrs(slog.String(KeyTraceID, span.TraceID().String()))
	}
	return h.Handler.Handle(ctx, r) //nolint:wrapcheck // the handler's own
}

// WithAttrs implements slog.Handler.
func (h traceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return traceHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h traceHandler) WithGroup(name string) slog.Handler {
	return traceHandler{h.Handler.WithGroup(name)}
}
