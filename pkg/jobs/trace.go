package jobs

import (
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/vidforge/vidforge/pkg/render"
)

// Headers of W3C Trace Context and Baggage. NATS keeps a header's case and
// HTTP does not, so they are read in any.
const (
	traceparent = "traceparent"
	tracestate  = "tracestate"
	baggage     = "baggage"
)

func setTrace(h nats.Header, t render.TraceContext) {
	for name, value := range map[string]string{traceparent: t.Traceparent, tracestate: t.Tracestate, baggage: t.Baggage} {
		if value != "" {
			h.Set(name, value)
		}
	}
}

func traceOf(h nats.Header) render.TraceContext {
	var t render.TraceContext
	for name, values := range h {
		if len(values) == 0 {
			continue
		}
		switch strings.ToLower(name) {
		case traceparent:
			t.Traceparent = values[0]
		case tracestate:
			t.Tracestate = values[0]
		case baggage:
			t.Baggage = values[0]
		}
	}
	return t
}
