package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
)

const fakeTask = "task_aaaaaaaaaaaaaaaaaaaaaaaaaa"

// fakeFarm is a server that speaks just enough of the contract, and checks that
// the client keeps to it. What happens to the one render is a script: a list of
// tasks that tasks/get answers with, the last one for ever.
type fakeFarm struct {
	t   *testing.T
	url string

	// script is what tasks/get answers, in order. A nil task is a broken
	// connection. A task that asks for input stays until it was answered.
	script []map[string]any
	// firstPoll is the poll interval that the render tool answers with.
	firstPoll time.Duration
	// refuse, if set, answers the render tool.
	refuse map[string]any
	// video is what the download gives; short breaks off the first download
	// in its middle.
	video []byte
	short bool
	// key is the API key to ask for.
	key string
	// events answers by an event stream instead of JSON.
	events bool
	// polled is signalled at each tasks/get.
	polled chan struct{}
	// changed tells a listening client that the task changed; nil refuses to
	// listen.
	changed chan struct{}

	mu      sync.Mutex
	at      int
	uploads []string
	calls   []map[string]any // arguments of the render tool
	answers []map[string]any // to input requests
	cancels int
	gets    int
	served  int
}

func newFakeFarm(t *testing.T, script ...map[string]any) *fakeFarm {
	t.Helper()
	f := &fakeFarm{t: t, script: script, video: []byte("not really a video, but bytes are bytes"), polled: make(chan struct{}, 100)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /mcp", f.mcp)
	mux.HandleFunc("POST /v1/assets", f.upload)
	mux.HandleFunc("GET /v1/renders/{id}", f.status)
	mux.HandleFunc("GET /v1/renders/{id}/video", f.download)
	mux.HandleFunc("GET /store/video", f.download)
	srv := httptest.NewServer(f.authenticated(mux))
	t.Cleanup(srv.Close)
	f.url = srv.URL
	return f
}

func (f *fakeFarm) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.key != "" && r.Header.Get("Authorization") != "Bearer "+f.key {
			w.WriteHeader(http.StatusUnauthorized)
			f.write(w, map[string]any{"code": "credential_invalid", "message": "The key is not known."})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (f *fakeFarm) write(w io.Writer, v any) {
	if err := json.NewEncoder(w).Encode(v); err != nil {
		f.t.Errorf("write: %v", err)
	}
}

func (f *fakeFarm) upload(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil || int64(len(b)) != r.ContentLength {
		f.t.Errorf("upload: %d bytes of %d, %v", len(b), r.ContentLength, err)
	}
	f.mu.Lock()
	f.uploads = append(f.uploads, r.URL.Query().Get("name")+" "+r.Header.Get("Content-Type"))
	id := "a_" + strings.Repeat(string(rune('a'+len(f.uploads))), 26)
	f.mu.Unlock()
	sum := sha256.Sum256(b)
	w.WriteHeader(http.StatusCreated)
	f.write(w, map[string]any{"asset_uri": "vidforge://assets/" + id, "size_bytes": len(b), "sha256": hex.EncodeToString(sum[:]), "renderable": true})
}

func (f *fakeFarm) status(w http.ResponseWriter, _ *http.Request) {
	f.write(w, map[string]any{
		"render_id": fakeTask, "state": "rendering", "status_message": "Rendering: 42%.", "progress": 0.42,
		"stage": "segment", "frames_done": 42, "frames_total": 100, "fps": 30.5, "eta_seconds": 2,
	})
}

func (f *fakeFarm) download(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.served++
	broken := f.short && f.served == 1
	f.mu.Unlock()
	if broken {
		w.Header().Set("Content-Length", strconv.Itoa(len(f.video)))
		if _, err := w.Write(f.video[:len(f.video)/2]); err != nil {
			f.t.Errorf("write: %v", err)
		}
		return // fewer bytes than announced: the server cuts the connection
	}
	http.ServeContent(w, r, "final.mp4", testTime, strings.NewReader(string(f.video)))
}

// mcp answers one JSON-RPC request.
func (f *fakeFarm) mcp(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Name          string         `json:"name"`
			URI           string         `json:"uri"`
			TaskID        string         `json:"taskId"`
			Arguments     map[string]any `json:"arguments"`
			Notifications struct {
				TaskIDs []string `json:"taskIds"`
			} `json:"notifications"`
			InputResponses map[string]map[string]any `json:"inputResponses"`
			Meta           struct {
				Version      string `json:"io.modelcontextprotocol/protocolVersion"`
				Capabilities struct {
					Elicitation map[string]any `json:"elicitation"`
					Extensions  map[string]any `json:"extensions"`
				} `json:"io.modelcontextprotocol/clientCapabilities"`
			} `json:"_meta"`
		} `json:"params"`
	}
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		f.t.Errorf("request: %v", err)
	}
	p := m.Params
	if m.Method == "" || len(m.ID) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	name := p.Name + p.URI + p.TaskID // one of them at most
	if r.Header.Get("Mcp-Method") != m.Method || r.Header.Get("Mcp-Name") != name || r.Header.Get("Mcp-Protocol-Version") != "2026-07-28" {
		f.t.Errorf("%s: headers %v, want name %q", m.Method, r.Header, name)
	}
	if p.Meta.Version != "2026-07-28" || p.Meta.Capabilities.Extensions[mcptask.ExtensionID] == nil || p.Meta.Capabilities.Elicitation["form"] == nil && m.Method != "subscriptions/listen" {
		f.t.Errorf("%s: _meta %+v declares too little", m.Method, p.Meta)
	}
	if m.Method == "subscriptions/listen" {
		f.listen(w, r, p.Notifications.TaskIDs)
		return
	}
	var result any
	f.mu.Lock()
	defer f.mu.Unlock()
	switch m.Method {
	case "server/discover":
		result = map[string]any{
			"supportedVersions": []string{"2026-07-28"}, "resultType": "complete",
			"capabilities": map[string]any{"tools": map[string]any{}, "extensions": map[string]any{mcptask.ExtensionID: map[string]any{}}},
		}
	case "tools/call":
		f.calls = append(f.calls, p.Arguments)
		result = map[string]any{"resultType": "task", "taskId": fakeTask, "status": "working", "pollIntervalMs": f.firstPoll.Milliseconds()}
		if f.refuse != nil {
			result = map[string]any{"isError": true, "content": []any{}, "structuredContent": f.refuse}
		}
	case "tasks/get":
		f.gets++
		select {
		case f.polled <- struct{}{}:
		default:
		}
		task := f.present()
		if task == nil {
			panic(http.ErrAbortHandler)
		}
		result = task
	case "tasks/update":
		for key, answer := range p.InputResponses {
			if key == "watermark-approval-1" {
				f.answers = append(f.answers, answer)
			}
		}
		result = map[string]any{"resultType": "complete"}
	case "tasks/cancel":
		f.cancels++
		result = map[string]any{"resultType": "complete"}
	case "resources/read":
		result = map[string]any{"contents": []any{map[string]any{"uri": p.URI, "mimeType": "image/png", "blob": []byte("png of " + p.URI)}}}
	default:
		f.t.Errorf("unexpected method %s", m.Method)
	}
	answer := map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": result}
	if !f.events {
		w.Header().Set("Content-Type", "application/json")
		f.write(w, answer)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	b, err := json.MarshalIndent(answer, "", " ") // several data lines
	if err != nil {
		f.t.Errorf("encode: %v", err)
	}
	_, _ = fmt.Fprintf(w, ": hello\n\nevent: message\ndata: %s\n\n", strings.ReplaceAll(string(b), "\n", "\ndata: "))
}

