package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/deploy/embedded/embeddedtest"
	"github.com/vidforge/vidforge/gateway"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/render"
)

// replica is a gateway process of several.
type replica struct {
	*process
	url string
}

// replicas are gateway processes of one farm behind a balancer that sends each
// request to the next of them, whatever it is.
type replicas struct {
	t      *testing.T
	config gateway.Config
	url    string // of the balancer

	mu   sync.Mutex
	all  []*replica
	next int
}

func newReplicas(t *testing.T, n int, c gateway.Config) *replicas {
	t.Helper()
	c.Listen, c.OpsListen, c.PeerListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	r := &replicas{t: t, config: c}
	for range n {
		r.all = append(r.all, r.start())
	}
	balancer := httptest.NewServer(proxy(&httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.SetURL(r.turn())
			pr.Out.Host = pr.In.Host
		},
		FlushInterval: -1,
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, 0),
	}))
	balancer.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	r.url = balancer.URL
	t.Cleanup(func() { balancer.CloseClientConnections(); balancer.Close() })
	return r
}

// proxy lets a proxy send an answer on while the request's body is still read,
// which it is until its very end was seen: otherwise net/http takes the body
// from the proxy with the first byte of an answer, the proxy then breaks off its
// own request, and cuts the answer.
func proxy(p *httputil.ReverseProxy) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			panic(err)
		}
		p.ServeHTTP(w, r)
	})
}

func (r *replicas) start() *replica {
	r.t.Helper()
	bound := r.t.TempDir() + "/bound"
	p := spawn(r.t, role{Gateway: &r.config, Bound: bound})
	return &replica{p, "http://" + awaitFile(r.t, bound)}
}

func (r *replicas) turn() *url.URL {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	u, err := url.Parse(r.all[r.next%len(r.all)].url)
	if err != nil {
		panic(err)
	}
	return u
}

// replace puts a new replica, which is ready, into the place of the i-th, and
// kills that.
func (r *replicas) replace(i int) {
	r.t.Helper()
	fresh := r.start()
	r.mu.Lock()
	old := r.all[i]
	r.all[i] = fresh
	r.mu.Unlock()
	old.kill()
}

// standIns does the media work of every stage at a fixed cost, and counts what
// it did.
type standIns struct {
	farm *farm.Farm
	cost time.Duration

	mu   sync.Mutex
	done map[string]int // by work
}

func hireStandIns(t *testing.T, share embeddedtest.Farm, cost time.Duration) *standIns {
	t.Helper()
	s := &standIns{farm: farm.New(share.Dial(t).Stores, farm.Config{Logger: quiet()}), cost: cost, done: map[string]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for class, n := range map[render.Class]int{render.ClassPreview: 3, render.ClassCPU: 4} {
		for i := range n {
			wg.Go(func() {
				for ctx.Err() == nil {
					s.work(ctx, t, class, fmt.Sprintf("%s-%d", class, i))
				}
			})
		}
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s
}

func (s *standIns) work(ctx context.Context, t *testing.T, class render.Class, worker string) {
	c, err := s.farm.Claim(ctx, class, worker, time.Second)
	if errors.Is(err, jobs.ErrNone) || ctx.Err() != nil {
		return
	}
	if err != nil {
		t.Errorf("claim: %v", err)
		return
	}
	<-time.After(s.cost) // what an encoder would take
	res, err := s.result(c)
	if err == nil {
		_, err = c.Complete(res)
	}
	if key, ok := c.Work.Key(); ok && err == nil {
		s.mu.Lock()
		s.done[key]++
		s.mu.Unlock()
	}
	if err != nil && ctx.Err() == nil && render.CodeOf(err) != render.CodeRenderCancelled && c.Context().Err() == nil {
		t.Errorf("%s: %v", c.Work.Stage, err)
	}
}

func (s *standIns) result(c *farm.Claim) (*render.StageResult, error) {
	switch c.Work.Stage {
	case render.StageProbe:
		return &render.StageResult{Facts: facts()}, nil
	case render.StagePreview:
		var b bytes.Buffer
		if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 16, 9))); err != nil {
			return nil, err
		}
		o, err := c.Store(context.Background(), "preview.png", "image/png", &b, int64(b.Len()))
		return &render.StageResult{Object: o, Width: 16, Height: 9}, err
	case render.StagePlan:
		plan := render.MakePlan(c.Record.Source.Facts, c.Record.Spec, c.Work.Generation, render.Policy{SegmentTarget: time.Minute, MaxSegments: 8})
		return &render.StageResult{Plan: &plan}, nil
	default:
		return standIn(c)
	}
}

