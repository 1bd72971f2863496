// Package ops serves what operators and orchestrators ask a process:
//
//	/healthz  200 as long as the process runs
//	/readyz   200 when it does its work, else 503 and why
//	/metrics  Prometheus metrics
//
// It belongs on an address of its own that clients cannot reach.
package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	checkTimeout      = 10 * time.Second
	readHeaderTimeout = 10 * time.Second
	scrapeTimeout     = 30 * time.Second
)

// Options of a Server.
type Options struct {
	// Listen is the address; port 0 is any free one. Required.
	Listen string
	// Registry holds the metrics. Defaults to a new one. The collectors of the
	// Go runtime and of the process are added to it.
	Registry *prometheus.Registry
	// Logger gets why the process is not ready. Defaults to slog.Default().
	Logger *slog.Logger
}

// Server answers operators. Before Ready it says that the process starts.
type Server struct {
	log      *slog.Logger
	http     *http.Server
	listener net.Listener
	ended    chan error

	mu    sync.Mutex
	state string // why it is not ready; "" when check decides
	check func(context.Context) error
}

// Start listens and serves until Close.
func Start(ctx context.Context, o Options) (*Server, error) {
	s := &Server{log: cmp.Or(o.Logger, slog.Default()), state: "starting", ended: make(chan error, 1)}
	registry := cmp.Or(o.Registry, prometheus.NewRegistry())
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	var err error
	if s.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", o.Listen); err != nil {
		return nil, fmt.Errorf("listen for operators: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { s.say(r.Context(), w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{Timeout: scrapeTimeout}))
	s.http = &http.Server{
		Handler: mux, ReadHeaderTimeout: readHeaderTimeout,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.log.InfoContext(ctx, "answers operators", "address", s.Addr())
	go func() {
		err := s.http.Serve(s.listener)
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		s.ended <- err
	}()
	return s, nil
}

// Addr is the bound address.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// NotReady makes /readyz answer 503 with the reason, which must hold no secret:
// "waits for NATS", "draining".
func (s *Server) NotReady(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = reason
}

// Ready makes check decide. What it returns is logged, not shown.
func (s *Server) Ready(check func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.check = "", check
}

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	state, check := s.state, s.check
	s.mu.Unlock()
	if state != "" {
		s.say(r.Context(), w, http.StatusServiceUnavailable, state)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	if err := check(ctx); err != nil {
		s.log.WarnContext(ctx, "not ready", "error", err)
		s.say(ctx, w, http.StatusServiceUnavailable, "not ready")
		return
	}
	s.say(ctx, w, http.StatusOK, "ok")
}

func (s *Server) say(ctx context.Context, w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if _, err := io.WriteString(w, text+"\n"); err != nil {
		s.log.DebugContext(ctx, "answer an operator", "error", err)
	}
}

// Close ends the server at once and waits for it.
func (s *Server) Close() error {
	if err := errors.Join(s.http.Close(), <-s.ended); err != nil {
		return fmt.Errorf("stop serving operators: %w", err)
	}
	return nil
}
