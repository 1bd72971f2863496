package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vidforge/vidforge/gateway/internal/farmtest"
	"github.com/vidforge/vidforge/pkg/apikey"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

// leases are a ledger's named leases, in memory.
type leases struct{ m sync.Map }

type heldLease struct {
	of   *leases
	name string
}

func (l *leases) LeaseName(_ context.Context, name, holder string) (ledger.Lease, error) {
	l.m.Store(name, holder)
	return heldLease{l, name}, nil
}

func (l *leases) LeaseHolder(_ context.Context, name string) (string, error) {
	if h, ok := l.m.Load(name); ok {
		return h.(string), nil
	}
	return "", ledger.ErrNotFound
}

func (h heldLease) Renew(context.Context) error   { return nil }
func (h heldLease) Release(context.Context) error { h.of.m.Delete(h.name); return nil }

// heldFarm holds questions about renders when it is told to.
type heldFarm struct {
	*farmtest.Farm
	held atomic.Pointer[hold]
}

// hold is closed by began when a question came, and by the test to answer it.
type hold struct{ began, goOn chan struct{} }

func (f *heldFarm) Get(ctx context.Context, tenant render.Tenant, id render.ID) (*farm.View, error) {
	if h := f.held.Swap(nil); h != nil {
		close(h.began)
		<-h.goOn
	}
	return f.Farm.Get(ctx, tenant, id)
}

// replicas are gateways of one farm, behind nothing: tests choose.
type replicas struct {
	*testing.T
	farm *heldFarm
	all  []*running
	file string // of API keys
	keys []string
}

func newReplicas(t *testing.T, n int, keys ...string) *replicas {
	t.Helper()
	r := &replicas{T: t, farm: &heldFarm{Farm: farmtest.New(time.Now)}}
	r.file, r.keys = withKeys(t, keys...)
	with := shared{formKey: []byte("secret"), sessionKey: []byte("session secret"), registry: &leases{}}
	for range n {
		r.all = append(r.all, startOver(t, Config{PeerListen: "127.0.0.1:0", KeysFile: r.file, PublicURL: "https://render.example.org"}, r.farm, with))
	}
	return r
}

// oldSession is a session of MCP 2025-11-25.
type oldSession struct {
	*replicas
	id, key string
	n       int
}

// send sends a request of the session to a replica.
func (s *oldSession) send(ctx context.Context, replica int, method, body string) *http.Response {
	s.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.all[replica].bound.Listen+"/mcp", strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	req.Host = "render.example.org"
	for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + s.key, "Mcp-Session-Id": s.id} {
		if v != "" && v != "Bearer " {
			req.Header.Set(k, v)
		}
	}
	if s.id != "" {
		req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { res.Body.Close() })
	return res
}

// rpc sends a JSON-RPC request and returns status and body.
func (s *oldSession) rpc(replica int, method, params string) (int, string) {
	s.Helper()
	s.n++
	res := s.send(s.Context(), replica, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, s.n, method, params))
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.Fatal(err)
	}
	if id := res.Header.Get("Mcp-Session-Id"); id != "" {
		s.id = id
	}
	return res.StatusCode, string(b)
}

func (s *oldSession) wants(replica, status int, text, method, params string) {
	s.Helper()
	if got, body := s.rpc(replica, method, params); got != status || !strings.Contains(body, text) {
		s.Errorf("%s at replica %d: %d %s, want %d with %q", method, replica, got, body, status, text)
	}
}

const oldHello = `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"old","version":"1"}}`

// begin opens a session at a replica, and says that it is open at the next.
func (r *replicas) begin(replica, key int) *oldSession {
	r.Helper()
	s := &oldSession{replicas: r, key: r.keys[key]}
	s.wants(replica, 200, "2025-11-25", "initialize", oldHello)
	if res := s.send(r.Context(), (replica+1)%len(r.all), http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); res.StatusCode != http.StatusAccepted {
		r.Fatalf("initialized: %d", res.StatusCode)
	}
	return s
}

