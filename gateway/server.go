package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/gateway/internal/contract"
	"github.com/vidforge/vidforge/gateway/internal/httpapi"
	"github.com/vidforge/vidforge/gateway/internal/limits"
	"github.com/vidforge/vidforge/gateway/internal/session"
	"github.com/vidforge/vidforge/gateway/internal/videorender"
	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

// server is everything behind the two listeners.
type server struct {
	cfg       Config
	publicURL string
	// signInCode is what a person signs in by; empty where that is not how.
	signInCode string
	contract   *contract.Service
	// older speaks the video_render contract over the same farm.
	older    *contract.Service
	stdio    *stdioServer // nil without Config.Stdio
	sessions *session.Sessions
	gate     *limits.Gate
	mux      *http.ServeMux
	handler  http.Handler
	requests *prometheus.HistogramVec
}

// shared is what the gateways of a farm have in common.
type shared struct {
	// formKey signs the approval page's forms, sessionKey what sessions need.
	// signInKey seals cookies.
	formKey, sessionKey, signInKey []byte
	// registry finds gateways. Nil: there is only one.
	registry session.Registry
}

// newServer puts the handlers together. bound is the address for clients.
func newServer(c Config, f facade, with shared, bound string) (*server, error) {
	public, err := c.publicURL(bound)
	if err != nil {
		return nil, err
	}
	s := &server{cfg: c, publicURL: public.String(), mux: http.NewServeMux()}
	a := &auth.Authenticator{Fail: func(w http.ResponseWriter, r *http.Request, err error) { httpapi.Fail(s.contract, w, r, err) }}
	if c.KeysFile != "" {
		if a.Keys, err = auth.OpenKeys(c.KeysFile, c.acceptKeys, time.Now, c.Logger); err != nil {
			return nil, fmt.Errorf("read API keys: %w", err)
		}
	}
	human := c.humanApproval(a.Keys)
	if err := s.openSignIn(a, public, human, with.signInKey); err != nil {
		return nil, fmt.Errorf("sign people in: %w", err)
	}
	f = overseen{f, human, c.Logger}
	if err := c.authorize(a, public); err != nil {
		return nil, err
	}
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vidforge_requests_refused_total", Help: "Requests beyond a limit of their tenant or credential, by limit.",
	}, []string{"limit"})
	if err := c.Registry.Register(refused); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	s.gate = limits.New(f, s.limitsOf(a))
	settings := contract.Config{
		Farm: f, Version: c.Version, PublicURL: public.String(), Logger: c.Logger, Tracer: telemetry.Tracer(),
		Limits: s.shownLimits(f, s.limitsOf(a)), Limited: func(limit string) { refused.WithLabelValues(limit).Inc() }, MaxSessions: max(0, c.MaxSessions), HumanApproval: human,
	}
	if s.contract, err = contract.New(settings); err != nil {
		return nil, fmt.Errorf("make the MCP contract: %w", err)
	}
	settings.Dialect = videorender.Dialect()
	if s.older, err = contract.New(settings); err != nil {
		return nil, errors.Join(fmt.Errorf("make the video_render contract: %w", err), s.contract.Close())
	}
	httpapi.Register(s.mux, httpapi.Config{
		Farm: f, Contract: s.contract, Auth: a, Admit: func(next http.Handler) http.Handler { return s.admit(a.Fail, next) }, BasePath: public.Path, Stall: c.StallTimeout, HumanApproval: human, CSRFKey: with.formKey, Logger: c.Logger,
	})
	s.sessions, err = session.New(session.Options{
		Secret: with.sessionKey, Registry: with.registry, RenewEvery: f.Limits().Tuning.BeatEvery, WriteTimeout: c.StallTimeout,
		Principal: func(r *http.Request) string {
			req, _ := auth.RequestFrom(r.Context())
			return req.Key()
		},
		Fail: a.Fail, Metrics: c.Registry, Logger: c.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("make sessions: %w", err)
	}
	for _, endpoint := range s.endpoints() {
		own := a.For(endpoint.Path())
		s.mux.Handle(endpoint.Path(), own.Middleware(s.admit(refuseMCP(endpoint, own.Fail), sized(own.Fail, s.sessions.Handler(endpoint.Path(), own.ScopeGate(endpoint.RequestScopes,
			func(need []string) error { return contract.InsufficientScope(need, endpoint.Endpoint()) }, mcpHandler(endpoint)))))))
		if err := own.RegisterMetadata(s.mux); err != nil {
			return nil, fmt.Errorf("serve metadata: %w", err)
		}
	}
	origins, err := auth.ParseOrigins(c.AllowedOrigins)
	if err != nil {
		return nil, fmt.Errorf("AllowedOrigins: %w", err)
	}
	guarded, err := auth.Guard(public, origins, s.mux)
	if err != nil {
		return nil, fmt.Errorf("guard against other sites: %w", err)
	}
	s.requests = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "vidforge_http_request_duration_seconds", Help: "Time to answer a request, by route, method and status.",
		Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
	}, []string{"route", "method", "status"})
	if err := c.Registry.Register(s.requests); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	s.handler = s.observe(guarded)
	if c.Stdio != nil {
		if s.stdio, err = s.newStdio(settings, f); err != nil {
			return nil, fmt.Errorf("serve standard streams: %w", err)
		}
	}
	return s, nil
}

