package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

const (
	parent  = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	traceID = "0af7651916cd43dd8448eb211c80319c"
)

func kept() render.TraceContext {
	return render.TraceContext{Traceparent: parent, Tracestate: "a=1", Baggage: "user=7"}
}

func TestSetupIsSilentWithoutVariables(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"nothing":            {},
		"only a description": {"OTEL_SERVICE_NAME": "x", "OTEL_RESOURCE_ATTRIBUTES": "a=b"},
		"none":               {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"},
		"disabled":           {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range env {
				t.Setenv(k, v)
			}
			before := otel.GetTracerProvider()
			shutdown, err := telemetry.Setup(t.Context(), "svc", "1")
			if err != nil {
				t.Fatal(err)
			}
			if otel.GetTracerProvider() != before {
				t.Error("a tracer provider was installed")
			}
			ctx, span := telemetry.Tracer().Start(telemetry.WithTrace(t.Context(), kept()), "x")
			if span.IsRecording() {
				t.Error("spans are recorded")
			}
			if got := telemetry.TraceOf(ctx); got != kept() {
				t.Errorf("trace context %+v did not go through", got)
			}
			if err := shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSetupExportsToTheEndpoint(t *testing.T) {
	var mu sync.Mutex
	got := map[string]string{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		got[r.URL.Path] += string(body)
	}))
	defer server.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	t.Setenv("OTEL_SERVICE_NAME", "name-of-the-operator")
	tracers, meters := otel.GetTracerProvider(), otel.GetMeterProvider()
	t.Cleanup(func() { otel.SetTracerProvider(tracers); otel.SetMeterProvider(meters) })

	shutdown, err := telemetry.Setup(t.Context(), "name-in-code", "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := telemetry.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	metrics.RenderEnded(t.Context(), "succeeded")
	_, span := telemetry.Tracer().Start(t.Context(), "name-of-the-span")
	span.End()
	if err := shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for path, want := range map[string][]string{
		"/v1/traces":  {"name-of-the-span", "name-of-the-operator", "1.2.3", telemetry.SchemaURL},
		"/v1/metrics": {telemetry.MetricRenders, "succeeded", "name-of-the-operator"},
	} {
		for _, w := range want {
			if !strings.Contains(got[path], w) {
				t.Errorf("%s: no %q in what was sent", path, w)
			}
		}
		if strings.Contains(got[path], "name-in-code") {
			t.Errorf("%s: OTEL_SERVICE_NAME was overridden", path)
		}
	}
}

func TestCarriersCarry(t *testing.T) {
	t.Parallel()
	ctx := telemetry.WithTrace(t.Context(), kept())

	header := telemetry.NATSCarrier(nats.Header{"TraceParent": {"stale"}, "Other": {"1"}})
	telemetry.Inject(ctx, header)
	if got := header["traceparent"]; len(got) != 1 || got[0] != parent || len(header["TraceParent"]) != 0 {
		t.Errorf("header %v", header)
	}
	meta := telemetry.MetaCarrier{"progressToken": 3}
	telemetry.Inject(ctx, meta)
	if meta["traceparent"] != parent || meta["tracestate"] != "a=1" || meta["baggage"] != "user=7" || meta["progressToken"] != 3 {
		t.Errorf("meta %v", meta)
	}
	for name, got := range map[string]context.Context{
		"nats":           telemetry.Extract(t.Context(), header),
		"nats, any case": telemetry.Extract(t.Context(), telemetry.NATSCarrier{"Traceparent": {parent}, "TRACESTATE": {"a=1"}, "bAGGAGE": {"user=7"}}),
		"meta":           telemetry.Extract(t.Context(), meta),
	} {
		if trace := telemetry.TraceOf(got); trace != kept() {
			t.Errorf("%s: %+v", name, trace)
		}
		if !oteltrace.SpanContextFromContext(got).IsRemote() || baggage.FromContext(got).Member("user").Value() != "7" {
			t.Errorf("%s: not a remote parent with its baggage", name)
		}
	}
	for name, c := range map[string]telemetry.MetaCarrier{
		"nil": nil, "empty": {}, "not a string": {"traceparent": 1}, "malformed": {"traceparent": "00-zz"},
	} {
		if got := telemetry.TraceOf(telemetry.Extract(t.Context(), c)); got != (render.TraceContext{}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func FuzzExtract(f *testing.F) {
	f.Add(parent, "a=1", "user=7")
	f.Add("00-", "=", "%")
	f.Fuzz(func(t *testing.T, traceparent, tracestate, baggage string) {
		ctx := telemetry.WithTrace(t.Context(), render.TraceContext{Traceparent: traceparent, Tracestate: tracestate, Baggage: baggage})
		once := telemetry.TraceOf(ctx)
		if twice := telemetry.TraceOf(telemetry.WithTrace(t.Context(), once)); twice.Traceparent != once.Traceparent {
			t.Errorf("%+v became %+v", once, twice)
		}
	})
}

func TestLinkedToBeginsANewTrace(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	tracer := trace.NewTracerProvider(trace.WithSyncer(spans)).Tracer("test")
	ctx := telemetry.WithTrace(t.Context(), kept())
	for _, from := range []render.TraceContext{kept(), {}} {
		_, span := tracer.Start(ctx, "work", telemetry.LinkedTo(from)...)
		span.SetAttributes(telemetry.RenderID("task_1"), telemetry.Tenant("t"), telemetry.Stage("segment"), telemetry.Attempt("a"))
		span.End()
	}
	got := spans.GetSpans()
	if len(got) != 2 {
		t.Fatalf("%d spans", len(got))
	}
	for i, links := range []int{1, 0} {
		s := got[i]
		if s.Parent.IsValid() || s.SpanContext.TraceID().String() == traceID {
			t.Errorf("span %d is no root", i)
		}
		if len(s.Links) != links || links == 1 && s.Links[0].SpanContext.TraceID().String() != traceID {
			t.Errorf("span %d: links %v", i, s.Links)
		}
		if len(s.Attributes) != 4 || string(s.Attributes[0].Key) != "render_id" {
			t.Errorf("span %d: attributes %v", i, s.Attributes)
		}
	}
}

func TestMetrics(t *testing.T) {
	reader := metric.NewManualReader()
	before := otel.GetMeterProvider()
	t.Cleanup(func() { otel.SetMeterProvider(before) })
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	m, err := telemetry.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	m.RenderEnded(t.Context(), "succeeded")
	m.RenderEnded(t.Context(), "succeeded")
	m.RenderEnded(t.Context(), "failed")
	m.StageEnded(t.Context(), "segment", "done", 1500*time.Millisecond)
	var got metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	counts, sum := map[string]int64{}, 0.0
	for _, scope := range got.ScopeMetrics {
		for _, metric := range scope.Metrics {
			switch data := metric.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					v, _ := p.Attributes.Value(telemetry.KeyOutcome)
					counts[metric.Name+" "+v.AsString()] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					v, _ := p.Attributes.Value(telemetry.KeyStage)
					if metric.Name == telemetry.MetricStageDuration && v.AsString() == "segment" {
						sum += p.Sum
					}
				}
			}
		}
	}
	if counts["vidforge.renders succeeded"] != 2 || counts["vidforge.renders failed"] != 1 || sum != 1.5 {
		t.Errorf("counts %v, seconds %v", counts, sum)
	}
}

func TestLoggerAddsTheTraceID(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := telemetry.NewLogger(&out, "json", slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	ctx := telemetry.WithTrace(t.Context(), kept())
	log.With(telemetry.KeyRenderID, "task_1").InfoContext(ctx, "inside")
	log.InfoContext(t.Context(), "outside")
	log.DebugContext(ctx, "below the level")
	var lines []map[string]any
	for dec := json.NewDecoder(&out); dec.More(); {
		var line map[string]any
		if err := dec.Decode(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if len(lines) != 2 || lines[0]["trace_id"] != traceID || lines[0]["render_id"] != "task_1" {
		t.Errorf("lines %v", lines)
	}
	if _, ok := lines[1]["trace_id"]; ok {
		t.Error("a trace id without a trace")
	}
	if _, err := telemetry.NewLogger(&out, "xml", slog.LevelInfo); err == nil {
		t.Error("an unknown format was accepted")
	}
}