// TestSessionsWithoutStickiness: whichever replica gets a request, the session
// behaves as if there were one.
func TestSessionsWithoutStickiness(t *testing.T) {
	t.Parallel()
	r := newReplicas(t, 3, "acme", "acme: asset:read", "other")
	src := r.farm.AddAsset("acme", "a.mov", farmtest.VideoFacts())
	s := r.begin(0, 0)
	for i := range r.all {
		s.wants(i, 200, "vidforge_render_video", "tools/list", "{}")
		s.wants(i, 200, `"accepted"`, "tools/call", fmt.Sprintf(`{"name":"vidforge_render_video","arguments":{"source_asset_uri":%q,"output_format":"mp4","resolution":"720p","idempotency_key":"one"}}`, src.URI()))
	}
	v, _, err := r.farm.Submit(t.Context(), "acme", submission(src))
	if err != nil {
		t.Fatal(err)
	}
	uri := v.Record.ID.LogURI()
	// A stream through one replica tells what was asked for through another.
	stream := s.send(t.Context(), 1, http.MethodGet, "")
	if stream.StatusCode != http.StatusOK || stream.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("the stream: %d %v", stream.StatusCode, stream.Header)
	}
	s.wants(2, 200, "result", "resources/subscribe", fmt.Sprintf(`{"uri":%q}`, uri))
	if err := r.farm.WaitWatched(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if _, err := r.farm.Cancel(t.Context(), "acme", v.Record.ID, "test"); err != nil {
		t.Fatal(err)
	}
	until(t, bufio.NewReader(stream.Body), uri)
	// Its requests are judged at home as everywhere.
	res := s.send(t.Context(), 1, http.MethodPost, "{")
	if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusBadRequest {
		t.Errorf("no JSON: %d %s, %v", res.StatusCode, b, err)
	}
	limited := r.begin(2, 1)
	res = limited.send(t.Context(), 1, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"vidforge_render_video","arguments":{"source_asset_uri":%q,"output_format":"mp4","resolution":"720p"}}}`, src.URI()))
	if w := res.Header.Values("WWW-Authenticate"); res.StatusCode != http.StatusForbidden || len(w) != 1 || !strings.Contains(w[0], "insufficient_scope") {
		t.Errorf("without a scope: %d %q", res.StatusCode, w)
	}
	if ids := res.Header.Values("X-Request-ID"); len(ids) != 1 {
		t.Errorf("request ids: %q", ids)
	}
	// It ends everywhere at once.
	if res := s.send(t.Context(), 1, http.MethodDelete, ""); res.StatusCode != http.StatusNoContent {
		t.Errorf("DELETE: %d", res.StatusCode)
	}
	for i := range r.all {
		s.wants(i, 404, "session not found", "tools/list", "{}")
	}
}

// TestASessionIsItsPrincipals: what another knows of a session is nothing, at
// any replica, and the home looks at the credential itself.
func TestASessionIsItsPrincipals(t *testing.T) {
	t.Parallel()
	r := newReplicas(t, 2, "acme", "acme", "other")
	s := r.begin(0, 0)
	for i := range r.all {
		for _, key := range r.keys[1:] {
			thief := &oldSession{replicas: r, id: s.id, key: key}
			thief.wants(i, 404, "session not found\n", "tools/list", "{}")
			if res := thief.send(t.Context(), i, http.MethodGet, ""); res.StatusCode != http.StatusNotFound {
				t.Errorf("GET at replica %d: %d", i, res.StatusCode)
			}
			if res := thief.send(t.Context(), i, http.MethodDelete, ""); res.StatusCode != http.StatusNotFound {
				t.Errorf("DELETE at replica %d: %d", i, res.StatusCode)
			}
		}
		nobody := &oldSession{replicas: r, id: s.id}
		nobody.wants(i, 401, "credential_missing", "tools/list", "{}")
	}
	s.wants(1, 200, "tools", "tools/list", "{}")
	id, _ := apikey.ParseID(s.key)
	if err := apikey.Revoke(r.file, id); err != nil {
		t.Fatal(err)
	}
	for i := range r.all {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { // keys are read again within a second
			status, _ := s.rpc(i, "tools/list", "{}")
			if status == http.StatusUnauthorized {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("a revoked key at replica %d: %d", i, status)
			}
		}
	}
}

// TestAHomeThatStops: its sessions are unknown, and what they began is not lost.
func TestAHomeThatStops(t *testing.T) {
	t.Parallel()
	r := newReplicas(t, 2, "acme")
	src := r.farm.AddAsset("acme", "a.mov", farmtest.VideoFacts())
	s := r.begin(0, 0)
	_, body := s.rpc(1, "tools/call", fmt.Sprintf(`{"name":"vidforge_render_video","arguments":{"source_asset_uri":%q,"output_format":"mp4","resolution":"720p"}}`, src.URI()))
	_, rest, _ := strings.Cut(body, `task_`)
	id, ok := render.ParseID("task_" + rest[:min(26, len(rest))])
	if !ok {
		t.Fatalf("no render: %s", body)
	}
	stream := s.send(t.Context(), 1, http.MethodGet, "")
	r.all[0].stop()
	if _, err := io.ReadAll(stream.Body); err != nil {
		t.Errorf("the stream of a home that stops: %v", err)
	}
	r.all[0].wait(t)
	s.wants(1, 404, "session not found", "tools/list", "{}")
	again := &oldSession{replicas: r, key: s.key}
	again.wants(1, 200, "2025-11-25", "initialize", oldHello)
	again.wants(1, 200, string(id), "tools/call", fmt.Sprintf(`{"name":"vidforge_get_render_status","arguments":{"render_id":%q}}`, id))
}

// TestAHomeThatStopsFirstAnswers what was handed over to it, while its sessions
// are unknown already to whoever asks anew.
func TestAHomeThatStopsFirstAnswers(t *testing.T) {
	t.Parallel()
	r := newReplicas(t, 2, "acme")
	v, _, err := r.farm.Submit(t.Context(), "acme", submission(r.farm.AddAsset("acme", "a.mov", farmtest.VideoFacts())))
	if err != nil {
		t.Fatal(err)
	}
	s := r.begin(0, 0)
	other := &oldSession{replicas: r, id: s.id, key: s.key}
	h := &hold{make(chan struct{}), make(chan struct{})}
	r.farm.held.Store(h)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.wants(1, 200, string(v.Record.ID), "tools/call", fmt.Sprintf(`{"name":"vidforge_get_render_status","arguments":{"render_id":%q}}`, v.Record.ID))
	}()
	<-h.began
	r.all[0].stop()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) { // it drains in its own time
		if status, _ := other.rpc(1, "tools/list", "{}"); status == http.StatusNotFound {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("a session of a home that stops: %d", status)
		}
	}
	close(h.goOn)
	<-done
	r.all[0].wait(t)
}

// TestAReplicaThatStops ends what it handed over in good order.
func TestAReplicaThatStops(t *testing.T) {
	t.Parallel()
	r := newReplicas(t, 2, "acme")
	s := r.begin(0, 0)
	stream := s.send(t.Context(), 1, http.MethodGet, "")
	r.all[1].stop()
	if _, err := io.ReadAll(stream.Body); err != nil {
		t.Errorf("the stream through a replica that stops: %v", err)
	}
	r.all[1].wait(t)
	s.wants(0, 200, "tools", "tools/list", "{}")
}

func TestPeerAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ setting, bound, want string }{
		{"", "127.0.0.1:81", "127.0.0.1:81"},
		{"", "[::1]:81", "[::1]:81"},
		{"10.0.0.7", "0.0.0.0:81", "10.0.0.7:81"},
		{"fd00::7", "[::]:81", "[fd00::7]:81"},
		{"[fd00::7]", "[::]:81", "[fd00::7]:81"},
		{"[fd00::7]:90", "[::]:81", "[fd00::7]:90"},
		{"g-0.gateways.farm.svc", "[::]:81", "g-0.gateways.farm.svc:81"},
		{"g-0:90", "[::]:81", "g-0:90"},
		{"", "0.0.0.0:81", "PeerAddress"},
		{"", "[::]:81", "PeerAddress"},
		{"https://g-0", "[::]:81", "PeerAddress"},
		{":90", "[::]:81", "PeerAddress"},
		{"g-0:", "[::]:81", "PeerAddress"},
		{"a b", "[::]:81", "PeerAddress"},
	} {
		got, err := peerAddress(c.setting, c.bound)
		if got != c.want && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q at %q: %q, %v; want %q", c.setting, c.bound, got, err, c.want)
		}
	}
	if err := (Config{PeerAddress: "g-0"}).withDefaults().validate(); err == nil || !strings.Contains(err.Error(), "PeerListen") {
		t.Errorf("an address without a listener: %v", err)
	}
}
