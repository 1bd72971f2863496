package mcptask

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/segmentio/encoding/json"
)

// StdioOptions configure [ServeStdio].
type StdioOptions struct {
	// MaxMessageBytes bounds a line of input. The handler's own bound is
	// usually lower and answers with the request's id, which an overlong line
	// cannot be searched for. Defaults to 32 MiB.
	MaxMessageBytes int
	// DrainTimeout is how long requests may still be answered after the input
	// has ended. Defaults to 1 s: clients that wait for the end wait for two.
	DrainTimeout time.Duration
	// Logger defaults to none. It never sees messages.
	Logger *slog.Logger
}

// ServeStdio serves one client on a pair of streams, such as standard input and
// output, by the rules of the stdio transport: a JSON-RPC message on each line.
// h is an HTTP handler of MCP, usually a [Handler] behind the one that says who
// the client is. Each message becomes an HTTP request that never leaves the
// process, and whatever the handler answers or streams becomes lines, so that
// one implementation serves both transports in both generations:
//
//   - A request of MCP 2026-07-28 is a POST of its own, with the headers that
//     its body implies. notifications/cancelled ends it as a closed connection
//     would, and nothing more is written for it.
//   - initialize opens a session, which later messages of older clients belong
//     to; its GET stream is held open, so that whatever the server asks or
//     tells by itself arrives.
//
// It returns nil when the input has ended and what was asked before is answered,
// and when ctx has. An error says why the output cannot be written or the input
// not be read. A read that blocks outlives it: only its stream's end ends it.
//
// Tools whose arguments are mirrored in Mcp-Param headers are not served.
func ServeStdio(ctx context.Context, h http.Handler, in io.Reader, out io.Writer, o StdioOptions) error {
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, 32<<20)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &stdio{h: h, opts: o, out: out, ctx: ctx, fail: cancel, calls: map[jsonrpc.ID]*stdioCall{}}
	err := s.serve(in) //nolint:contextcheck // the connection's own, held by s
	if cause := context.Cause(ctx); errors.Is(cause, errOutput) {
		err = errors.Join(err, cause)
	}
	cancel(nil)
	s.requests.Go(s.endSession)
	if !s.settle() {
		err = errors.Join(err, errors.New("the client stopped reading, or a request does not end"))
	}
	return err
}

// errOutput is the cause of the end when nobody reads any more.
var errOutput = errors.New("write the output")

// stdio is one client.
type stdio struct {
	h    http.Handler
	opts StdioOptions
	ctx  context.Context //nolint:containedctx // the connection's own life
	fail context.CancelCauseFunc

	outMu sync.Mutex
	out   io.Writer

	requests sync.WaitGroup // in flight
	streams  sync.WaitGroup // GET streams of sessions

	mu    sync.Mutex
	calls map[jsonrpc.ID]*stdioCall

	// Of the reading goroutine alone.
	session *stdioSession
}

// stdioCall is a request in flight.
type stdioCall struct {
	id     jsonrpc.ID
	raw    stdjson.RawMessage // the id as it was sent
	legacy bool
	cancel context.CancelFunc

	mu       sync.Mutex
	silent   bool // cancelled: nothing more may be written for it
	answered bool
}

// stdioSession is an older client's session.
type stdioSession struct {
	id, version string
	listening   bool
	cancel      context.CancelFunc // of the GET stream
}

// line is one line of input, or why there is none.
type line struct {
	data []byte
	err  error
}

var errLineTooLong = errors.New("message is too long")

// serve handles messages until the input or the context ends.
func (s *stdio) serve(in io.Reader) error {
	lines := make(chan line)
	go readLines(s.ctx, in, s.opts.MaxMessageBytes, lines)
	for {
		select {
		case <-s.ctx.Done():
			return nil
		case l, ok := <-lines:
			switch {
			case !ok:
				s.settle() // what was asked before is still answered
				return nil
			case errors.Is(l.err, errLineTooLong):
				s.refuse(nil, jsonrpc.CodeInvalidRequest, fmt.Sprintf("message exceeds %d bytes", s.opts.MaxMessageBytes))
			case l.err != nil:
				return fmt.Errorf("read the input: %w", l.err)
			default:
				s.receive(l.data)
			}
		}
	}
}

