package e2e

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/vidforge/vidforge/deploy/embedded/embeddedtest"
	"github.com/vidforge/vidforge/gateway"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

// span is what the test looks at of an exported span.
type span struct {
	name, trace string
	links       []string // traces
	render      string
}

// receiver takes what processes export by OTLP over HTTP.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	spans []span
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil || req.URL.Path != "/v1/traces" {
			return // metrics
		}
		var got collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &got); err != nil {
			t.Errorf("an export cannot be read: %v", err)
		}
		r.take(&got)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) take(got *collector.ExportTraceServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range got.GetResourceSpans() {
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				one := span{name: s.GetName(), trace: hex.EncodeToString(s.GetTraceId())}
				for _, l := range s.GetLinks() {
					one.links = append(one.links, hex.EncodeToString(l.GetTraceId()))
				}
				for _, a := range s.GetAttributes() {
					if a.GetKey() == telemetry.KeyRenderID {
						one.render = a.GetValue().GetStringValue()
					}
				}
				r.spans = append(r.spans, one)
			}
		}
	}
}

// find returns the first span of that name that is about the render, in a trace
// if one is given.
func (r *receiver) find(name, render, trace string) (span, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if s.name == name && s.render == render && (trace == "" || s.trace == trace) {
			return s, true
		}
	}
	return span{}, false
}

func TestTraceFromTheAgentToFFmpeg(t *testing.T) {
	otlp := newReceiver(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp.URL)
	share := embeddedtest.Servers(t)
	bound := t.TempDir() + "/bound"
	front := spawn(t, role{Gateway: &gateway.Config{Listen: "127.0.0.1:0", OpsListen: "127.0.0.1:0", Endpoints: share.Endpoints}, Bound: bound})
	back := startWorker(t, share, "w1")
	const trace = "0af7651916cd43dd8448eb211c80319c"
	a := &agent{url: "http://" + awaitFile(t, bound), t: t, tasks: true, traceparent: "00-" + trace + "-b7ad6b7169203331-01"}
	got := a.call("vidforge_render_video", args(a.upload(clip(t, 1, "160x120")), nil))
	id, _ := got.Result["taskId"].(string)
	a.poll(id, "completed")
	// A process that is asked to stop sends what it holds back.
	for _, p := range []*process{front, back} {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := <-p.done; err != nil {
			t.Errorf("stop: %v", err)
		}
		p.done <- nil
	}
	call, ok := otlp.find("tools/call vidforge_render_video", id, "")
	if !ok || call.trace != trace {
		t.Errorf("the tool call's span: %+v, want trace %s", call, trace)
	}
	stage, ok := otlp.find("process segment", id, "")
	if !ok || len(stage.links) != 1 || stage.links[0] != trace || stage.trace == trace {
		t.Errorf("the stage's span: %+v, want a trace of its own, linked to %s", stage, trace)
	}
	for _, name := range []string{"ffmpeg segment", "fetch source", "store video.mp4"} {
		if _, ok := otlp.find(name, id, stage.trace); !ok {
			t.Errorf("no span %q in the stage's trace", name)
		}
	}
}
