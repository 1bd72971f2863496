// Package faultproxy stands between a client and a server in tests, and loses
// connections the way networks do.
package faultproxy

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Fault is what happens to a connection. The zero value is none.
type Fault struct {
	// After is the number of bytes from the server after which it happens.
	After int64
	// Cut closes the connection.
	Cut bool
	// Stall keeps it open and passes nothing more on.
	Stall bool
}

// Proxy passes bytes between its clients and one server.
type Proxy struct {
	listener net.Listener
	target   string
	fault    atomic.Pointer[func(conn int) Fault]
	accepted atomic.Int64
	sent     atomic.Int64

	wg    sync.WaitGroup
	mu    sync.Mutex
	conns map[net.Conn]bool // nil once closed
}

// New starts a proxy to host:port that runs until the test ends.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, target: target, conns: map[net.Conn]bool{}}
	p.SetFault(func(int) Fault { return Fault{} })
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		p.mu.Lock()
		for c := range p.conns {
			_ = c.Close()
		}
		p.conns = nil
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

// Addr is where clients connect, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// SetFault decides for every connection made from now on, counted from 1, what
// happens to it.
func (p *Proxy) SetFault(f func(conn int) Fault) { p.fault.Store(&f) }

// Accepted counts the connections so far.
func (p *Proxy) Accepted() int64 { return p.accepted.Load() }

// Sent counts the bytes passed on to the server so far.
func (p *Proxy) Sent() int64 { return p.sent.Load() }

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		fault := (*p.fault.Load())(int(p.accepted.Add(1)))
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.keep(client, server) {
			return
		}
		var both sync.WaitGroup
		both.Go(func() {
			_, _ = io.Copy(counter{server, &p.sent}, client)
			_ = server.Close()
		})
		both.Go(func() {
			if fault.Cut || fault.Stall {
				_, err := io.CopyN(client, server, fault.After)
				if err == nil && fault.Stall {
					_, _ = io.Copy(io.Discard, server)
				}
			} else {
				_, _ = io.Copy(client, server)
			}
			if !fault.Stall {
				_ = client.Close()
			}
		})
		p.wg.Go(func() {
			both.Wait()
			p.forget(client, server)
		})
	}
}

func (p *Proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.conns == nil {
			_ = c.Close()
			continue
		}
		p.conns[c] = true
	}
	return p.conns != nil
}

func (p *Proxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}

// counter counts what is written.
type counter struct {
	w io.Writer
	n *atomic.Int64
}

func (c counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n.Add(int64(n))
	return n, err
}