// oldAgent speaks MCP 2025-11-25 on the wire, and starts a new session when its
// own is unknown.
type oldAgent struct {
	url      string
	t        *testing.T
	session  string
	n        int
	sessions int // that it began
	asked    int // elicitations
}

// errAgain is why a request may be sent again: a connection broke, a gateway
// was not there, or the session is gone.
var errAgain = errors.New("again")

// ask sends a request until it is answered.
func (a *oldAgent) ask(method string, params map[string]any) answer {
	a.t.Helper()
	return untilAnswered(a.t, func() (answer, error) { return a.try(method, params) })
}

func untilAnswered(t *testing.T, try func() (answer, error)) answer {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; <-time.After(50 * time.Millisecond) {
		got, err := try()
		if err == nil {
			return got
		}
		if !errors.Is(err, errAgain) || time.Now().After(deadline) {
			t.Errorf("not answered: %v", err)
			return answer{}
		}
	}
}

func (a *oldAgent) try(method string, params map[string]any) (answer, error) {
	if a.session == "" {
		hello := map[string]any{"protocolVersion": "2025-11-25", "capabilities": map[string]any{"elicitation": map[string]any{"form": map[string]any{}}}, "clientInfo": map[string]any{"name": "old", "version": "1"}}
		if _, err := a.send("initialize", hello); err != nil {
			return answer{}, err
		}
		a.sessions++
		if _, err := a.send("notifications/initialized", map[string]any{}); err != nil {
			return answer{}, err
		}
	}
	return a.send(method, params)
}

func (a *oldAgent) send(method string, params map[string]any) (answer, error) {
	message := map[string]any{"jsonrpc": "2.0", "method": method, "params": params}
	notification := strings.HasPrefix(method, "notifications/")
	if !notification {
		a.n++
		message["id"] = a.n
	}
	h := map[string]string{}
	if a.session != "" {
		h["Mcp-Session-Id"], h["Mcp-Protocol-Version"] = a.session, "2025-11-25"
	}
	status, header, body, err := postMessage(a.t.Context(), a.url, message, h)
	switch {
	case err != nil:
		return answer{}, err
	case status == http.StatusNotFound && a.session != "":
		a.session = ""
		return answer{}, fmt.Errorf("%w: the session is gone", errAgain)
	case notification && status == http.StatusAccepted:
		return answer{Status: status}, nil
	}
	if id := header.Get("Mcp-Session-Id"); id != "" {
		a.session = id
	}
	return readAnswer(status, header, body)
}

// postMessage posts one message and reads the whole answer. What may be sent
// again is errAgain.
func postMessage(ctx context.Context, base string, message map[string]any, headers map[string]string) (int, http.Header, []byte, error) {
	raw, err := json.Marshal(message)
	if err != nil {
		return 0, nil, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/mcp", bytes.NewReader(raw))
	if err != nil {
		return 0, nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, nil, fmt.Errorf("%w: %w", errAgain, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return 0, nil, nil, fmt.Errorf("%w: %w", errAgain, err)
	case res.StatusCode >= http.StatusInternalServerError:
		return 0, nil, nil, fmt.Errorf("%w: HTTP %d %s", errAgain, res.StatusCode, body)
	}
	return res.StatusCode, res.Header, body, nil
}

// readAnswer takes the answer from a JSON body or a stream's last event. A
// stream that ends without one was cut off.
func readAnswer(status int, header http.Header, body []byte) (answer, error) {
	if strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") {
		var last string
		for lines := bufio.NewScanner(bytes.NewReader(body)); lines.Scan(); {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				last = data
			}
		}
		if last == "" {
			return answer{}, fmt.Errorf("%w: the stream held no answer", errAgain)
		}
		body = []byte(last)
	}
	got := answer{Status: status}
	if err := json.Unmarshal(body, &got); err != nil {
		return answer{}, fmt.Errorf("HTTP %d %s: %w", status, body, err)
	}
	return got, nil
}

func (a *oldAgent) call(tool string, arguments map[string]any) answer {
	a.t.Helper()
	return a.ask("tools/call", map[string]any{"name": tool, "arguments": arguments})
}

