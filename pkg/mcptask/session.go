package mcptask

import (
	"context"
	stdjson "encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// session is an older client's session beyond what the SDK keeps of it: whose it
// is, the streams that lead to the client, and the tasks it asked for.
type session struct {
	h       *Handler
	ss      *mcp.ServerSession
	owner   string // principal key
	version string
	caps    *mcp.ClientCapabilities

	ctx context.Context //nolint:containedctx // the session's own life
	end context.CancelFunc

	mu   sync.Mutex
	busy int
	idle *time.Timer
	// get is the GET stream while there is one.
	get *carrier
	// held are the streams of tasks/result, by task, in the order they came.
	held map[string][]*carrier
	// results ends a tasks/result by its request id.
	results map[jsonrpc.ID]context.CancelFunc
	// tasks that this session asked for.
	tasks map[string]*follower
	// asked are requests that the client has not answered, by JSON-RPC id.
	asked map[string]question
	// instant are calls that were answered before there was a task.
	instant []*Task
}

// question is a task's request that went out to the client.
type question struct {
	f      *follower
	key    string
	method string
}

// maxInstant bounds the tasks of a session that ended as they began.
const maxInstant = 64

// openSession remembers a new session until it ends.
func (h *Handler) openSession(of mcp.Session, c Caller, version string) {
	ss, ok := of.(*mcp.ServerSession)
	if !ok || ss.ID() == "" {
		return
	}
	s := &session{
		h: h, ss: ss, owner: h.principalKey(c.Principal), version: version, caps: c.Capabilities,
		held: map[string][]*carrier{}, results: map[jsonrpc.ID]context.CancelFunc{}, tasks: map[string]*follower{}, asked: map[string]question{},
	}
	s.ctx, s.end = context.WithCancel(h.closing)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.sessions[ss.ID()] != nil {
		s.end()
		return
	}
	s.idle = time.AfterFunc(h.opts.SessionTimeout, s.expire)
	h.sessions[ss.ID()] = s
	h.wg.Go(func() {
		if err := ss.Wait(); err != nil {
			h.opts.Logger.Debug("session ended", "error", err)
		}
		s.end()
		s.idle.Stop()
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.sessions, ss.ID())
	})
}

func (h *Handler) principalKey(p any) string {
	if h.opts.PrincipalKey == nil {
		return ""
	}
	return h.opts.PrincipalKey(p)
}

// findSession returns a principal's session, nil when there is none of this id.
func (h *Handler) findSession(id string, principal any) *session {
	h.mu.Lock()
	s := h.sessions[id]
	h.mu.Unlock()
	if s == nil || s.owner != h.principalKey(principal) {
		return nil
	}
	return s
}

// expire ends a session that nobody used.
func (s *session) expire() {
	s.mu.Lock()
	used := s.busy > 0
	s.mu.Unlock()
	if used {
		return
	}
	if err := s.ss.Close(); err != nil {
		s.h.opts.Logger.Debug("close idle session", "error", err)
	}
}

// use keeps the session from expiring until the returned function is called.
func (s *session) use() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy++
	s.idle.Stop()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.busy--; s.busy == 0 && s.ctx.Err() == nil {
			s.idle.Reset(s.h.opts.SessionTimeout)
		}
	}
}

// knowsTasks reports whether tasks/* exist in this session.
func (s *session) knowsTasks() bool { return s != nil && s.version == Version20251125 }

// caller is who sent a request of this session about a task.
func (s *session) caller(principal any, meta map[string]any, taskID string) Caller {
	return Caller{Principal: principal, ProtocolVersion: s.version, Capabilities: s.caps, Meta: meta, Task: s.requested(taskID)}
}

// requested is what this session asked for when it made the task. Whoever asks
// about a task knows tasks, though it was made elsewhere.
func (s *session) requested(taskID string) *TaskRequest {
	if !s.knowsTasks() || taskID == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.tasks[taskID]; f != nil && f.request != nil {
		return f.request
	}
	return &TaskRequest{}
}

// task reads a task and remembers that this session asked for it.
func (s *session) task(ctx context.Context, c Caller, id string) (*Task, error) {
	if t := s.instantTask(id); t != nil {
		return t, nil
	}
	t, err := s.h.opts.Store.Get(ctx, c, id)
	if err != nil {
		return nil, err
	}
	s.follow(c, t, nil)
	return t, nil
}

// keep makes a task of a call that was answered without one: a client that
// asked for a task can read nothing else.
func (s *session) keep(id string, res *mcp.CallToolResult) *Task {
	now := time.Now()
	t := &Task{ID: id, Status: StatusCompleted, CreatedAt: now, LastUpdatedAt: now, TTL: s.h.opts.SessionTimeout, PollInterval: time.Second, Result: res}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.instant = append(s.instant, t); len(s.instant) > maxInstant {
		s.instant = slices.Delete(s.instant, 0, 1)
	}
	return t
}

func (s *session) instantTask(id string) *Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.instant {
		if t.ID == id {
			return t
		}
	}
	return nil
}

// carriers are the streams that may carry a message about a task, best first.
func (s *session) carriers(taskID string) []*carrier {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.held[taskID])
	slices.Reverse(out)
	if s.get != nil {
		out = append(out, s.get)
	}
	return out
}

