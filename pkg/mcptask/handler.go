package mcptask

import (
	"bytes"
	"context"
	"crypto/rand"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	versionHeader = "Mcp-Protocol-Version"
	methodHeader  = "Mcp-Method"
	nameHeader    = "Mcp-Name"
	sessionHeader = "Mcp-Session-Id"
	// requestHeader leads from a handler of a stateful session to the HTTP
	// request it serves. It is stripped from what arrives.
	requestHeader = "Mcptask-Request"
)

// sender is who sent the POST that a stateful session handles, and what of it
// the SDK drops.
type sender struct {
	principal any
	session   *session           // nil for initialize
	task      *TaskRequest       // params.task of a tools/call
	token     stdjson.RawMessage // its progress token
	made      *Task              // the task it made
}

type senderKey struct{}

// Handler serves MCP over Streamable HTTP: 2026-07-28 without sessions, older
// versions with them, both with tasks as far as they know any. It stands in
// front of two SDK servers and does what the SDK cannot.
type Handler struct {
	opts           Options
	modern, legacy http.Handler
	modernServer   *mcp.Server
	legacyServer   *mcp.Server

	closing context.Context //nolint:containedctx // the handler's own life
	close   context.CancelFunc
	wg      sync.WaitGroup

	// requests holds a sender per POST of an older client in flight.
	requests sync.Map

	// calls are the POSTs of older clients in flight, which Close lets end: the
	// SDK cuts off what a session still answers when it is closed. None begins
	// once closed is set. A held tasks/result is none: it ends with closing.
	calls sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	sessions map[string]*session
	// opening counts the sessions on their way, by principal key.
	opening map[string]int

	shared *shared

	slowGet bool // tests: leave tasks/get to the SDK
}

// New returns a Handler. Close it together with http.Server.Shutdown (by
// RegisterOnShutdown): Shutdown waits for the streams that Close ends.
func New(o Options) (*Handler, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	h := &Handler{opts: o, sessions: map[string]*session{}, opening: map[string]int{}, shared: newShared()}
	h.closing, h.close = context.WithCancel(context.Background())
	var err error
	if h.modernServer, err = h.newServer(true); err != nil {
		return nil, err
	}
	if h.legacyServer, err = h.newServer(false); err != nil {
		return nil, err
	}
	// Sessions are timed here, since the SDK sees only some of their requests.
	sdk := func(s *mcp.Server, stateless bool) http.Handler {
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{
			Stateless:                    stateless,
			PropagateRequestCancellation: true,
			MaxRequestBodyBytes:          o.MaxBodyBytes,
			Logger:                       o.Server.Logger,
			// Checked here, for what never reaches the SDK as well.
			DisableLocalhostProtection: true,
		})
	}
	h.modern, h.legacy = sdk(h.modernServer, true), sdk(h.legacyServer, false)
	return h, nil
}

// ResourceUpdated tells every client that subscribed to a resource, of either
// generation, that it changed.
func (h *Handler) ResourceUpdated(ctx context.Context, uri string) error {
	p := &mcp.ResourceUpdatedNotificationParams{URI: uri}
	if err := errors.Join(h.modernServer.ResourceUpdated(ctx, p), h.legacyServer.ResourceUpdated(ctx, p)); err != nil {
		return fmt.Errorf("announce resource update: %w", err)
	}
	return nil
}

func (h *Handler) legacySessions() iter.Seq[*mcp.ServerSession] { return h.legacyServer.Sessions() }

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w := newDeadlineWriter(rw, h.opts.WriteTimeout)
	defer w.extend()
	switch {
	case h.closing.Err() != nil:
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return
	case !h.opts.DisableLocalhostProtection && rebound(r):
		http.Error(w, "forbidden: Host header", http.StatusForbidden)
		return
	}
	if err := h.opts.CrossOrigin.Check(r); err != nil {
		http.Error(w, "forbidden: cross-origin request", http.StatusForbidden)
		return
	}
	r.Header.Del(requestHeader)
	w.Header().Set("X-Accel-Buffering", "no")

	modern := r.Header.Get(versionHeader) >= Version20260728
	switch {
	case modern && r.Method == http.MethodPost:
		h.serveModern(w, r)
	case modern, r.Method != http.MethodPost && r.Header.Get(sessionHeader) == "":
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	default:
		h.serveLegacy(w, r)
	}
}