// result asks for a task's result in one request that is held open, and answers
// what it is asked meanwhile through whichever gateway is next.
func (a *oldAgent) result(id string, approved bool) (answer, error) {
	if a.session == "" {
		if _, err := a.try("ping", map[string]any{}); err != nil {
			return answer{}, err
		}
	}
	a.n++
	raw, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": a.n, "method": "tasks/result", "params": map[string]any{"taskId": id}})
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(a.t.Context(), http.MethodPost, a.url+"/mcp", bytes.NewReader(raw))
	if err != nil {
		return answer{}, err
	}
	for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Session-Id": a.session, "Mcp-Protocol-Version": "2025-11-25"} {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, fmt.Errorf("%w: %w", errAgain, err)
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode == http.StatusNotFound:
		a.session = ""
		return answer{}, fmt.Errorf("%w: the session is gone", errAgain)
	case res.StatusCode != http.StatusOK:
		return answer{}, fmt.Errorf("%w: HTTP %d", errAgain, res.StatusCode)
	case strings.HasPrefix(res.Header.Get("Content-Type"), "application/json"):
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return answer{}, fmt.Errorf("%w: %w", errAgain, err)
		}
		return readAnswer(res.StatusCode, res.Header, body)
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if err := json.Unmarshal([]byte(data), &m); err != nil {
			return answer{}, fmt.Errorf("event %s: %w", data, err)
		}
		switch m.Method {
		case "":
			return readAnswer(res.StatusCode, http.Header{}, []byte(data))
		case "elicitation/create":
			a.asked++
			said := map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": map[string]any{"action": "accept", "content": map[string]any{"approved": approved}}}
			status, _, body, err := postMessage(a.t.Context(), a.url, said, map[string]string{"Mcp-Session-Id": a.session, "Mcp-Protocol-Version": "2025-11-25"})
			if err != nil || status != http.StatusAccepted {
				return answer{}, fmt.Errorf("%w: answer an elicitation: %d %s, %w", errAgain, status, body, err)
			}
		}
	}
	return answer{}, fmt.Errorf("%w: the stream ended: %w", errAgain, lines.Err())
}

// TestSessionsAcrossReplicas: the official client of an older version does not
// notice that each of its requests reaches another gateway.
func TestSessionsAcrossReplicas(t *testing.T) {
	share := embeddedtest.Servers(t)
	hireStandIns(t, share, time.Millisecond)
	r := newReplicas(t, 3, gateway.Config{Endpoints: share.Endpoints})
	source := (&agent{url: r.url, t: t}).upload(clip(t, 1, "160x120"))

	updates := make(chan string, 100)
	client := mcp.NewClient(&mcp.Implementation{Name: "old", Version: "1"}, &mcp.ClientOptions{
		ResourceUpdatedHandler: func(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) { updates <- req.Params.URI },
	})
	s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: r.url + "/mcp"}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		if tools, err := s.ListTools(t.Context(), nil); err != nil || len(tools.Tools) != 7 {
			t.Fatalf("list: %+v, %v", tools, err)
		}
	}
	// A render whose watermark waits for a decision, so that it changes when
	// somebody looks.
	call := func(tool string, args map[string]any) map[string]any {
		t.Helper()
		res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			t.Fatalf("%s: %v", tool, err)
		}
		v, _ := res.StructuredContent.(map[string]any)
		if res.IsError {
			t.Fatalf("%s: %v", tool, v)
		}
		return v
	}
	id, _ := call("vidforge_render_video", args(source, map[string]any{"watermark": map[string]any{"text": "x"}}))["render_id"].(string)
	uri := render.ID(id).VideoURI(render.FormatMP4)
	if err := s.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); call("vidforge_get_render_status", map[string]any{"render_id": id})["state"] != "awaiting_watermark_approval"; {
		if time.Now().After(deadline) {
			t.Fatal("no preview")
		}
	}
	call("vidforge_approve_watermark", map[string]any{"render_id": id, "approved": true})
	select { // by the stream, which is at one of the three
	case got := <-updates:
		if got != uri {
			t.Errorf("update of %s, want %s", got, uri)
		}
	case <-time.After(time.Minute):
		t.Fatal("no update of the video")
	}
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// TestAHomeThatDies: its sessions are unknown, at any gateway, and a new one
// finds what an old one began.
func TestAHomeThatDies(t *testing.T) {
	share := embeddedtest.Servers(t)
	r := newReplicas(t, 3, gateway.Config{Endpoints: share.Endpoints})
	hireStandIns(t, share, time.Millisecond)
	a := &oldAgent{url: r.all[0].url, t: t} // which is the home of what begins there
	if tools := a.ask("tools/list", map[string]any{}); tools.Result == nil {
		t.Fatalf("list: %+v", tools)
	}
	source := (&agent{url: r.url, t: t}).upload(clip(t, 1, "160x120"))
	a.url = r.url
	got := a.call("vidforge_render_video", args(source, nil))
	id, _ := got.structured()["render_id"].(string)
	stream, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.all[1].url+"/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	stream.Header.Set("Accept", "text/event-stream")
	stream.Header.Set("Mcp-Session-Id", a.session)
	res, err := http.DefaultClient.Do(stream)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("stream: %+v, %v", res, err)
	}
	defer res.Body.Close()
	old := a.session
	r.all[0].kill()
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("the stream ended in good order though its home died")
	}
	r.mu.Lock()
	r.all = r.all[1:]
	r.mu.Unlock()
	for i, g := range r.all {
		for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
			for _, session := range []string{old, "A" + old[1:], "unknown"} {
				req, err := http.NewRequestWithContext(t.Context(), method, g.url+"/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
				if err != nil {
					t.Fatal(err)
				}
				for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Session-Id": session} {
					req.Header.Set(k, v)
				}
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if res.StatusCode != http.StatusNotFound || string(body) != "session not found\n" {
					t.Errorf("%s at gateway %d: %d %q", method, i, res.StatusCode, body)
				}
			}
		}
	}
	for deadline := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		got := a.call("vidforge_get_render_status", map[string]any{"render_id": id}).structured()
		if got["state"] == "succeeded" {
			break
		}
		if got["render_id"] != id || time.Now().After(deadline) {
			t.Fatalf("the render is %v", got)
		}
	}
	if a.sessions != 2 || a.session == old {
		t.Errorf("the client began %d sessions, want 2", a.sessions)
	}
}

