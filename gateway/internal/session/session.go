// Package session lets any gateway of a farm take the requests of any session
// of an older MCP client.
//
// A session lives in the memory of the gateway that opened it, its home. Its id
// is sealed to the endpoint and the principal it was given to, and names the
// home by a random word that is good for nothing but a look into the registry,
// where a live home keeps its address. A gateway that gets a request of a
// session that lives elsewhere hands it over to that home, credential and all,
// within one hop: homes take what is handed over by a listener of its own, from
// holders of the farm's key only, authenticate the client again, and never hand
// on. An id that is forged, or sealed to another principal or endpoint, or whose
// home is gone, is an unknown session: 404, after which clients start anew.
package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vidforge/vidforge/pkg/ledger"
)

const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = "Mcp-Protocol-Version"
	// sessionless is the first version of MCP without sessions.
	sessionless = "2026-07-28"
)

// Registry is what the farm remembers of its gateways: named leases, of which
// each gateway holds one with its address as the holder.
type Registry interface {
	LeaseName(ctx context.Context, name, holder string) (ledger.Lease, error)
	LeaseHolder(ctx context.Context, name string) (string, error)
}

// Options of Sessions.
type Options struct {
	// Secret is the farm's, at least 32 random bytes. Required.
	Secret []byte
	// Registry finds other gateways. Nil: there are none.
	Registry Registry
	// RenewEvery is the time between two renewals of this gateway's entry, a
	// third of a lease at most. Defaults to 6 s.
	RenewEvery time.Duration
	// MaxBodyBytes bounds the body of a request that is handed over. Defaults
	// to 1 MiB.
	MaxBodyBytes int64
	// MaxRelays bounds the requests and streams that are handed over at once.
	// Defaults to 8192.
	MaxRelays int
	// WriteTimeout bounds each single write to a client of a stream that is
	// handed over. Defaults to 30 s.
	WriteTimeout time.Duration
	// Principal names whose request it is: two requests of one session must
	// have the same. Required.
	Principal func(*http.Request) string
	// Fail answers a request that cannot be handed over just now. Required.
	Fail func(w http.ResponseWriter, r *http.Request, err error)
	// Metrics gets the counter of what was handed over. Nil: nobody counts.
	Metrics prometheus.Registerer
	// Logger defaults to slog.Default(). It sees no session ids.
	Logger *slog.Logger
}

// Sessions are the sessions of one gateway, and its way to those of others.
// Its methods may be called at once.
type Sessions struct {
	opts   Options
	me     replica
	seal   sealer
	key    farmKey
	homes  *homes
	relays chan struct{} // a token each
	out    *http.Transport

	endpoints map[string]bool // filled before the first request

	closing context.Context //nolint:containedctx // the sessions' own life
	close   context.CancelFunc
	wg      sync.WaitGroup
	lonely  sync.Once // to say that nobody else can be reached

	count *prometheus.CounterVec
}

// New makes the sessions of a gateway with a new name.
func New(o Options) (*Sessions, error) {
	switch {
	case len(o.Secret) == 0 || o.Principal == nil || o.Fail == nil:
		return nil, errors.New("session: Secret, Principal and Fail are required")
	case o.RenewEvery < 0 || o.MaxBodyBytes < 0 || o.MaxRelays < 0 || o.WriteTimeout < 0:
		return nil, errors.New("session: limits and times cannot be negative")
	}
	o.RenewEvery = cmp.Or(o.RenewEvery, 6*time.Second)
	o.MaxBodyBytes = cmp.Or(o.MaxBodyBytes, 1<<20)
	o.MaxRelays = cmp.Or(o.MaxRelays, 8192)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 30*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	s := &Sessions{
		opts: o, me: replica(rand.Text()), relays: make(chan struct{}, o.MaxRelays), endpoints: map[string]bool{},
		count: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vidforge_session_handovers_total",
			Help: "Requests of sessions that live at another gateway, by what became of them: done, gone (no such home any more), failed, busy.",
		}, []string{"outcome"}),
	}
	var err error
	if s.seal, s.key, err = keys(o.Secret); err != nil {
		return nil, err
	}
	s.homes = newHomes(o.Registry)
	s.out = s.key.transport()
	s.closing, s.close = context.WithCancel(context.Background())
	if o.Metrics != nil {
		if err := o.Metrics.Register(s.count); err != nil {
			return nil, err //nolint:wrapcheck // the caller says what it makes
		}
	}
	return s, nil
}

// Handler stands before an endpoint's MCP handler, behind authentication. next
// never sees a request of a session that lives elsewhere, and works with ids
// of its own making. Call it before requests come.
func (s *Sessions) Handler(endpoint string, next http.Handler) http.Handler {
	s.endpoints[endpoint] = true
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(versionHeader) >= sessionless {
			next.ServeHTTP(w, r)
			return
		}
		holder := sealedTo{endpoint: endpoint, principal: s.opts.Principal(r)}
		sealed, there := r.Header[sessionHeader]
		if !there {
			s.serve(w, r, next, holder)
			return
		}
		if len(sealed) != 1 {
			unknown(w) // whoever routes by the one must not be told the other
			return
		}
		home, inner, ok := s.seal.open(holder, sealed[0])
		switch {
		case !ok:
			unknown(w)
		case home != s.me && (fromPeer(r.Context()) || !relayed(r.Method)):
			unknown(w)
		case home != s.me:
			s.relay(w, r, home)
		case s.closing.Err() != nil:
			unknown(w) // it is about to be: the client may as well start anew elsewhere
		default:
			r.Header.Set(sessionHeader, inner)
			s.serve(w, r, next, holder)
		}
	})
}

func (s *Sessions) serve(w http.ResponseWriter, r *http.Request, next http.Handler, holder sealedTo) {
	next.ServeHTTP(&sealingWriter{ResponseWriter: w, seal: func(inner string) string { return s.seal.seal(holder, s.me, inner) }}, r)
}

// unknown is the one answer to ids that mean nothing here, in the words of the
// handler behind.
func unknown(w http.ResponseWriter) {
	http.Error(w, "session not found", http.StatusNotFound)
}

// relayed reports whether requests of this method belong to sessions.
func relayed(method string) bool {
	return method == http.MethodPost || method == http.MethodGet || method == http.MethodDelete
}

// sealingWriter seals the session id in the header of an answer.
type sealingWriter struct {
	http.ResponseWriter
	seal func(inner string) string
	done bool
}

// Unwrap is for http.ResponseController.
func (w *sealingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *sealingWriter) header() {
	if w.done {
		return
	}
	w.done = true
	if inner := w.Header().Get(sessionHeader); inner != "" {
		w.Header().Set(sessionHeader, w.seal(inner))
	}
}

// WriteHeader implements http.ResponseWriter.
func (w *sealingWriter) WriteHeader(status int) {
	if status >= http.StatusOK {
		w.header()
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *sealingWriter) Write(b []byte) (int, error) {
	w.header()
	return w.ResponseWriter.Write(b) //nolint:wrapcheck // this is the writer
}

// FlushError is for http.ResponseController: a flush may send the header.
func (w *sealingWriter) FlushError() error {
	w.header()
	return http.NewResponseController(w.ResponseWriter).Flush() //nolint:wrapcheck // this is the writer
}

// Flush implements http.Flusher.
func (w *sealingWriter) Flush() { _ = w.FlushError() }

// replica is the random name of a gateway process.
type replica string

// lease is the name of the replica's entry in the registry.
func (r replica) lease() string { return "gateway-" + strings.ToLower(string(r)) }
