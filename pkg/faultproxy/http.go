package faultproxy

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// HTTPFault is what happens to one exchange. The zero value is none; several
// things may happen together.
type HTTPFault struct {
	// Status is answered with Header and Body instead of asking the server,
	// after the request's body was read.
	Status int
	Header http.Header
	Body   string
	// Latency is waited before the request goes on.
	Latency time.Duration
	// CutRequest closes both connections after so many bytes of the request's
	// body; -1 before it goes on at all.
	CutRequest int64
	// StallRequest passes on nothing more after so many bytes of the request's
	// body.
	StallRequest int64
	// CorruptRequest turns a bit of that byte of the request's body, counted
	// from 1.
	CorruptRequest int64
	// LoseAnswer closes the client's connection after the server has answered
	// in full.
	LoseAnswer bool
	// CutAnswer closes the client's connection after so many bytes of the
	// answer's body, which must be shorter than the body.
	CutAnswer int64
	// StallAnswer passes on nothing more after so many bytes of the answer's
	// body; -1 not even its header.
	StallAnswer int64
	// CorruptAnswer turns a bit of that byte of the answer's body, counted
	// from 1.
	CorruptAnswer int64
	// Rate is the most bytes a second in either direction, 0 for no limit.
	Rate int64
}

// SlowDown is how S3 asks for fewer requests.
func SlowDown() HTTPFault {
	return HTTPFault{Status: http.StatusServiceUnavailable, Body: "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"}
}

// HTTP passes requests on to one HTTP server.
type HTTP struct {
	target string
	server *http.Server
	addr   string
	client *http.Transport
	closed chan struct{}
	wg     sync.WaitGroup

	mu      sync.Mutex
	fault   func(n int, r *http.Request) HTTPFault
	n       int
	faults  int
	changed chan struct{} // closed and replaced when a fault has begun
}

// NewHTTP starts a proxy to host:port that runs until the test ends.
func NewHTTP(t testing.TB, target string) *HTTP {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &HTTP{target: target, addr: l.Addr().String(), closed: make(chan struct{}), changed: make(chan struct{}),
		client: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}}
	p.server = &http.Server{Handler: http.HandlerFunc(p.serve), ReadHeaderTimeout: time.Minute}
	p.wg.Go(func() { _ = p.server.Serve(l) })
	t.Cleanup(func() {
		p.mu.Lock()
		close(p.closed)
		p.mu.Unlock()
		_ = p.server.Close()
		p.client.CloseIdleConnections()
		p.wg.Wait()
	})
	return p
}

// Addr is where clients connect, host:port.
func (p *HTTP) Addr() string { return p.addr }

// SetFault decides for every request from now on what happens to it. n counts
// them from 1. The request's body must not be touched.
func (p *HTTP) SetFault(f func(n int, r *http.Request) HTTPFault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.n = f, 0
}

// Faults counts the requests to which something happened.
func (p *HTTP) Faults() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// Await waits until something has happened to n requests in all.
func (p *HTTP) Await(ctx context.Context, n int) error {
	for {
		p.mu.Lock()
		faults, changed := p.faults, p.changed
		p.mu.Unlock()
		if faults >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// enter counts a request that runs; false once the test is over.
func (p *HTTP) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed:
		return false
	default:
		p.wg.Add(1)
		return true
	}
}

func (p *HTTP) next(r *http.Request) HTTPFault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	if p.fault == nil {
		return HTTPFault{}
	}
	f := p.fault(p.n, r)
	if f.is() {
		p.faults++
		close(p.changed)
		p.changed = make(chan struct{})
	}
	return f
}

func (f HTTPFault) is() bool {
	return f.Status != 0 || f.Latency != 0 || f.CutRequest != 0 || f.StallRequest != 0 || f.CorruptRequest != 0 ||
		f.LoseAnswer || f.CutAnswer != 0 || f.StallAnswer != 0 || f.CorruptAnswer != 0 || f.Rate != 0
}

// errCut is the end of a body that the proxy cuts.
var errCut = errors.New("faultproxy: cut")