// TestAnElicitationAnsweredElsewhere: a question comes on a stream through one
// gateway, its answer is posted to another, and the session is at a third.
func TestAnElicitationAnsweredElsewhere(t *testing.T) {
	share := embeddedtest.Servers(t)
	r := newReplicas(t, 3, gateway.Config{Endpoints: share.Endpoints})
	hireStandIns(t, share, time.Millisecond)
	source := (&agent{url: r.url, t: t}).upload(clip(t, 1, "160x120"))
	for home := range r.all {
		a := &oldAgent{url: r.all[home].url, t: t}
		got := a.ask("tools/call", map[string]any{"name": "vidforge_render_video", "task": map[string]any{},
			"arguments": args(source, map[string]any{"watermark": map[string]any{"text": "x"}})})
		task, _ := got.Result["task"].(map[string]any)
		id, _ := task["taskId"].(string)
		a.url = r.url // where two requests in a row reach two gateways
		got, err := a.result(id, true)
		if err != nil || got.Result["isError"] == true || got.structured()["render_id"] != id {
			t.Errorf("home %d: %+v, %v", home, got, err)
		}
		if a.asked != 1 || a.sessions != 1 {
			t.Errorf("home %d: asked %d times in %d sessions, want once in one", home, a.asked, a.sessions)
		}
	}
}

// headersOf are the headers of a request of MCP 2026-07-28.
func headersOf(method string, params map[string]any) map[string]string {
	h := map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method}
	for _, name := range []string{"name", "uri", "taskId"} {
		if v, ok := params[name].(string); ok {
			h["Mcp-Name"] = v
		}
	}
	return h
}

// persistent is an agent of MCP 2026-07-28 that asks again when a gateway dies.
type persistent struct {
	url string
	t   *testing.T
}

func (a *persistent) ask(method string, params map[string]any) answer {
	a.t.Helper()
	params = maps.Clone(params)
	params["_meta"] = map[string]any{
		"io.modelcontextprotocol/protocolVersion":    "2026-07-28",
		"io.modelcontextprotocol/clientInfo":         map[string]any{"name": "e2e", "version": "1"},
		"io.modelcontextprotocol/clientCapabilities": map[string]any{"extensions": map[string]any{"io.modelcontextprotocol/tasks": map[string]any{}}, "elicitation": map[string]any{"form": map[string]any{}}},
	}
	return untilAnswered(a.t, func() (answer, error) {
		status, header, body, err := postMessage(a.t.Context(), a.url, map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, headersOf(method, params))
		if err != nil {
			return answer{}, err
		}
		return readAnswer(status, header, body)
	})
}

func (a *persistent) call(tool string, arguments map[string]any) answer {
	a.t.Helper()
	return a.ask("tools/call", map[string]any{"name": tool, "arguments": arguments})
}
