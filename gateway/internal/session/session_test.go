package session

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/faultproxy"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

var farmSecret = []byte("the farm's secret of 32 bytes ....")

// registry is the leases of a farm, in memory.
type registry struct {
	mu      sync.Mutex
	holders map[string]string
	looks   int
	renewed chan struct{} // gets a word at each renewal, if somebody listens
	taken   chan struct{} // as well at each taking
	down    error
}

func newRegistry() *registry {
	return &registry{holders: map[string]string{}, renewed: make(chan struct{}), taken: make(chan struct{}, 10)}
}

type entry struct {
	r    *registry
	name string
}

func (r *registry) LeaseName(_ context.Context, name, holder string) (ledger.Lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down != nil {
		return nil, r.down
	}
	r.holders[name] = holder
	select {
	case r.taken <- struct{}{}:
	default:
	}
	return entry{r, name}, nil
}

func (r *registry) LeaseHolder(_ context.Context, name string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looks++
	if r.down != nil {
		return "", r.down
	}
	h, ok := r.holders[name]
	if !ok {
		return "", ledger.ErrNotFound
	}
	return h, nil
}

func (r *registry) set(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn()
}

func (r *registry) looked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.looks
}

func (e entry) Renew(context.Context) error {
	e.r.mu.Lock()
	defer e.r.mu.Unlock()
	select {
	case e.r.renewed <- struct{}{}:
	default:
	}
	if _, ok := e.r.holders[e.name]; !ok {
		return ledger.ErrLeaseLost
	}
	return e.r.down
}

func (e entry) Release(context.Context) error {
	e.r.mu.Lock()
	defer e.r.mu.Unlock()
	delete(e.r.holders, e.name)
	return nil
}

// node is a gateway as far as sessions go: an MCP handler that says what it got.
type node struct {
	*Sessions
	t      *testing.T
	url    string
	peers  string
	server *http.Server
	served atomic.Int64 // requests that the MCP handler got

	mu     sync.Mutex
	open   map[string]bool // its sessions
	began  chan *http.Request
	left   chan struct{} // a client of a stream went away
	events chan string   // what streams send; "" ends one
}

func newNode(t *testing.T, r Registry, change ...func(*Options)) *node {
	t.Helper()
	n := &node{t: t, open: map[string]bool{}, began: make(chan *http.Request, 100), left: make(chan struct{}, 10), events: make(chan string)}
	o := Options{
		Secret: farmSecret, Registry: r, RenewEvery: time.Hour, Logger: slog.New(slog.DiscardHandler),
		Principal: func(r *http.Request) string { return r.Header.Get("Authorization") },
		Fail: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, string(render.CodeOf(err)), http.StatusServiceUnavailable)
		},
	}
	for _, fn := range change {
		fn(&o)
	}
	var err error
	if n.Sessions, err = New(o); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", n.Handler("/mcp", n))
	mux.Handle("/mcp/other", n.Handler("/mcp/other", n))
	mux.HandleFunc("/v1/x", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "api") })
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(requestIDHeader, "req-"+r.Header.Get(requestIDHeader)) // as the layer around does
		mux.ServeHTTP(w, r)
	})
	front := httptest.NewServer(handler)
	n.url = front.URL
	t.Cleanup(func() { n.Close(); front.CloseClientConnections(); front.Close() })
	if r == nil {
		return n
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.peers, n.server = l.Addr().String(), &http.Server{Handler: handler, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	n.Peers(n.server)
	done := make(chan struct{})
	go func() { defer close(done); _ = n.server.ServeTLS(l, "", "") }()
	t.Cleanup(func() { _ = n.server.Close(); <-done })
	if err := n.Join(t.Context(), n.peers); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.served.Add(1)
	id := r.Header.Get(sessionHeader)
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case id == "":
		id = rand.Text()
		n.open[id] = true
	case !n.open[id]:
		http.Error(w, "session not found", http.StatusNotFound)
		return
	}
	w.Header().Set(sessionHeader, id)
	if r.Method == http.MethodGet {
		n.mu.Unlock()
		n.stream(w, r)
		n.mu.Lock()
		return
	}
	n.began <- r
	body, err := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s: %s %v", n.me, r.Method, body, err)
}

