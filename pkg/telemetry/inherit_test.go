package telemetry

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"
)

func TestChildrenInheritTheRender(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tracer := trace.NewTracerProvider(trace.WithSpanProcessor(inherit{}), trace.WithSpanProcessor(spans)).Tracer("test")
	ctx, parent := tracer.Start(context.Background(), "parent", oteltrace.WithAttributes(RenderID("task_1"), Stage("segment")))
	_, child := tracer.Start(ctx, "child")
	_, other := tracer.Start(ctx, "other trace", oteltrace.WithNewRoot())
	for _, s := range []oteltrace.Span{other, child, parent} {
		s.End()
	}
	has := map[string]int{}
	for _, s := range spans.Ended() {
		has[s.Name()] = len(s.Attributes())
	}
	if has["child"] != 2 || has["other trace"] != 0 {
		t.Errorf("attributes per span: %v", has)
	}
}
