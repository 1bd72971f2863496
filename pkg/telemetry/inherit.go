package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// inherit gives spans the render, tenant, stage and attempt of their local
// parent, so that every span of a render carries them, also those of libraries,
// and one query finds them all.
type inherit struct{}

var _ trace.SpanProcessor = inherit{}

func (inherit) OnStart(ctx context.Context, s trace.ReadWriteSpan) {
	parent, ok := oteltrace.SpanFromContext(ctx).(trace.ReadOnlySpan)
	if !ok || parent.SpanContext().TraceID() != s.SpanContext().TraceID() {
		return
	}
	var own []attribute.KeyValue
	for _, a := range parent.Attributes() {
		switch a.Key {
		case KeyRenderID, KeyTenant, KeyStage, KeyAttempt:
			own = append(own, a)
		}
	}
	s.SetAttributes(own...)
}

func (inherit) OnEnd(trace.ReadOnlySpan)         {}
func (inherit) Shutdown(context.Context) error   { return nil }
func (inherit) ForceFlush(context.Context) error { return nil }