// settle waits for the requests in flight, but not for ever: nothing interrupts
// a write that the client does not read.
func (s *stdio) settle() bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.requests.Wait()
		if s.ctx.Err() != nil { // else they go on
			s.streams.Wait()
		}
	}()
	timer := time.NewTimer(s.opts.DrainTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// readLines hands over the lines of in, and closes the channel at its end.
func readLines(ctx context.Context, in io.Reader, most int, lines chan<- line) {
	defer close(lines)
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		data, err := readLine(r, most)
		if err != nil && errors.Is(err, io.EOF) {
			err = nil
			if len(data) == 0 {
				return
			}
		}
		if len(bytes.TrimSpace(data)) == 0 && err == nil {
			continue
		}
		select {
		case lines <- line{data, err}:
		case <-ctx.Done():
			return
		}
		if err != nil && !errors.Is(err, errLineTooLong) {
			return
		}
	}
}

// readLine reads to the next newline. Of a line that is too long it keeps
// nothing.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var data []byte
	tooLong := false
	for {
		part, err := r.ReadSlice('\n')
		if tooLong = tooLong || len(data)+len(part) > most; !tooLong {
			data = append(data, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case tooLong && err == nil:
			return nil, errLineTooLong
		default:
			return data, err //nolint:wrapcheck // the caller does
		}
	}
}

// envelope is any JSON-RPC message as far as its way is concerned.
type envelope struct {
	id     jsonrpc.ID
	rawID  stdjson.RawMessage
	method string
	params stdjson.RawMessage
	batch  bool
}

func parseEnvelope(data []byte) (e envelope, err error) {
	if tooDeep(data) {
		return e, errors.New("nested too deeply")
	}
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		if !json.Valid(data) {
			return e, errors.New("not JSON")
		}
		return envelope{batch: true}, nil
	}
	var wire struct {
		ID     stdjson.RawMessage `json:"id"`
		Method string             `json:"method"`
		Params stdjson.RawMessage `json:"params"`
	}
	rest, err := json.Parse(data, &wire, json.DontMatchCaseInsensitiveStructFields)
	if err != nil || len(bytes.TrimSpace(rest)) > 0 {
		return e, errors.New("not one JSON object")
	}
	e = envelope{rawID: wire.ID, method: wire.Method, params: wire.Params}
	if len(wire.ID) > 0 {
		var id any
		if err := json.Unmarshal(wire.ID, &id); err != nil {
			return e, errors.New("id is not JSON")
		}
		if e.id, err = jsonrpc.MakeID(id); err != nil {
			return e, errors.New("id is neither a string nor a number")
		}
	}
	return e, nil
}

// receive handles one message. Requests go on by themselves; everything else
// is done in the order in which it came.
func (s *stdio) receive(data []byte) {
	e, err := parseEnvelope(data)
	switch {
	case err != nil:
		s.refuse(nil, jsonrpc.CodeParseError, err.Error())
	case e.batch:
		s.post(data, &stdioCall{legacy: true}, s.sessionHeader())
	case e.method == "notifications/cancelled":
		s.cancelled(data, e)
	case e.method == "" || !e.id.IsValid():
		s.notify(data, e)
	case e.method == methodInitialize:
		s.initialize(data, e)
	default:
		s.request(data, e)
	}
}

// begin registers a request, or refuses an id that is in use.
func (s *stdio) begin(e envelope, legacy bool) (*stdioCall, bool) {
	c := &stdioCall{id: e.id, raw: e.rawID, legacy: legacy}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.calls[e.id]; ok {
		return nil, false
	}
	s.calls[e.id] = c
	return c, true
}

// forget makes a request's id free again.
func (s *stdio) forget(c *stdioCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[c.id] == c {
		delete(s.calls, c.id)
	}
}

