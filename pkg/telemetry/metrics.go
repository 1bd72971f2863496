package telemetry

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Names of the metrics.
const (
	MetricRenders       = "vidforge.renders"
	MetricStageDuration = "vidforge.stage.duration"
	MetricSwept         = "vidforge.swept"
	MetricSweepsStopped = "vidforge.sweeps.stopped"
	MetricPaused        = "vidforge.worker.paused"
)

// KeyCause names what a worker waits for.
const KeyCause = "cause"

// Metrics are the farm's instruments. Tenants and render ids are no attributes:
// every value of an attribute is a time series of its own.
type Metrics struct {
	renders metric.Int64Counter
	stages  metric.Float64Histogram
	swept   metric.Int64Counter
	stopped metric.Int64Counter
	paused  metric.Int64Gauge
}

// NewMetrics makes the instruments on the meter provider that is or will be
// set.
func NewMetrics() (*Metrics, error) {
	meter := otel.Meter(Scope, metric.WithSchemaURL(SchemaURL))
	renders, err := meter.Int64Counter(MetricRenders,
		metric.WithDescription("Renders that ended, by outcome"), metric.WithUnit("{render}"))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %s: %w", MetricRenders, err)
	}
	stages, err := meter.Float64Histogram(MetricStageDuration,
		metric.WithDescription("Wall time of attempts at a stage, by stage and outcome"), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %s: %w", MetricStageDuration, err)
	}
	swept, err := meter.Int64Counter(MetricSwept,
		metric.WithDescription("Objects, uploads and records that sweeps deleted, by class"), metric.WithUnit("{object}"))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %s: %w", MetricSwept, err)
	}
	stopped, err := meter.Int64Counter(MetricSweepsStopped,
		metric.WithDescription("Sweeps that stopped until an operator looks, by reason"), metric.WithUnit("{sweep}"))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %s: %w", MetricSweepsStopped, err)
	}
	paused, err := meter.Int64Gauge(MetricPaused,
		metric.WithDescription("1 while a worker takes no work because something is away, by what"), metric.WithUnit("1"))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %s: %w", MetricPaused, err)
	}
	return &Metrics{renders: renders, stages: stages, swept: swept, stopped: stopped, paused: paused}, nil
}

// WorkerPaused records whether a worker waits for something.
func (m *Metrics) WorkerPaused(ctx context.Context, cause string, paused bool) {
	n := int64(0)
	if paused {
		n = 1
	}
	m.paused.Record(ctx, n, metric.WithAttributes(attribute.String(KeyCause, cause)))
}

// RenderEnded counts a render by its last state.
func (m *Metrics) RenderEnded(ctx context.Context, outcome string) {
	m.renders.Add(ctx, 1, metric.WithAttributes(attribute.String(KeyOutcome, outcome)))
}

// StageEnded records how long an attempt at a stage took and how it ended.
func (m *Metrics) StageEnded(ctx context.Context, stage, outcome string, took time.Duration) {
	m.stages.Record(ctx, took.Seconds(), metric.WithAttributes(Stage(stage), attribute.String(KeyOutcome, outcome)))
}

// Swept counts a thing that a sweep deleted.
func (m *Metrics) Swept(ctx context.Context, class string) {
	m.swept.Add(ctx, 1, metric.WithAttributes(attribute.String(KeyClass, class)))
}

// SweepStopped counts a sweep that stopped, by the reason: epoch or share.
func (m *Metrics) SweepStopped(ctx context.Context, reason string) {
	m.stopped.Add(ctx, 1, metric.WithAttributes(attribute.String(KeyReason, reason)))
}