// rebound reports a request to a loopback address under another host's name,
// which is how DNS rebinding looks.
func rebound(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && loopback(addr.String()) && !loopback(r.Host)
}

func loopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func (h *Handler) serveModern(w *deadlineWriter, r *http.Request) {
	if msg := normaliseHeaders(r.Header); msg != "" {
		h.refuseHeaders(w, r, msg)
		return
	}
	r.Header.Del("Last-Event-ID") // means nothing here, and the SDK minds it
	method := r.Header.Get(methodHeader)
	if !isTaskMethod(method) && method != methodListen || !acceptable(r) {
		h.modern.ServeHTTP(w, r) // which compares headers and body itself
		return
	}
	body, ok := h.readBody(w, r)
	if !ok {
		return
	}
	m, err := parseMessage(body)
	if err != nil {
		h.writeError(w, http.StatusBadRequest, jsonrpc.ID{}, &jsonrpc.Error{Code: jsonrpc.CodeParseError, Message: err.Error()})
		return
	}
	p, err := m.parseParams()
	if err != nil {
		h.writeError(w, http.StatusBadRequest, m.id, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()})
		return
	}
	if isTaskMethod(method) {
		if name, ok := r.Header[nameHeader]; !ok || name[0] != p.TaskID {
			h.mismatch(w, m.id, "Mcp-Name header does not match params.taskId")
			return
		}
	}
	// What the SDK would refuse anyway, it shall refuse: one place, one text.
	c, ok := m.caller(r, p)
	switch {
	case !ok:
		h.modern.ServeHTTP(w, r)
	case method == methodGet && !h.slowGet:
		h.serveGet(w, r, m.id, c, p.TaskID)
	case method == methodListen:
		h.serveListen(w, r, m.id, c, p)
	default:
		h.modern.ServeHTTP(w, r)
	}
}

func isTaskMethod(m string) bool { return m == methodGet || m == methodUpdate || m == methodCancel }

// serveGet answers tasks/get without the SDK, in the SDK's very bytes.
func (h *Handler) serveGet(w *deadlineWriter, r *http.Request, id jsonrpc.ID, c Caller, taskID string) {
	ctx := context.WithValue(r.Context(), callerKey{}, c)
	v, err := (*taskResult)(nil), ErrTasksRequired
	if c.Tasks() {
		v, err = h.get(ctx, c, taskID)
	}
	var raw []byte
	if err == nil {
		v.Meta = mcp.Meta{mcp.MetaKeyServerInfo: h.opts.Implementation}
		raw, err = marshal(v)
	}
	if err != nil {
		h.writeRPCError(w, id, h.wireError(ctx, c, methodGet, taskID, err))
		return
	}
	h.write(w, http.StatusOK, &jsonrpc.Response{ID: id, Result: raw})
}

// writeRPCError picks the HTTP status as the SDK does.
func (h *Handler) writeRPCError(w http.ResponseWriter, id jsonrpc.ID, err error) {
	var je *jsonrpc.Error
	if !errors.As(err, &je) {
		je = internalError()
	}
	status := http.StatusOK
	switch je.Code {
	case jsonrpc.CodeMethodNotFound:
		status = http.StatusNotFound
	case jsonrpc.CodeInvalidParams, mcp.CodeUnsupportedProtocolVersion, mcp.CodeMissingRequiredClientCapabilities, mcp.CodeHeaderMismatch:
		status = http.StatusBadRequest
	}
	h.writeError(w, status, id, je)
}

// writeRPCErrorStatus answers what has no id to answer to.
func (h *Handler) writeRPCErrorStatus(w http.ResponseWriter, status int, err error) {
	h.writeError(w, status, jsonrpc.ID{}, asRPC(err))
}