func (s *stdio) request(data []byte, e envelope) {
	header, modern := s.sessionHeader(), false
	if v := (message{params: e.params}).metaVersion(); v != "" {
		header, modern = modernHeader(v, e), true
	}
	c, ok := s.begin(e, !modern)
	if !ok {
		s.refuse(e.rawID, jsonrpc.CodeInvalidRequest, "the id of a request in flight was sent again")
		return
	}
	s.post(data, c, header)
}

// modernHeader are the headers that mirror the body.
func modernHeader(version string, e envelope) http.Header {
	h := http.Header{versionHeader: {version}, methodHeader: {e.method}}
	var p struct {
		Name   string `json:"name"`
		URI    string `json:"uri"`
		TaskID string `json:"taskId"`
	}
	if _, err := json.Parse(e.params, &p, json.DontMatchCaseInsensitiveStructFields); err != nil {
		return h
	}
	switch {
	case e.method == methodCall, e.method == "prompts/get":
		h[nameHeader] = []string{encodeHeader(p.Name)}
	case e.method == "resources/read":
		h[nameHeader] = []string{encodeHeader(p.URI)}
	case isTaskMethod(e.method):
		h[nameHeader] = []string{encodeHeader(p.TaskID)}
	}
	return h
}

// encodeHeader is the inverse of decodeHeader.
func encodeHeader(v string) string {
	if plain, ok := decodeHeader(v); ok && plain == v && strings.TrimSpace(v) == v {
		return v
	}
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(v)) + "?="
}

// post serves a request on a goroutine of its own.
func (s *stdio) post(data []byte, c *stdioCall, header http.Header) {
	ctx, cancel := context.WithCancel(s.ctx)
	c.cancel = cancel
	s.requests.Go(func() {
		defer cancel()
		s.roundTrip(ctx, http.MethodPost, data, header, c)
		s.forget(c)
	})
}

// cancelled ends a request. A session's handler hears of it by the session.
func (s *stdio) cancelled(data []byte, e envelope) {
	var p struct {
		RequestID any `json:"requestId"`
	}
	var c *stdioCall
	if _, err := json.Parse(e.params, &p, json.DontMatchCaseInsensitiveStructFields); err == nil {
		if id, err := jsonrpc.MakeID(p.RequestID); err == nil {
			s.mu.Lock()
			c = s.calls[id]
			s.mu.Unlock()
		}
	}
	if s.session != nil && (c == nil || c.legacy) {
		s.notify(data, e)
	}
	if c != nil {
		c.mu.Lock()
		c.silent = true
		c.mu.Unlock()
		c.cancel()
	}
}

// notify hands on what has no answer: notifications, and answers to what the
// server asked.
func (s *stdio) notify(data []byte, e envelope) {
	if s.session == nil {
		s.opts.Logger.Debug("message outside of a session", "method", e.method)
		return
	}
	s.roundTrip(s.ctx, http.MethodPost, data, s.sessionHeader(), nil)
	if e.method == "notifications/initialized" {
		s.listen()
	}
}

// initialize opens a session; what follows waits for it.
func (s *stdio) initialize(data []byte, e envelope) {
	s.endSession()
	c, ok := s.begin(e, true)
	if !ok {
		s.refuse(e.rawID, jsonrpc.CodeInvalidRequest, "the id of a request in flight was sent again")
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	c.cancel = cancel
	w := s.roundTrip(ctx, http.MethodPost, data, http.Header{}, c)
	s.forget(c)
	if id := w.header.Get(sessionHeader); id != "" {
		s.session = &stdioSession{id: id, version: w.negotiated}
	}
}

func (s *stdio) sessionHeader() http.Header {
	h := http.Header{}
	if s.session != nil {
		h.Set(sessionHeader, s.session.id)
		if s.session.version != "" {
			h.Set(versionHeader, s.session.version)
		}
	}
	return h
}

// relisten is the pause before a GET stream that broke off is opened again.
const relisten = time.Second

// listen holds the session's GET stream open.
func (s *stdio) listen() {
	if s.session.listening {
		return
	}
	s.session.listening = true
	ctx, cancel := context.WithCancel(s.ctx)
	s.session.cancel = cancel
	header := s.sessionHeader()
	// What comes next may cause a notification, which has nowhere to go before
	// the stream is open.
	opened := make(chan struct{})
	open := sync.OnceFunc(func() { close(opened) })
	defer func() { <-opened }()
	s.streams.Go(func() {
		defer open()
		for {
			w := s.stream(ctx, header, open)
			if w.status != 0 && w.status != http.StatusOK {
				return // it offers none
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(relisten):
			}
		}
	})
}

// endSession tells the handler that the session is over.
func (s *stdio) endSession() {
	if s.session == nil {
		return
	}
	if s.session.cancel != nil {
		s.session.cancel()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), s.opts.DrainTimeout)
	defer cancel()
	s.roundTrip(ctx, http.MethodDelete, nil, s.sessionHeader(), nil)
	s.session = nil
}

