package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

const (
	requestIDHeader = "X-Request-ID"
	// statusClientLeft is for the log; nobody reads it.
	statusClientLeft = 499
)

// relay hands a request over to its session's home.
func (s *Sessions) relay(w http.ResponseWriter, r *http.Request, home replica) {
	select {
	case s.relays <- struct{}{}:
		defer func() { <-s.relays }()
	default:
		s.count.WithLabelValues("busy").Inc()
		s.fail(w, r, errors.New("too many requests are handed over at once"))
		return
	}
	hostport, err := s.homes.find(r.Context(), home)
	if err != nil {
		s.unreached(w, r, home, err)
		return
	}
	out, ok := s.outgoing(w, r)
	if !ok {
		return
	}
	client := &clientWriter{ResponseWriter: w, rc: http.NewResponseController(w), timeout: s.opts.WriteTimeout}
	client.extend()
	defer client.extend()
	answered := false
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(pr *httputil.ProxyRequest) { aim(pr, w, hostport) }, //nolint:contextcheck // the request's own
		Transport:     s.out,
		FlushInterval: -1,
		ModifyResponse: func(res *http.Response) error { //nolint:contextcheck // the stream also ends with the gateway
			answered = true
			for k := range res.Header {
				w.Header().Del(k) // the home's word counts, once
			}
			res.Body = s.untilClosed(r.Context(), r.Method, res.Body)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { s.unreached(w, r, home, err) },
		ErrorLog:     slog.NewLogLogger(s.opts.Logger.Handler(), slog.LevelDebug),
	}
	proxy.ServeHTTP(client, out)
	if answered {
		s.count.WithLabelValues("done").Inc()
	}
}

// outgoing reads a request's body, so that a slow client does not occupy the
// home, and so that what a connection's end left undone can be sent again. ok is
// false when the request was answered.
func (s *Sessions) outgoing(w http.ResponseWriter, r *http.Request) (out *http.Request, ok bool) {
	if r.Method != http.MethodPost {
		out = r.Clone(r.Context())
		out.Body, out.ContentLength = http.NoBody, 0
		return out, true
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.opts.MaxBodyBytes))
	if err != nil {
		if mbe := (*http.MaxBytesError)(nil); errors.As(err, &mbe) {
			http.Error(w, fmt.Sprintf("request body exceeds %d bytes", mbe.Limit), http.StatusRequestEntityTooLarge)
		} else {
			http.Error(w, "failed to read body", http.StatusBadRequest)
		}
		return nil, false
	}
	out = r.Clone(r.Context())
	out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	out.Body, out.ContentLength, out.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	return out, true
}

// aim sends a request to the home's address. All else stays as the client
// sent it: the home judges Host, Origin and credential for itself.
func aim(pr *httputil.ProxyRequest, w http.ResponseWriter, hostport string) {
	pr.Out.URL.Scheme, pr.Out.URL.Host, pr.Out.URL.RawQuery = "https", hostport, pr.In.URL.RawQuery
	pr.Out.Host = pr.In.Host
	for k, v := range pr.In.Header {
		if k == "Forwarded" || strings.HasPrefix(k, "X-Forwarded-") {
			pr.Out.Header[k] = v // ReverseProxy drops them
		}
	}
	pr.Out.Header.Del("Expect")
	if id := w.Header().Get(requestIDHeader); id != "" {
		pr.Out.Header.Set(requestIDHeader, id) // one name in both logs
	}
	telemetry.Inject(pr.In.Context(), propagation.HeaderCarrier(pr.Out.Header))
}

// unreached answers a request that its home did not.
func (s *Sessions) unreached(w http.ResponseWriter, r *http.Request, home replica, err error) {
	if r.Context().Err() != nil {
		w.WriteHeader(statusClientLeft)
		return
	}
	if gone := s.gone(r.Context(), home, err); gone {
		if s.opts.Registry == nil {
			s.lonely.Do(func() {
				s.opts.Logger.Warn("a request came for a session that another gateway opened, or this one before it was started anew; with more than one, set peer-listen")
			})
		}
		s.count.WithLabelValues("gone").Inc()
		unknown(w)
		return
	}
	s.count.WithLabelValues("failed").Inc()
	s.fail(w, r, err)
}

func (s *Sessions) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := render.Errorf(render.CodeUnavailable, render.BlameFarm, "The gateway that holds this session did not answer. Send the request again; if the session is gone by then, start a new one.")
	e.RetryAfter, e.Cause = time.Second, err
	s.opts.Fail(w, r, e)
}

// gone judges a failure. A home keeps its listener as long as it lives, so one
// whose address refuses is no more, whatever the registry still remembers. Of
// any other failure the registry knows whether it was the end.
func (s *Sessions) gone(ctx context.Context, home replica, err error) bool {
	if errors.Is(err, errGone) || errors.Is(err, syscall.ECONNREFUSED) {
		return true
	}
	_, err = s.homes.look(ctx, home)
	return errors.Is(err, errGone)
}

// untilClosed ends a stream in good order when this gateway closes. The answer
// to a POST is waited for.
func (s *Sessions) untilClosed(ctx context.Context, method string, body io.ReadCloser) io.ReadCloser {
	if method != http.MethodGet {
		return body
	}
	stop := context.AfterFunc(s.closing, func() { _ = body.Close() }) //nolint:contextcheck // as above; it ends a read
	return &closingBody{ReadCloser: body, closing: s.closing, request: ctx, stop: stop}
}

type closingBody struct {
	io.ReadCloser
	closing, request context.Context //nolint:containedctx // of the gateway and of the stream
	stop             func() bool
}

func (b *closingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && b.closing.Err() != nil && b.request.Err() == nil {
		err = io.EOF
	}
	return n, err
}

func (b *closingBody) Close() error {
	b.stop()
	return b.ReadCloser.Close() //nolint:wrapcheck // this is the reader
}

// clientWriter bounds each write to a client that may have stopped reading.
type clientWriter struct {
	http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
}

// Unwrap is for http.ResponseController.
func (w *clientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// extend gives the next write its full time. A writer without deadlines has none
// to set.
func (w *clientWriter) extend() {
	//nolint:errcheck,gosec // see above
	w.rc.SetWriteDeadline(time.Now().Add(w.timeout))
}

// Write implements http.ResponseWriter.
func (w *clientWriter) Write(b []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(b) //nolint:wrapcheck // this is the writer
}