func (p *HTTP) serve(w http.ResponseWriter, r *http.Request) {
	if !p.enter() {
		panic(http.ErrAbortHandler)
	}
	defer p.wg.Done()
	f := p.next(r)
	p.sleep(r.Context(), f.Latency)
	switch {
	case f.CutRequest < 0:
		panic(http.ErrAbortHandler)
	case f.Status != 0:
		_, _ = io.Copy(io.Discard, r.Body)
		maps.Copy(w.Header(), f.Header)
		w.WriteHeader(f.Status)
		if r.Method != http.MethodHead {
			_, _ = io.WriteString(w, f.Body)
		}
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	out := r.Clone(ctx)
	out.URL.Scheme, out.URL.Host, out.RequestURI = "http", p.target, ""
	out.Body = p.body(ctx, r.Body, f.CutRequest, f.StallRequest, f.CorruptRequest, f.Rate)
	if r.ContentLength == 0 {
		out.Body = http.NoBody
	}
	// The host is part of the request's signature, and stays as it came.
	resp, err := p.client.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer func() { _ = resp.Body.Close() }()
	if f.LoseAnswer {
		_, _ = io.Copy(io.Discard, resp.Body)
		panic(http.ErrAbortHandler)
	}
	if f.StallAnswer < 0 {
		p.hang(r.Context())
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), resp.Header)
	if resp.ContentLength >= 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	w.WriteHeader(resp.StatusCode)
	body := p.body(r.Context(), resp.Body, f.CutAnswer, f.StallAnswer, f.CorruptAnswer, f.Rate)
	if _, err := io.Copy(flusher{w}, body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// flusher sends each piece at once, so that what came before a cut arrives.
type flusher struct{ http.ResponseWriter }

func (f flusher) Write(b []byte) (int, error) {
	n, err := f.ResponseWriter.Write(b)
	if err == nil {
		err = http.NewResponseController(f.ResponseWriter).Flush()
	}
	return n, err
}

// body is a body with its faults.
type body struct {
	io.ReadCloser
	p                   *HTTP
	ctx                 context.Context
	at                  int64
	cut, stall, corrupt int64
	rate                int64
}

func (p *HTTP) body(ctx context.Context, b io.ReadCloser, cut, stall, corrupt, rate int64) io.ReadCloser {
	return &body{b, p, ctx, 0, cut, stall, corrupt, rate}
}

func (b *body) Read(buf []byte) (int, error) {
	for _, end := range []int64{b.cut, b.stall} {
		if end > 0 {
			buf = buf[:min(int64(len(buf)), end-b.at)]
		}
	}
	if b.rate > 0 {
		buf = buf[:min(int64(len(buf)), max(1, b.rate/20))]
	}
	switch {
	case b.cut > 0 && b.at == b.cut:
		return 0, errCut
	case b.stall > 0 && b.at == b.stall:
		// The rest is read, so that the client's end of the connection is seen.
		if _, err := io.Copy(io.Discard, b.ReadCloser); err == nil {
			b.p.hang(b.ctx)
		}
		return 0, errCut
	}
	n, err := b.ReadCloser.Read(buf)
	if i := b.corrupt - 1 - b.at; i >= 0 && i < int64(n) {
		buf[i] ^= 1
	}
	b.at += int64(n)
	if b.rate > 0 {
		b.p.sleep(b.ctx, time.Duration(n)*time.Second/time.Duration(b.rate))
	}
	return n, err
}

func (p *HTTP) sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-p.closed:
	}
}

// hang waits until the client has gone away or the test is over.
func (p *HTTP) hang(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-p.closed:
	}
}

// Operation names what an S3 request does: "get", "put", "begin", "part",
// "complete", "abort", "stat", "bucket" (is it there), "delete", "list",
// "copy", "uploads", or its method.
func Operation(r *http.Request) string {
	q := r.URL.Query()
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case r.Method == http.MethodHead && key == "":
		return "bucket"
	case r.Method == http.MethodHead:
		return "stat"
	case r.Method == http.MethodGet && q.Has("uploads"):
		return "uploads"
	case r.Method == http.MethodGet && q.Has("list-type"):
		return "list"
	case r.Method == http.MethodGet:
		return "get"
	case r.Method == http.MethodPut && r.Header.Get("X-Amz-Copy-Source") != "":
		return "copy"
	case r.Method == http.MethodPut && q.Has("partNumber"):
		return "part"
	case r.Method == http.MethodPut && key != "":
		return "put"
	case r.Method == http.MethodPost && q.Has("uploads"):
		return "begin"
	case r.Method == http.MethodPost && q.Has("uploadId"):
		return "complete"
	case r.Method == http.MethodPost && q.Has("delete"):
		return "delete"
	case r.Method == http.MethodDelete && q.Has("uploadId"):
		return "abort"
	}
	return r.Method
}