func (h *Handler) writeError(w http.ResponseWriter, status int, id jsonrpc.ID, e *jsonrpc.Error) {
	h.write(w, status, &jsonrpc.Response{ID: id, Error: e})
}

func (h *Handler) mismatch(w http.ResponseWriter, id jsonrpc.ID, msg string) {
	h.writeError(w, http.StatusBadRequest, id, &jsonrpc.Error{Code: mcp.CodeHeaderMismatch, Message: "Header mismatch: " + msg})
}

// refuseHeaders answers a request whose headers alone are wrong, with its id if
// it can be had.
func (h *Handler) refuseHeaders(w http.ResponseWriter, r *http.Request, msg string) {
	body, ok := h.readBody(w, r)
	if !ok {
		return
	}
	m, err := parseMessage(body)
	if err != nil {
		m = message{}
	}
	h.mismatch(w, m.id, msg)
}

func (h *Handler) write(w http.ResponseWriter, status int, res *jsonrpc.Response) {
	b, err := jsonrpc.EncodeMessage(res)
	if err != nil {
		h.opts.Logger.Error("encode response", "error", err)
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-cache, no-transform")
	w.WriteHeader(status)
	if _, err := w.Write(b); err != nil { //nolint:gosec // JSON, and said to be
		h.opts.Logger.Debug("write response", "error", err)
	}
}

// readBody reads the whole body and puts it back for the SDK.
func (h *Handler) readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.opts.MaxBodyBytes))
	if err != nil {
		if mbe := (*http.MaxBytesError)(nil); errors.As(err, &mbe) {
			http.Error(w, fmt.Sprintf("request body exceeds %d bytes", mbe.Limit), http.StatusRequestEntityTooLarge)
		} else {
			http.Error(w, "failed to read body", http.StatusBadRequest)
		}
		return nil, false
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, true
}

// acceptable reports whether the SDK would get as far as reading the body.
func acceptable(r *http.Request) bool {
	ct, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || ct != "application/json" {
		return false
	}
	var asJSON, asStream bool
	for _, v := range r.Header.Values("Accept") {
		for t := range strings.SplitSeq(v, ",") {
			t, _, _ = strings.Cut(t, ";")
			switch strings.ToLower(strings.TrimSpace(t)) {
			case "application/json", "application/*":
				asJSON = true
			case "text/event-stream", "text/*":
				asStream = true
			case "*/*":
				return true
			}
		}
	}
	return asJSON && asStream
}

// serveLegacy serves the versions with sessions.
func (h *Handler) serveLegacy(w *deadlineWriter, r *http.Request) {
	from := &sender{principal: r.Context().Value(principalKey{})}
	if id := r.Header.Get(sessionHeader); id != "" {
		if from.session = h.findSession(id, from.principal); from.session == nil {
			http.Error(w, "session not found", http.StatusNotFound)
			return
		}
		done := from.session.use()
		defer done()
	}
	switch r.Method {
	case http.MethodPost:
		h.serveLegacyPost(w, r, from)
	case http.MethodGet:
		h.serveStream(w, r, from.session)
	default:
		h.legacy.ServeHTTP(w, r)
	}
}

func (h *Handler) serveLegacyPost(w *deadlineWriter, r *http.Request, from *sender) {
	body, ok := h.readBody(w, r)
	if !ok {
		return
	}
	s := from.session
	m, err := parseMessage(body)
	if err != nil {
		if s != nil && s.answer(w, r, body) {
			return
		}
	} else {
		if v := m.metaVersion(); v != "" {
			h.refuseVersion(w, r, m, v)
			return
		}
		switch {
		case s == nil && m.method != methodInitialize:
			h.writeError(w, http.StatusBadRequest, m.id, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest,
				Message: "the Mcp-Session-Id header is required; a session begins with initialize"})
			return
		case s != nil && h.serveTask(w, r, s, m):
			return
		case s != nil && m.method == methodCancelled:
			s.cancelResult(m)
		case s.knowsTasks() && m.method == methodCall:
			if err := h.gate(from, m); err != nil {
				c := s.caller(from.principal, nil, "")
				ctx := context.WithValue(r.Context(), callerKey{}, c)
				h.writeResult(ctx, w, m, c, "", nil, err)
				return
			}
		}
		if s == nil {
			opened, ok := h.admitSession(from.principal)
			if !ok {
				c := Caller{Principal: from.principal, ProtocolVersion: Version20251125}
				h.writeRPCError(w, m.id, h.wireError(context.WithValue(r.Context(), callerKey{}, c), c, m.method, "", ErrTooManySessions))
				return
			}
			defer opened()
		}
	}
	if !h.beginCall() {
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return
	}
	defer h.calls.Done()
	token := rand.Text()
	h.requests.Store(token, from)
	defer h.requests.Delete(token)
	r.Header.Set(requestHeader, token)
	h.legacy.ServeHTTP(w, r)
	if from.made != nil {
		s.follow(s.caller(from.principal, nil, from.made.ID), from.made, from)
	}
}

