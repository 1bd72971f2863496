package ffmpeg

import (
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

func TestSpans(t *testing.T) { //nolint:paralleltest // the tracer provider is global
	spans := tracetest.NewInMemoryExporter()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)))
	defer otel.SetTracerProvider(before)

	tools := standIn(t, "printf 'frame=9\nspeed=2x\nprogress=end\n'; exit 4")
	if _, err := tools.Run(t.Context(), Cmd{Name: "segment", Dir: t.TempDir()}); err == nil {
		t.Fatal("exit code 4 is an error")
	}
	for _, s := range spans.GetSpans() {
		if s.Name != "ffmpeg segment" {
			continue
		}
		got := map[attribute.Key]any{}
		for _, a := range s.Attributes {
			got[a.Key] = a.Value.AsInterface()
		}
		if got[keyFrames] != int64(9) || got[keySpeed] != 2.0 || got["process.exit.code"] != int64(4) || s.Status.Code != codes.Error {
			t.Errorf("span %v, %v", got, s.Status)
		}
		return
	}
	t.Error("no span")
}
