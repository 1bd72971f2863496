// Package telemetry sets up tracing, metrics and logging, and carries trace
// contexts to where the farm's work goes: MCP requests, render records, NATS
// messages.
//
// Only the standard OTEL_* variables configure it. Without them nothing is
// collected or sent, while trace contexts that come in still go through.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// Scope names this project's tracer and meter.
const Scope = "github.com/vidforge/vidforge"

// SchemaURL is that of the pinned semantic conventions.
const SchemaURL = semconv.SchemaURL

// Keys that spans, metrics and log lines share.
const (
	KeyRenderID = "render_id"
	KeyTenant   = "tenant"
	KeyStage    = "stage"
	KeyAttempt  = "attempt"
	KeyTraceID  = "trace_id" // log lines only
	KeyClass    = "class"    // of what was swept
	KeyReason   = "reason"   // why a sweep stopped
	KeyOutcome  = "outcome"  // of a render: its last state; of a stage: its attempt's outcome
)

// RenderID is the attribute that every span of a render carries, so that one
// query shows all of them.
func RenderID(id string) attribute.KeyValue { return attribute.String(KeyRenderID, id) }

// Tenant is the attribute of the tenant's key (not its name).
func Tenant(key string) attribute.KeyValue { return attribute.String(KeyTenant, key) }

// Stage is the attribute of a stage of work.
func Stage(stage string) attribute.KeyValue { return attribute.String(KeyStage, stage) }

// Attempt is the attribute of the attempt at a work.
func Attempt(id string) attribute.KeyValue { return attribute.String(KeyAttempt, id) }

// Tracer is the tracer of this project's spans.
func Tracer() oteltrace.Tracer {
	return otel.Tracer(Scope, oteltrace.WithSchemaURL(SchemaURL))
}

// Option adds to what the environment asks for.
type Option func(*options)

type options struct{ registry prometheus.Registerer }

// Scrape also collects the metrics into a Prometheus registry, for who serves
// it to be scraped.
func Scrape(r prometheus.Registerer) Option {
	return func(o *options) { o.registry = r }
}

// Setup installs what the OTEL_* variables ask for: a signal is exported if
// OTEL_TRACES_EXPORTER or OTEL_METRICS_EXPORTER names an exporter, or if there
// is an OTLP endpoint for it. shutdown sends what is still held back; it is
// never nil.
func Setup(ctx context.Context, service, version string, opts ...Option) (shutdown func(context.Context) error, err error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	otel.SetTextMapPropagator(propagator())
	nothing := func(context.Context) error { return nil }
	traces, metrics := wanted("TRACES"), wanted("METRICS")
	if !traces && !metrics && o.registry == nil {
		return nothing, nil
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		slog.Default().Warn("telemetry is lost", "error", err)
	}))
	res, err := resource.New(ctx,
		resource.WithSchemaURL(SchemaURL),
		resource.WithAttributes(semconv.ServiceName(service), semconv.ServiceVersion(version)),
		resource.WithTelemetrySDK(),
		resource.WithHost(),
		resource.WithFromEnv(), // last: it wins
	)
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nothing, fmt.Errorf("telemetry: describe this process: %w", err)
	}
	var stops []func(context.Context) error
	stop := func(ctx context.Context) error {
		var errs []error
		for _, s := range stops {
			errs = append(errs, s(ctx))
		}
		return errors.Join(errs...)
	}
	if traces {
		exporter, err := autoexport.NewSpanExporter(ctx)
		if err != nil {
			return nothing, fmt.Errorf("telemetry: trace exporter: %w", err)
		}
		provider := trace.NewTracerProvider(trace.WithSpanProcessor(inherit{}), trace.WithBatcher(exporter), trace.WithResource(res))
		otel.SetTracerProvider(provider)
		stops = append(stops, provider.Shutdown)
	}
	readers, err := metricReaders(ctx, metrics, o.registry)
	if err != nil {
		return nothing, errors.Join(err, stop(ctx))
	}
	if len(readers) > 0 {
		provider := metric.NewMeterProvider(append(readers, metric.WithResource(res))...)
		otel.SetMeterProvider(provider)
		stops = append(stops, provider.Shutdown)
	}
	return stop, nil
}

// metricReaders are where metrics go: to an exporter, to a registry, to both.
func metricReaders(ctx context.Context, export bool, registry prometheus.Registerer) (readers []metric.Option, err error) {
	if export {
		reader, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return nil, fmt.Errorf("telemetry: metric exporter: %w", err)
		}
		readers = append(readers, metric.WithReader(reader))
	}
	if registry != nil {
		reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
		if err != nil {
			return nil, fmt.Errorf("telemetry: metrics to be scraped: %w", err)
		}
		readers = append(readers, metric.WithReader(reader))
	}
	return readers, nil
}

// wanted reports whether the environment asks for a signal. The exporters' own
// default is an endpoint on localhost, which is right only for who asked.
func wanted(signal string) bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	switch os.Getenv("OTEL_" + signal + "_EXPORTER") {
	case "none":
		return false
	case "":
		return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
	default:
		return true
	}
}