// gate reads what a tools/call says of tasks, which the SDK drops.
func (h *Handler) gate(from *sender, m message) error {
	var p struct {
		Name string             `json:"name"`
		Task stdjson.RawMessage `json:"task"`
		Meta struct {
			ProgressToken stdjson.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	}
	if stdjson.Unmarshal(m.params, &p) != nil || p.Task == nil {
		return nil //nolint:nilerr // the SDK says what is wrong
	}
	if !h.taskTool(p.Name) {
		return ErrNoTaskSupport
	}
	task, err := parseTaskRequest(p.Task)
	if err != nil {
		return err
	}
	from.task = task
	if string(p.Meta.ProgressToken) != "null" {
		from.token = p.Meta.ProgressToken
	}
	return nil
}

// beginCall counts a call that Close is to wait for, unless it waits already.
func (h *Handler) beginCall() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.calls.Add(1)
	return true
}

// refuseVersion answers a request that names its version in _meta, as 2026-07-28
// does, but not that version in its header.
func (h *Handler) refuseVersion(w http.ResponseWriter, r *http.Request, m message, meta string) {
	switch hv := r.Header.Get(versionHeader); {
	case hv == "":
		h.mismatch(w, m.id, "the MCP-Protocol-Version header is required")
	case hv != meta:
		h.mismatch(w, m.id, "MCP-Protocol-Version header does not match _meta")
	default:
		data, err := marshal(mcp.UnsupportedProtocolVersionData{Supported: supportedVersions(), Requested: meta})
		if err != nil {
			h.opts.Logger.Error("encode supported versions", "error", err)
		}
		h.writeError(w, http.StatusBadRequest, m.id, &jsonrpc.Error{
			Code: mcp.CodeUnsupportedProtocolVersion, Message: "Unsupported protocol version", Data: data})
	}
}

// admitSession makes room for one more session of the principal, until opened is
// called: by then it is there, or was refused.
func (h *Handler) admitSession(principal any) (opened func(), ok bool) {
	if h.opts.PrincipalKey == nil || h.opts.MaxSessions == 0 {
		return func() {}, true
	}
	key := h.opts.PrincipalKey(principal)
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.opening[key]
	for _, s := range h.sessions {
		if s.owner == key {
			n++
		}
	}
	if n >= h.opts.MaxSessions {
		return nil, false
	}
	h.opening[key]++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.opening[key]--; h.opening[key] == 0 {
			delete(h.opening, key)
		}
	}, true
}

// deadlineWriter bounds each write to a client that may have stopped reading.
type deadlineWriter struct {
	http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
}

func newDeadlineWriter(w http.ResponseWriter, timeout time.Duration) *deadlineWriter {
	return &deadlineWriter{w, http.NewResponseController(w), timeout}
}

// Unwrap is for http.ResponseController.
func (w *deadlineWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// extend gives the next write its full time. A writer without deadlines (a
// recorder) has none to set.
func (w *deadlineWriter) extend() {
	//nolint:errcheck,gosec // see above
	w.rc.SetWriteDeadline(time.Now().Add(w.timeout))
}

func (w *deadlineWriter) Write(b []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(b) //nolint:wrapcheck,gosec // this is the writer
}