// send writes a message about a task to the first stream that takes it.
func (s *session) send(taskID string, data []byte) (*carrier, bool) {
	for _, c := range s.carriers(taskID) {
		if err := c.event(data); err == nil {
			return c, true
		}
	}
	return nil, false
}

// serveStream lets the SDK serve the GET stream and writes between its events.
func (h *Handler) serveStream(w *deadlineWriter, r *http.Request, s *session) {
	c := newCarrier(w)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	c.opened = func() {
		s.mu.Lock()
		s.get = c
		s.mu.Unlock()
		s.wake("")
		wg.Go(func() { c.keepAlive(h.opts.KeepAlive, stop) })
	}
	h.legacy.ServeHTTP(c, r)
	close(stop)
	wg.Wait()
	s.mu.Lock()
	if s.get == c {
		s.get = nil
	}
	s.mu.Unlock()
	s.lose(c)
}

// lose ends a stream: what it carried unanswered goes out anew elsewhere.
func (s *session) lose(c *carrier) {
	c.close()
	s.h.shared.lose(c)
}

// wake has followers look again: that of one task, or all.
func (s *session) wake(taskID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, f := range s.tasks {
		if taskID == "" || id == taskID {
			f.wake()
		}
	}
}

// cancelResult ends a held tasks/result.
func (s *session) cancelResult(m message) {
	var p struct {
		RequestID any `json:"requestId"`
	}
	if stdjson.Unmarshal(m.params, &p) != nil {
		return
	}
	id, err := jsonrpc.MakeID(p.RequestID)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel, ok := s.results[id]; ok {
		cancel()
	}
}

// carrier is a stream to a client on which whole events are written, the SDK's
// and ours.
type carrier struct {
	w      *deadlineWriter
	opened func() // called once the SDK has accepted the stream

	mu   sync.Mutex
	lost bool
}

func newCarrier(w *deadlineWriter) *carrier { return &carrier{w: w} }

// Header implements http.ResponseWriter.
func (c *carrier) Header() http.Header { return c.w.Header() }

// Unwrap is for http.ResponseController.
func (c *carrier) Unwrap() http.ResponseWriter { return c.w }

// WriteHeader implements http.ResponseWriter.
func (c *carrier) WriteHeader(status int) {
	c.mu.Lock()
	c.w.WriteHeader(status)
	c.mu.Unlock()
	if status == http.StatusOK && c.opened != nil {
		c.opened()
		c.opened = nil
	}
}

// Write implements http.ResponseWriter; the SDK writes an event at a time.
func (c *carrier) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.w.Write(b)
}

// FlushError is for http.ResponseController.
func (c *carrier) FlushError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.w.rc.Flush() //nolint:wrapcheck // this is the writer
}

// event writes one message. A stream that failed once is not tried again.
func (c *carrier) event(data []byte) error {
	return c.write(slices.Concat([]byte("event: message\ndata: "), data, []byte("\n\n")), false)
}

// last writes the message after which nothing follows.
func (c *carrier) last(data []byte) error {
	return c.write(slices.Concat([]byte("event: message\ndata: "), data, []byte("\n\n")), true)
}

func (c *carrier) write(b []byte, last bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return http.ErrHandlerTimeout
	}
	c.lost = last
	_, err := c.w.Write(b)
	if err == nil {
		err = c.w.rc.Flush()
	}
	if err != nil {
		c.lost = true
	}
	return err //nolint:wrapcheck // callers only need to know
}

func (c *carrier) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = true
}

// keepAlive writes comments to a quiet stream, which is how one finds out that
// nobody is there any more.
func (c *carrier) keepAlive(every time.Duration, stop <-chan struct{}) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
			if c.write([]byte(":\n\n"), false) != nil {
				return
			}
		}
	}
}

// questionPrefix begins the JSON-RPC ids of what this package asks clients. The
// SDK counts its own.
const questionPrefix = "mcptask-"

// answer takes a client's response to what a task asked. It reports false for
// responses to somebody else.
func (s *session) answer(w http.ResponseWriter, r *http.Request, body []byte) bool {
	var a struct {
		ID     any                `json:"id"`
		Method *string            `json:"method"`
		Result stdjson.RawMessage `json:"result"`
		Error  stdjson.RawMessage `json:"error"`
	}
	if tooDeep(body) || stdjson.Unmarshal(body, &a) != nil || a.Method != nil || a.Result == nil && a.Error == nil {
		return false
	}
	id, _ := a.ID.(string)
	if !strings.HasPrefix(id, questionPrefix) {
		return false
	}
	s.mu.Lock()
	q, open := s.asked[id]
	s.mu.Unlock()
	if a.Result == nil && q.method == methodElicit {
		// A client that cannot ask has not decided.
		a.Result = stdjson.RawMessage(`{"action":"cancel"}`)
	}
	if open && a.Result != nil {
		c := s.caller(r.Context().Value(principalKey{}), nil, q.f.id)
		ctx := context.WithValue(r.Context(), callerKey{}, c)
		if err := s.h.opts.Store.Update(ctx, c, q.f.id, map[string]stdjson.RawMessage{q.key: a.Result}); err != nil && !errors.Is(err, ErrNotFound) {
			s.h.writeRPCErrorStatus(w, http.StatusBadRequest, s.h.wireError(ctx, c, methodUpdate, q.f.id, err))
			return true
		}
	}
	s.mu.Lock()
	delete(s.asked, id)
	s.mu.Unlock()
	w.WriteHeader(http.StatusAccepted)
	return true
}