func (n *node) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	n.began <- r
	for {
		select {
		case <-r.Context().Done():
			n.left <- struct{}{}
			return
		case e := <-n.events:
			if e == "" {
				return
			}
			fmt.Fprintf(w, "data: %s\n\n", e)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// ask sends a request to a node; headers come in pairs.
func (n *node) ask(ctx context.Context, method, path, body string, headers ...string) *http.Response {
	n.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, n.url+path, strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { res.Body.Close() })
	return res
}

// tell is ask for an answer that ends.
func (n *node) tell(method, body string, headers ...string) (int, string) {
	n.t.Helper()
	res := n.ask(n.t.Context(), method, "/mcp", body, headers...)
	b, err := io.ReadAll(res.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// begin opens a session and returns its id.
func (n *node) begin(headers ...string) string {
	n.t.Helper()
	res := n.ask(n.t.Context(), http.MethodPost, "/mcp", "initialize", headers...)
	<-n.began
	id := res.Header.Get(sessionHeader)
	if res.StatusCode != http.StatusOK || !idPattern.MatchString(id) {
		n.t.Fatalf("initialize: %d, id %q", res.StatusCode, id)
	}
	return id
}

func (n *node) wants(status int, text, method, body string, headers ...string) {
	n.t.Helper()
	if got, b := n.tell(method, body, headers...); got != status || !strings.Contains(b, text) {
		n.t.Errorf("%s %s: %d %q, want %d %q", method, body, got, b, status, text)
	}
}

func (n *node) unknown(id string, headers ...string) {
	n.t.Helper()
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		if got, b := n.tell(method, "x", append(headers, sessionHeader, id)...); got != http.StatusNotFound || b != "session not found\n" {
			n.t.Errorf("%s: %d %q, want an unknown session", method, got, b)
		}
	}
}

func TestAnyGatewayServesASession(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	nodes := []*node{newNode(t, r), newNode(t, r), newNode(t, r)}
	for _, home := range nodes {
		id := home.begin()
		for _, n := range nodes {
			n.wants(200, string(home.me)+" POST: hello <nil>", http.MethodPost, "hello", sessionHeader, id)
			n.wants(200, string(home.me)+" DELETE", http.MethodDelete, "", sessionHeader, id)
		}
	}
	// Without sessions any gateway answers for itself, whatever id comes along.
	nodes[1].wants(200, string(nodes[1].me), http.MethodPost, "modern", versionHeader, "2026-07-28")
}

func TestStreams(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	a, home := newNode(t, r), newNode(t, r)
	id := home.begin()
	ctx, leave := context.WithCancel(t.Context())
	res := a.ask(ctx, http.MethodGet, "/mcp", "", sessionHeader, id)
	if res.Header.Get(sessionHeader) != id || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("the stream's header: %v", res.Header)
	}
	<-home.began
	lines := bufio.NewReader(res.Body)
	for i := range 3 { // each is read before the next is sent
		home.events <- strconv.Itoa(i)
		if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("%q, %v", line, err)
		}
		_, _ = lines.ReadString('\n')
	}
	// The client leaves: so hears the home.
	leave()
	<-home.left
	// The home ends a stream: so hears the client.
	res = a.ask(t.Context(), http.MethodGet, "/mcp", "", sessionHeader, id)
	<-home.began
	home.events <- ""
	if _, err := io.ReadAll(res.Body); err != nil {
		t.Errorf("the end of a stream: %v", err)
	}
	// The gateway in between closes: the stream ends in good order.
	res = a.ask(t.Context(), http.MethodGet, "/mcp", "", sessionHeader, id)
	<-home.began
	a.Close()
	if _, err := io.ReadAll(res.Body); err != nil {
		t.Errorf("a stream when its gateway closes: %v", err)
	}
	<-home.left
}

func TestADeadHomeBreaksItsStreams(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	a, home := newNode(t, r), newNode(t, r)
	id := home.begin()
	res := a.ask(t.Context(), http.MethodGet, "/mcp", "", sessionHeader, id)
	<-home.began
	if err := home.server.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("a stream ended in good order though its home died")
	}
	a.unknown(id) // the registry still remembers the home, its address refuses
}

func TestAHomeThatStandsStill(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	a, home := newNode(t, r), newNode(t, r)
	a.out.HTTP2 = &http.HTTP2Config{SendPingTimeout: 50 * time.Millisecond, PingTimeout: 50 * time.Millisecond}
	a.out.TLSHandshakeTimeout = 50 * time.Millisecond
	proxy := newFreezer(t, home.peers)
	r.set(func() { r.holders[home.me.lease()] = proxy.addr })
	id := home.begin()
	res := a.ask(t.Context(), http.MethodGet, "/mcp", "", sessionHeader, id)
	<-home.began
	proxy.freeze()
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("a stream ended in good order though its home stands still")
	}
	a.wants(503, "unavailable", http.MethodPost, "x", sessionHeader, id)
	r.set(func() { delete(r.holders, home.me.lease()) }) // its entry expires
	a.unknown(id)
}