// stream is a round trip of a session's GET stream; open is called when it is
// open, or came to nothing.
func (s *stdio) stream(ctx context.Context, header http.Header, open func()) *stdioWriter {
	w := &stdioWriter{s: s, header: http.Header{}, open: open}
	s.serveHTTP(ctx, w, http.MethodGet, nil, header)
	open()
	return w
}

// roundTrip lets the handler serve a message and writes what it answers. c is
// the request to answer, nil for what has no answer.
func (s *stdio) roundTrip(ctx context.Context, method string, data []byte, header http.Header, c *stdioCall) *stdioWriter {
	w := &stdioWriter{s: s, call: c, header: http.Header{}}
	s.serveHTTP(ctx, w, method, data, header)
	return w
}

func (s *stdio) serveHTTP(ctx context.Context, w *stdioWriter, method string, data []byte, header http.Header) {
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost/mcp", bytes.NewReader(data))
	if err != nil {
		s.opts.Logger.Error("make a request", "error", err)
		return
	}
	r.RequestURI = "/mcp"
	maps.Copy(r.Header, header)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	func() {
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler { //nolint:errorlint,err113 // as net/http compares it
				s.opts.Logger.Error("handler panicked", "panic", p, "stack", string(debug.Stack()))
			}
		}()
		s.h.ServeHTTP(w, r)
	}()
	w.finish()
}

// refuse answers what never reached the handler.
func (s *stdio) refuse(id stdjson.RawMessage, code int64, text string) {
	res, err := marshal(struct {
		Version string             `json:"jsonrpc"`
		ID      stdjson.RawMessage `json:"id,omitempty"` // left out where it is not known, as the schema has it
		Error   *jsonrpc.Error     `json:"error"`
	}{"2.0", id, &jsonrpc.Error{Code: code, Message: text}})
	if err != nil {
		s.opts.Logger.Error("encode an error", "error", err)
		return
	}
	s.write(res)
}

// write writes one message as a line.
func (s *stdio) write(msg []byte) {
	if bytes.ContainsAny(msg, "\r\n") {
		var b bytes.Buffer
		if err := stdjson.Compact(&b, msg); err != nil {
			s.opts.Logger.Error("the handler sent no JSON", "error", err)
			return
		}
		msg = b.Bytes()
	}
	s.outMu.Lock()
	defer s.outMu.Unlock()
	if _, err := s.out.Write(append(slices.Clip(msg), '\n')); err != nil {
		s.fail(fmt.Errorf("%w: %w", errOutput, err))
	}
}

// stdioWriter is the response writer of one round trip.
type stdioWriter struct {
	s      *stdio
	call   *stdioCall // nil where nothing is to be answered
	header http.Header
	status int
	rest   bytes.Buffer // what is not a whole message yet
	open   func()       // called when the answer begins, if it is a stream; may be nil
	// negotiated is the version in the answer to initialize.
	negotiated string
}

// Header implements http.ResponseWriter.
func (w *stdioWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *stdioWriter) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
		if w.open != nil {
			w.open()
		}
	}
}

// FlushError is for http.ResponseController. Messages are written when they are
// whole.
func (*stdioWriter) FlushError() error { return nil }

