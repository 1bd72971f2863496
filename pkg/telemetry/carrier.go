package telemetry

import (
	"context"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/vidforge/vidforge/pkg/render"
)

// propagator is that of W3C Trace Context and Baggage.
func propagator() propagation.TextMapPropagator {
	return propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
}

// NATSCarrier carries a trace context in the header of a NATS message. NATS
// keeps the case of header names as they were sent, so they are compared
// without regard to it.
type NATSCarrier nats.Header

var _ propagation.ValuesGetter = NATSCarrier(nil)

// Get returns the first value of the key.
func (c NATSCarrier) Get(key string) string {
	if v := c.Values(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Values returns all values of the key.
func (c NATSCarrier) Values(key string) []string {
	if v, ok := c[key]; ok {
		return v
	}
	for _, k := range c.Keys() { // sorted: the same answer every time
		if strings.EqualFold(k, key) {
			return c[k]
		}
	}
	return nil
}

// Set replaces every spelling of the key.
func (c NATSCarrier) Set(key, value string) {
	for k := range c {
		if strings.EqualFold(k, key) {
			delete(c, k)
		}
	}
	c[key] = []string{value}
}

// Keys returns the names of the header.
func (c NATSCarrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// MetaCarrier carries a trace context in the _meta object of an MCP request or
// result, under the keys traceparent, tracestate and baggage.
type MetaCarrier map[string]any

var _ propagation.TextMapCarrier = MetaCarrier(nil)

// Get returns the value of the key if it is a string.
func (c MetaCarrier) Get(key string) string {
	s, _ := c[key].(string)
	return s
}

// Set sets the value of the key.
func (c MetaCarrier) Set(key, value string) { c[key] = value }

// Keys returns the keys of the object.
func (c MetaCarrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Extract returns ctx with the trace context that the carrier holds, if any.
func Extract(ctx context.Context, c propagation.TextMapCarrier) context.Context {
	return propagator().Extract(ctx, c)
}

// Inject writes the trace context of ctx into the carrier, which must not be
// nil.
func Inject(ctx context.Context, c propagation.TextMapCarrier) {
	propagator().Inject(ctx, c)
}

// The W3C names.
const (
	traceparent = "traceparent"
	tracestate  = "tracestate"
	baggage     = "baggage"
)

// Keep writes a kept trace context into a carrier as it is, leaving out what is
// empty.
func Keep(c propagation.TextMapCarrier, t render.TraceContext) {
	for key, value := range map[string]string{traceparent: t.Traceparent, tracestate: t.Tracestate, baggage: t.Baggage} {
		if value != "" {
			c.Set(key, value)
		}
	}
}

// Kept reads back what Keep wrote.
func Kept(c propagation.TextMapCarrier) render.TraceContext {
	return render.TraceContext{Traceparent: c.Get(traceparent), Tracestate: c.Get(tracestate), Baggage: c.Get(baggage)}
}

// TraceOf is the trace context of ctx as it is kept in a record or message.
func TraceOf(ctx context.Context) render.TraceContext {
	c := propagation.MapCarrier{}
	Inject(ctx, c)
	return Kept(c)
}

// WithTrace returns ctx with a kept trace context as the remote parent of the
// spans that begin in it.
func WithTrace(ctx context.Context, t render.TraceContext) context.Context {
	c := propagation.MapCarrier{}
	Keep(c, t)
	return Extract(ctx, c)
}

// LinkedTo makes a span the root of a new trace, linked to a kept trace context
// if there is one: work may wait in a queue for hours, and a trace that long
// helps nobody.
func LinkedTo(t render.TraceContext) []trace.SpanStartOption {
	options := []trace.SpanStartOption{trace.WithNewRoot()}
	if link := trace.LinkFromContext(WithTrace(context.Background(), t)); link.SpanContext.IsValid() {
		options = append(options, trace.WithLinks(link))
	}
	return options
}