// freezer passes bytes between connections until it freezes.
type freezer struct {
	addr   string
	frozen chan struct{}
}

func (f *freezer) freeze() { close(f.frozen) }

func newFreezer(t *testing.T, target string) *freezer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &freezer{addr: l.Addr().String(), frozen: make(chan struct{})}
	var wg sync.WaitGroup
	var conns []net.Conn
	var mu sync.Mutex
	keep := func(c net.Conn) { mu.Lock(); defer mu.Unlock(); conns = append(conns, c) }
	pass := func(to, from net.Conn) {
		b := make([]byte, 32<<10)
		for {
			n, err := from.Read(b)
			select {
			case <-f.frozen:
				return
			default:
			}
			if _, werr := to.Write(b[:n]); err != nil || werr != nil {
				_, _ = to.Close(), from.Close()
				return
			}
		}
	}
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			keep(in)
			out, err := net.Dial("tcp", target)
			if err != nil {
				return
			}
			keep(out)
			wg.Go(func() { pass(out, in) })
			wg.Go(func() { pass(in, out) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return f
}

func TestWhatTheHomeGets(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	a, home := newNode(t, r), newNode(t, r)
	id := home.begin("Authorization", "Bearer me")
	res := a.ask(t.Context(), http.MethodPost, "/mcp?q=1;2", "body", sessionHeader, id, "Authorization", "Bearer me",
		"Origin", "https://app.example.org", "X-Forwarded-For", "192.0.2.9", "Forwarded", "for=192.0.2.9", requestIDHeader, "7", "Mcp-Method", "tools/call")
	got := <-home.began
	for k, want := range map[string]string{
		"Authorization": "Bearer me", "Origin": "https://app.example.org", "X-Forwarded-For": "192.0.2.9", "Forwarded": "for=192.0.2.9",
		requestIDHeader: "req-7", "Mcp-Method": "tools/call",
	} {
		if v := got.Header.Values(k); len(v) != 1 || v[0] != want {
			t.Errorf("%s: %q, want %q", k, v, want)
		}
	}
	if want := strings.TrimPrefix(a.url, "http://"); got.Host != want || got.URL.RawQuery != "q=1;2" || got.ContentLength != 4 {
		t.Errorf("host %s, query %s, length %d; want %s", got.Host, got.URL.RawQuery, got.ContentLength, want)
	}
	if v := res.Header.Values(requestIDHeader); len(v) != 1 || v[0] != "req-req-7" {
		t.Errorf("the answer's id is %q, want the home's, once", v)
	}
}

func TestUnknownSessions(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	a, home := newNode(t, r), newNode(t, r)
	id := home.begin("Authorization", "me")
	own := a.begin("Authorization", "me")
	other := newNode(t, newRegistry(), func(o *Options) { o.Secret = []byte("of another farm, also 32 bytes ...") })
	for name, c := range map[string]struct{ id, auth string }{
		"forged":                      {rand.Text() + rand.Text() + rand.Text(), "me"},
		"a plain one":                 {rand.Text(), "me"},
		"one of another principal":    {id, "you"},
		"one of nobody":               {id, ""},
		"own, of another principal":   {own, "you"},
		"of another farm":             {other.begin("Authorization", "me"), "me"},
		"cut off":                     {id[:len(id)-1], "me"},
		"made longer":                 {id + "A", "me"},
		"in other letters":            {strings.ToLower(id), "me"},
		"another home":                {string(a.me) + id[nameLength:], "me"},
		"an address":                  {"http://127.0.0.1:1/" + id, "me"},
		"wild":                        {"gateway-*", "me"},
		"empty":                       {"", "me"},
		"its home's, of its own make": {id[nameLength : len(id)-macLength], "me"},
		"long":                        {strings.Repeat("A", 60000), "me"},
	} {
		before := a.served.Load() + home.served.Load()
		a.unknown(c.id, "Authorization", c.auth)
		home.unknown(c.id, "Authorization", c.auth)
		if now := a.served.Load() + home.served.Load(); now != before {
			t.Errorf("%s: reached a session handler", name)
		}
	}
	for i := range id { // every letter counts
		letter := "A"
		if id[i] == 'A' {
			letter = "B"
		}
		if _, _, ok := a.seal.open(sealedTo{"/mcp", "me"}, id[:i]+letter+id[i+1:]); ok && i != len(id)-1 {
			t.Errorf("letter %d can be changed", i)
		}
	}
	res := a.ask(t.Context(), http.MethodPost, "/mcp/other", "x", sessionHeader, id, "Authorization", "me")
	if res.StatusCode != http.StatusNotFound {
		t.Errorf("at another endpoint: %d", res.StatusCode)
	}
	res = a.ask(t.Context(), http.MethodPost, "/mcp", "x", sessionHeader, id, sessionHeader, own, "Authorization", "me")
	if res.StatusCode != http.StatusNotFound {
		t.Errorf("two ids: %d", res.StatusCode)
	}
	res = a.ask(t.Context(), http.MethodPatch, "/mcp", "x", sessionHeader, id, "Authorization", "me")
	if res.StatusCode != http.StatusNotFound {
		t.Errorf("a method without a meaning: %d", res.StatusCode)
	}
	if n := r.looked(); n != 0 {
		t.Errorf("the registry was asked %d times", n)
	}
}

func TestHomesThatAreGone(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	a, home := newNode(t, r), newNode(t, r)
	id := home.begin()
	broken := errors.New("no ledger")
	r.set(func() { r.down = broken })
	a.wants(503, "unavailable", http.MethodPost, "x", sessionHeader, id)
	r.set(func() { r.down = nil })
	a.wants(200, "POST", http.MethodPost, "x", sessionHeader, id)
	// What is known stays good while the registry is away, also when it is old.
	r.set(func() { r.down = broken })
	a.homes.mu.Lock()
	for k, v := range a.homes.known {
		v.seen = v.seen.Add(-time.Minute)
		a.homes.known[k] = v
	}
	a.homes.mu.Unlock()
	a.wants(200, "POST", http.MethodPost, "x", sessionHeader, id)
	r.set(func() { r.down = nil })
	// The home leaves.
	home.Close()
	r.set(func() {
		if len(r.holders) != 1 {
			t.Errorf("the registry holds %v", slices.Collect(maps.Keys(r.holders)))
		}
	})
	a.unknown(id)
	home.unknown(id)
	// It never was.
	alone := newNode(t, nil)
	alone.unknown(home.seal.seal(sealedTo{"/mcp", ""}, home.me, rand.Text()))
	alone.wants(200, string(alone.me), http.MethodPost, "x", sessionHeader, alone.begin())
}

func TestNoSecondHop(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	a, b, c := newNode(t, r), newNode(t, r), newNode(t, r)
	id := c.begin()
	r.set(func() { r.holders[c.me.lease()] = b.peers }) // an address that was given to another
	before := r.looked()
	a.unknown(id)
	if n := r.looked() - before; n != 1 {
		t.Errorf("%d looks into the registry, want only the first gateway's", n)
	}
	if n := b.served.Load() + c.served.Load() - 1; n != 0 {
		t.Errorf("%d requests reached a session handler", n)
	}
}

func TestPeersOnly(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	a, home := newNode(t, r), newNode(t, r)
	stranger := newNode(t, newRegistry(), func(o *Options) { o.Secret = []byte("of another farm, also 32 bytes ...") })
	id := home.begin()
	noKey := a.key.tls()
	noKey.Certificates = nil
	http1 := new(http.Protocols)
	http1.SetHTTP1(true)
	for name, tr := range map[string]*http.Transport{
		"a stranger":      stranger.out,
		"without a key":   {TLSClientConfig: noKey, Protocols: onlyHTTP2()},
		"in the clear":    {},
		"with HTTP/1 TLS": {TLSClientConfig: a.key.tls(), Protocols: http1},
	} {
		scheme := "https://"
		if name == "in the clear" {
			scheme = "http://"
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, scheme+home.peers+"/mcp", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(sessionHeader, id)
		res, err := tr.RoundTrip(req)
		if err == nil {
			res.Body.Close()
			if res.StatusCode != http.StatusBadRequest { // Go's word for HTTP at a TLS port
				t.Errorf("%s: %d", name, res.StatusCode)
			}
		}
		tr.CloseIdleConnections()
	}
	// A gateway does not send to who is none.
	r.set(func() { r.holders[home.me.lease()] = stranger.peers })
	a.wants(503, "unavailable", http.MethodPost, "x", sessionHeader, id)
	// Nor does one serve anything else to another.
	for _, c := range []struct{ method, path, id string }{
		{http.MethodGet, "/v1/x", id},
		{http.MethodPost, "/mcp", ""},
		{http.MethodPatch, "/mcp", id},
		{http.MethodPost, "/mcp", a.begin()},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, "https://"+home.peers+c.path, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		if c.id != "" {
			req.Header.Set(sessionHeader, c.id)
		}
		res, err := a.out.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusNotFound {
			t.Errorf("%s %s: %d", c.method, c.path, res.StatusCode)
		}
	}
	if n := home.served.Load(); n != 1 {
		t.Errorf("%d requests reached the session handler, want that of its client", n)
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	a, home := newNode(t, r, func(o *Options) { o.MaxRelays, o.MaxBodyBytes = 1, 10 }), newNode(t, r)
	id := home.begin()
	a.wants(413, "10 bytes", http.MethodPost, "12345678901", sessionHeader, id)
	if n := home.served.Load(); n != 1 {
		t.Errorf("a body that is too long was handed over")
	}
	res := a.ask(t.Context(), http.MethodGet, "/mcp", "", sessionHeader, id)
	<-home.began
	a.wants(503, "unavailable", http.MethodPost, "x", sessionHeader, id)
	home.events <- ""
	if _, err := io.ReadAll(res.Body); err != nil {
		t.Error(err)
	}
}

func TestAConnectionThatIsLost(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	a, home := newNode(t, r), newNode(t, r)
	proxy := faultproxy.New(t, home.peers)
	r.set(func() { r.holders[home.me.lease()] = proxy.Addr() })
	proxy.SetFault(func(conn int) faultproxy.Fault {
		if conn == 1 {
			return faultproxy.Fault{Cut: true, After: 200} // within the handshake
		}
		return faultproxy.Fault{}
	})
	id := home.begin()
	a.wants(503, "unavailable", http.MethodPost, "x", sessionHeader, id)
	a.wants(200, "POST", http.MethodPost, "x", sessionHeader, id)
}

func TestTheEntryIsKept(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	n := newNode(t, r, func(o *Options) { o.RenewEvery = time.Millisecond })
	<-r.taken
	<-r.renewed
	r.set(func() { clear(r.holders) }) // an outage outlasted the lease
	<-r.taken
	if h, err := r.LeaseHolder(t.Context(), n.me.lease()); err != nil || h != n.peers {
		t.Errorf("the entry is %q, %v", h, err)
	}
	r.set(func() { r.down = errors.New("no ledger") })
	<-r.renewed
	<-r.renewed
	r.set(func() { r.down = nil })
	n.Close()
	if _, err := r.LeaseHolder(t.Context(), n.me.lease()); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("after the end: %v", err)
	}
	r.set(func() { r.down = errors.New("no ledger") })
	if err := n.Join(t.Context(), n.peers); err == nil {
		t.Error("entered a registry that is away")
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	good := Options{Secret: farmSecret, Principal: func(*http.Request) string { return "" }, Fail: func(http.ResponseWriter, *http.Request, error) {}}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Options){
		"no secret":    func(o *Options) { o.Secret = nil },
		"no principal": func(o *Options) { o.Principal = nil },
		"no fail":      func(o *Options) { o.Fail = nil },
		"negative":     func(o *Options) { o.MaxRelays = -1 },
	} {
		o := good
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzOpen(f *testing.F) {
	s, _, err := keys(farmSecret)
	if err != nil {
		f.Fatal(err)
	}
	to := sealedTo{"/mcp", "t/key:1"}
	good := s.seal(to, replica(rand.Text()), rand.Text())
	f.Add(good, "/mcp", "t/key:1")
	f.Add(good, "/mcpt", "/key:1")
	f.Add(strings.Repeat("A", 78), "", "")
	f.Add("*.>", "/mcp", "x")
	f.Fuzz(func(t *testing.T, id, endpoint, principal string) {
		home, inner, ok := s.open(sealedTo{endpoint, principal}, id)
		if ok != (id == good && endpoint == to.endpoint && principal == to.principal) && s.seal(sealedTo{endpoint, principal}, home, inner) != id {
			t.Errorf("%q opened for %q, %q: %v", id, endpoint, principal, ok)
		}
		if ok && len(home.lease()) != len("gateway-")+nameLength {
			t.Errorf("a home named %q", home)
		}
	})
}