// Write implements http.ResponseWriter.
func (w *stdioWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if err := context.Cause(w.s.ctx); err != nil {
		return 0, fmt.Errorf("write a message: %w", err)
	}
	w.rest.Write(b)
	if strings.HasPrefix(w.header.Get("Content-Type"), "text/event-stream") {
		for {
			event, tail, ok := bytes.Cut(w.rest.Bytes(), []byte("\n\n"))
			if !ok {
				break
			}
			data := sseData(event)
			tail = bytes.Clone(tail)
			if len(data) > 0 {
				w.message(data)
			}
			w.rest.Reset()
			w.rest.Write(tail)
		}
	}
	return len(b), nil
}

// sseData is the data of an event, nothing for comments and the SDK's empty
// first event.
func sseData(event []byte) []byte {
	var data []byte
	for l := range bytes.SplitSeq(event, []byte("\n")) {
		if d, ok := bytes.CutPrefix(l, []byte("data:")); ok {
			data = append(data, bytes.TrimPrefix(d, []byte(" "))...)
		}
	}
	return data
}

// message passes a message on, unless it belongs to a cancelled request.
func (w *stdioWriter) message(msg []byte) {
	c := w.call
	if c == nil {
		w.s.write(msg)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.silent {
		return
	}
	if !bytes.HasPrefix(bytes.TrimSpace(msg), []byte("[")) {
		var m struct {
			Method stdjson.RawMessage `json:"method"`
			Result struct {
				ProtocolVersion string `json:"protocolVersion"`
			} `json:"result"`
		}
		// An error too, which has no result, is an answer.
		if _, err := json.Parse(msg, &m, json.DontMatchCaseInsensitiveStructFields); err == nil && len(m.Method) == 0 {
			c.answered = true
			w.s.forget(c) // the client may use the id again as soon as it has the answer
			w.negotiated = m.Result.ProtocolVersion
		}
	}
	w.s.write(msg)
}

// finish writes an answer that is no stream, and sees that every request gets
// one.
func (w *stdioWriter) finish() {
	body := bytes.TrimSpace(w.rest.Bytes())
	c := w.call
	if c == nil {
		if w.status >= http.StatusBadRequest {
			w.s.opts.Logger.Debug("message was refused", "status", w.status)
		}
		return
	}
	if strings.HasPrefix(w.header.Get("Content-Type"), "application/json") && len(body) > 0 {
		if msg, ok := withID(body, c.raw); ok {
			w.message(msg)
			return
		}
	}
	c.mu.Lock()
	owed := !c.silent && !c.answered && len(c.raw) > 0
	c.mu.Unlock()
	if owed && w.s.ctx.Err() == nil {
		w.s.refuse(c.raw, codeOf(w.status, body), refusalText(w.status, body))
	}
}

// withID gives the request's id to an error that could not tell it. ok is false
// for what is no JSON-RPC message.
func withID(body []byte, id stdjson.RawMessage) (msg []byte, ok bool) {
	if bytes.HasPrefix(body, []byte("[")) {
		return body, true
	}
	var m map[string]stdjson.RawMessage
	if err := stdjson.Unmarshal(body, &m); err != nil || m["jsonrpc"] == nil {
		return nil, false
	}
	if have, found := m["id"]; found && string(have) != "null" || len(id) == 0 {
		return body, true
	}
	m["id"] = id
	msg, err := marshal(m)
	return msg, err == nil
}

// notHandled is how the SDK words an unknown method in plain text.
const notHandled = "JSON RPC not handled"

// codeOf is the JSON-RPC code of an HTTP answer that is no message.
func codeOf(status int, body []byte) int64 {
	switch {
	case status >= http.StatusBadRequest && bytes.Contains(body, []byte(notHandled)):
		return jsonrpc.CodeMethodNotFound
	case status >= http.StatusBadRequest && status < http.StatusInternalServerError:
		return jsonrpc.CodeInvalidRequest
	default:
		return jsonrpc.CodeInternalError
	}
}

func refusalText(status int, body []byte) string {
	const most = 200
	if status >= http.StatusBadRequest && status < http.StatusInternalServerError && len(body) > 0 && len(body) <= most {
		return string(body)
	}
	return cmp.Or(strings.ToLower(http.StatusText(status)), "no answer")
}

var _ http.ResponseWriter = (*stdioWriter)(nil)