// listen streams what f.changed sends until the client goes away.
func (f *fakeFarm) listen(w http.ResponseWriter, r *http.Request, ids []string) {
	if !slices.Equal(ids, []string{fakeTask}) {
		f.t.Errorf("listens to %q", ids)
	}
	if f.changed == nil {
		w.Header().Set("Content-Type", "application/json")
		f.write(w, map[string]any{"jsonrpc": "2.0", "id": "listen", "error": map[string]any{"code": -32601, "message": "no"}})
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for {
		select {
		case <-r.Context().Done():
			return
		case <-f.changed:
			_, _ = fmt.Fprintf(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tasks\",\"params\":{}}\n\n")
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// present is the script's task now. Callers hold mu.
func (f *fakeFarm) present() map[string]any {
	more := f.at < len(f.script)-1
	task := f.script[f.at]
	asks, _ := task["inputRequests"].(map[string]any)
	switch {
	case len(asks) == 0 && more:
		f.at++
	case len(f.answers) > 0 && more:
		f.at++
		return f.present()
	}
	if task == nil {
		return nil
	}
	out := map[string]any{"resultType": "complete", "taskId": fakeTask, "pollIntervalMs": 1}
	maps.Copy(out, task)
	return out
}

func working() map[string]any {
	return map[string]any{"status": "working", "statusMessage": "Rendering: 42%."}
}

func awaiting() map[string]any {
	return map[string]any{"status": "input_required", "statusMessage": "Waiting.", "pollIntervalMs": 30000, "inputRequests": map[string]any{
		"watermark-approval-1": map[string]any{"method": "elicitation/create", "params": map[string]any{
			"mode": "form", "message": "Is the watermark right?\x1b[31m",
			"requestedSchema": map[string]any{"type": "object", "properties": map[string]any{"approved": map[string]any{"type": "boolean"}}, "required": []string{"approved"}},
		}},
	}}
}

func cancelled() map[string]any { return map[string]any{"status": "cancelled"} }

func failedWith(code render.Code) map[string]any {
	return map[string]any{"status": "completed", "result": map[string]any{
		"isError": true, "resultType": "complete", "content": []any{map[string]any{"type": "text", "text": "It went wrong."}},
		"structuredContent": map[string]any{"code": code, "message": "It went wrong.", "temporary": false},
	}}
}

// completed is the success with the fake's own video.
func (f *fakeFarm) completed() map[string]any {
	sum := sha256.Sum256(f.video)
	return map[string]any{"status": "completed", "result": map[string]any{
		"resultType": "complete", "content": []any{}, "structuredContent": map[string]any{
			"status": "completed", "render_id": fakeTask, "download_url": f.url + "/store/video", "size_bytes": len(f.video),
			"sha256": hex.EncodeToString(sum[:]), "width": 1920, "height": 1080, "frame_count": 100, "duration_seconds": 4,
		},
	}}
}

func (f *fakeFarm) snapshot() (calls, answers []map[string]any, uploads []string, cancels int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls), slices.Clone(f.answers), slices.Clone(f.uploads), f.cancels
}