// endpoints are the MCP contracts that are served.
func (s *server) endpoints() []*contract.Service { return []*contract.Service{s.contract, s.older} }

// closeEndpoints ends the streams of all MCP clients and waits for them.
func (s *server) closeEndpoints() error {
	var wg sync.WaitGroup
	errs := make([]error, len(s.endpoints()))
	for i, endpoint := range s.endpoints() {
		wg.Go(func() { errs[i] = endpoint.Close() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// mcpHandler hands requests to an MCP handler with what it needs to know of them.
func mcpHandler(endpoint *contract.Service) http.Handler {
	next := endpoint.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, _ := auth.RequestFrom(r.Context())
		r = r.WithContext(mcptask.WithPrincipal(r.Context(), req))
		next.ServeHTTP(w, r)
	})
}

// requestIDPattern is what may come in as X-Request-Id; anything else is
// replaced, so that logs cannot be forged.
var requestIDPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// observe is around every request: its id, its span, its line in the log, its
// metric, and what becomes of a panic.
func (s *server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		_, route := s.mux.Handler(r)
		id := r.Header.Get("X-Request-ID")
		if !requestIDPattern.MatchString(id) {
			id = "req_" + render.NewAttemptID()
		}
		ctx := telemetry.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := telemetry.Tracer().Start(ctx, r.Method+" "+route, trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("http.request.method", r.Method), attribute.String("http.route", route)))
		defer span.End()
		ctx = auth.WithRequest(ctx, auth.Request{ID: id, Span: span.SpanContext()})
		who := &caller{}
		ctx = context.WithValue(ctx, callerKey{}, who)
		w.Header().Set("X-Request-ID", id)
		rec := &recorder{ResponseWriter: w}
		defer func() {
			p := recover()
			if p != nil && p != http.ErrAbortHandler { //nolint:errorlint,err113 // as net/http compares it
				s.cfg.Logger.ErrorContext(ctx, "panic", "request_id", id, "route", route, "panic", p, "stack", string(debug.Stack()))
				if rec.status == 0 {
					httpapi.Fail(s.contract, rec, r, fmt.Errorf("panic: %v", p))
					p = nil
				}
			}
			s.finish(ctx, r, route, id, who.tenant, rec, time.Since(began), span)
			if p != nil {
				panic(http.ErrAbortHandler)
			}
		}()
		r = r.WithContext(ctx)
		if err := withPatience(w, r, s.cfg.StallTimeout); err != nil {
			s.cfg.Logger.DebugContext(ctx, "request body", "request_id", id, "error", err)
		}
		next.ServeHTTP(rec, r)
	})
}

// finish records a request. Neither path nor query is logged: they hold
// handles and names.
func (s *server) finish(ctx context.Context, r *http.Request, route, id, tenant string, rec *recorder, took time.Duration, span trace.Span) {
	status := rec.status
	if status == 0 {
		status = http.StatusOK
	}
	span.SetAttributes(attribute.Int("http.response.status_code", status))
	if status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, http.StatusText(status))
	}
	s.requests.WithLabelValues(route, methodLabel(r.Method), strconv.Itoa(status)).Observe(took.Seconds())
	s.cfg.Logger.InfoContext(ctx, "request", "request_id", id, "method", r.Method, "route", route, "mcp_method", mcpMethod(r), telemetry.KeyTenant, tenant,
		"status", status, "bytes", rec.bytes, "ms", took.Milliseconds())
}

// methodLabel bounds the values of a label that clients could make up.
func methodLabel(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete, http.MethodOptions:
		return m
	default:
		return "other"
	}
}

var mcpMethodPattern = regexp.MustCompile(`^[a-z/]{1,40}$`)

// mcpMethod is the method of an MCP request as its header says.
func mcpMethod(r *http.Request) string {
	if m := r.Header.Get("Mcp-Method"); mcpMethodPattern.MatchString(m) {
		return m
	}
	return ""
}

// recorder remembers what was answered.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= http.StatusOK {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err //nolint:wrapcheck // this is the writer
}
