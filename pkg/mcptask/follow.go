package mcptask

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	methodElicit         = "elicitation/create"
	methodElicitComplete = "notifications/elicitation/complete"
	methodProgress       = "notifications/progress"
	methodTaskStatus     = "notifications/tasks/status"
)

// follower tells one session of one task: its status, its progress, and what it
// asks. Everything about the task leaves through its goroutine, in order.
type follower struct {
	s    *session
	id   string
	kick chan struct{} // holds one

	// Guarded by the session's mutex.
	request *TaskRequest
	token   json.RawMessage // of progress
	done    bool

	// Of the goroutine alone.
	caller   Caller
	status   Status // as the client was told
	progress float64
	quiet    time.Time // no progress before
}

func (f *follower) wake() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// follow remembers that this session asked for a task, which it saw as t, and
// tells it of the task from now on. from is the call that made the task.
func (s *session) follow(c Caller, t *Task, from *sender) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.tasks[t.ID]
	if f == nil {
		if len(s.tasks) >= s.h.opts.MaxListenTasks {
			maps.DeleteFunc(s.tasks, func(_ string, f *follower) bool { return f.done })
		}
		if len(s.tasks) >= s.h.opts.MaxListenTasks {
			return // it still has tasks/get
		}
		f = &follower{s: s, id: t.ID, kick: make(chan struct{}, 1), caller: c, status: wireStatus(t), done: true}
		s.tasks[t.ID] = f
		f.done = t.Status.Terminal() || !s.h.spawn(f.run)
	}
	if from != nil {
		f.request, f.token = from.task, from.token
		f.wake()
	}
}

// spawn runs a goroutine that Close waits for, unless it was called already.
func (h *Handler) spawn(run func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.wg.Go(run)
	return true
}

func (f *follower) run() {
	ctx, cancel := context.WithCancel(context.WithValue(f.s.ctx, callerKey{}, f.caller))
	shared := f.s.h.shared
	shared.join(f)
	latest := make(chan *Task, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(latest)
		f.s.h.watch(ctx, f.caller, f.id, func(t *Task) {
			select {
			case <-latest: // superseded
			default:
			}
			latest <- t // never blocks, there is no other sender
		})
	})
	defer func() {
		cancel()
		wg.Wait()
		shared.leave(f)
		f.s.mu.Lock()
		defer f.s.mu.Unlock()
		f.done = true
		maps.DeleteFunc(f.s.asked, func(_ string, q question) bool { return q.f == f })
	}()
	again := time.NewTimer(0)
	defer again.Stop()
	for t := (*Task)(nil); t == nil || !t.Status.Terminal(); {
		select {
		case newer, ok := <-latest:
			if !ok {
				return
			}
			t = newer
		case <-f.kick:
		case <-again.C:
		case <-ctx.Done():
			return
		}
		if t == nil {
			continue
		}
		if err := f.deliver(t); err != nil {
			f.s.h.opts.Logger.ErrorContext(ctx, "tell a session of its task", "error", err)
		}
		if wait := time.Until(f.quiet); wait > 0 {
			again.Reset(wait)
		}
	}
}

// watch calls fn with each state of a task until it is terminal or gone, or the
// context ends.
func (h *Handler) watch(ctx context.Context, c Caller, id string, fn func(*Task)) {
	for {
		terminal := false
		err := h.opts.Store.Watch(ctx, c, id, func(t *Task) error {
			fn(t)
			terminal = t.Status.Terminal()
			return nil
		})
		if terminal || gone(err) || ctx.Err() != nil {
			return
		}
		h.opts.Logger.WarnContext(ctx, "task watch broke off", "error", err)
		select {
		case <-time.After(h.opts.NotifyInterval):
		case <-ctx.Done():
			return
		}
	}
}

// deliver sends what is new in a task's state, as far as there is a stream.
func (f *follower) deliver(t *Task) error {
	if err := f.settle(t); err != nil {
		return err
	}
	if err := f.sendStatus(t); err != nil {
		return err
	}
	if t.Status.Terminal() {
		return nil
	}
	if err := f.sendProgress(t); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(t.InputRequests)) {
		if err := f.ask(key, t.InputRequests[key]); err != nil {
			return err
		}
	}
	return nil
}

func (f *follower) sendStatus(t *Task) error {
	status := wireStatus(t)
	if status == f.status {
		return nil
	}
	view, err := f.s.h.legacyView(t)
	if err != nil {
		return err
	}
	sent, err := f.notify(methodTaskStatus, view)
	if sent {
		f.status = status
	}
	return err
}

func (f *follower) sendProgress(t *Task) error {
	f.s.mu.Lock()
	token := f.token
	f.s.mu.Unlock()
	if token == nil || t.Progress <= f.progress || time.Now().Before(f.quiet) {
		return nil
	}
	sent, err := f.notify(methodProgress, map[string]any{
		"progressToken": token, "progress": min(t.Progress, 1), "total": 1, "message": t.StatusMessage, "_meta": relatedTask(f.id),
	})
	if sent {
		f.progress, f.quiet = t.Progress, time.Now().Add(f.s.h.opts.NotifyInterval)
	}
	return err
}

func (f *follower) notify(method string, params any) (sent bool, err error) {
	raw, err := marshal(params)
	if err != nil {
		return false, err
	}
	b, err := jsonrpc.EncodeMessage(&jsonrpc.Request{Method: method, Params: raw})
	if err != nil {
		return false, fmt.Errorf("encode notification: %w", err)
	}
	_, sent = f.s.send(f.id, b)
	return sent, nil
}

// ask sends a task's request to the client, unless it is on its way already, on
// whichever stream of whichever session.
func (f *follower) ask(key string, request json.RawMessage) error {
	var req struct {
		Method string                     `json:"method"`
		Params map[string]json.RawMessage `json:"params"`
	}
	if err := json.Unmarshal(request, &req); err != nil {
		return fmt.Errorf("read input request %s: %w", key, err)
	}
	var mode string
	if raw, ok := req.Params["mode"]; ok {
		if err := json.Unmarshal(raw, &mode); err != nil {
			return fmt.Errorf("read input request %s: %w", key, err)
		}
	}
	if !canAnswer(f.s.caps, req.Method, mode) || len(f.s.carriers(f.id)) == 0 {
		return nil
	}
	cl, ok := f.s.h.shared.claim(f, key, mode == "url")
	if !ok {
		return nil
	}
	var carried *carrier
	defer func() { f.s.h.shared.carry(f, key, carried) }()
	params := map[string]any{}
	for k, v := range req.Params {
		params[k] = v
	}
	params["_meta"] = relatedTask(f.id)
	if cl != "" {
		params["elicitationId"] = cl
	}
	raw, err := marshal(params)
	if err != nil {
		return err
	}
	name := questionPrefix + rand.Text()
	id, err := jsonrpc.MakeID(name)
	if err != nil {
		return fmt.Errorf("make request id: %w", err)
	}
	b, err := jsonrpc.EncodeMessage(&jsonrpc.Request{ID: id, Method: req.Method, Params: raw})
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	f.s.mu.Lock()
	f.s.asked[name] = question{f: f, key: key, method: req.Method}
	f.s.mu.Unlock()
	c, sent := f.s.send(f.id, b)
	if sent {
		carried = c
		return nil
	}
	f.s.mu.Lock()
	delete(f.s.asked, name)
	f.s.mu.Unlock()
	return nil
}

// settle forgets requests that the task no longer has. A page that was opened
// has served when the task goes on.
func (f *follower) settle(t *Task) error {
	for _, elicitation := range f.s.h.shared.settle(f, t) {
		if _, err := f.notify(methodElicitComplete, map[string]any{"elicitationId": elicitation}); err != nil {
			return err
		}
	}
	return nil
}

// canAnswer reports whether a client declared that it answers such requests.
func canAnswer(caps *mcp.ClientCapabilities, method, mode string) bool {
	switch {
	case caps == nil:
		return false
	case method == "sampling/createMessage":
		return caps.Sampling != nil //nolint:staticcheck // deprecated, but not in the versions with sessions
	case method != methodElicit || caps.Elicitation == nil:
		return false
	case mode == "url":
		return caps.Elicitation.URL != nil
	default: // an empty object means forms
		return caps.Elicitation.Form != nil || caps.Elicitation.URL == nil
	}
}

// shared is what the sessions that follow a task know of each other, so that a
// client with two of them is asked once.
type shared struct {
	mu    sync.Mutex
	tasks map[string]*sharedTask
}

type sharedTask struct {
	followers map[*follower]bool
	claims    map[string]*claim // by key
}

// claim is a task's request that one session sends.
type claim struct {
	by *follower
	// carrier is the stream that it is on; nil while it is being sent, and
	// free when that failed.
	carrier *carrier
	free    bool
	// closed: the task no longer asks. A key serves once, so whoever still
	// sees an older state of the task must not ask again.
	closed bool
	// elicitation is the elicitationId of a url request.
	elicitation string
}

func newShared() *shared { return &shared{tasks: map[string]*sharedTask{}} }

func (s *shared) join(f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[f.id]
	if t == nil {
		t = &sharedTask{followers: map[*follower]bool{}, claims: map[string]*claim{}}
		s.tasks[f.id] = t
	}
	t.followers[f] = true
}

func (s *shared) leave(f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[f.id]
	delete(t.followers, f)
	for _, c := range t.claims {
		if c.by == f {
			c.free = true
		}
	}
	t.wake()
	if len(t.followers) == 0 {
		delete(s.tasks, f.id)
	}
}

func (t *sharedTask) wake() {
	for f := range t.followers {
		f.wake()
	}
}

// claim takes a request to send it. The elicitationId stays the same when it is
// sent again, whoever sends it.
func (s *shared) claim(f *follower, key string, url bool) (elicitation string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	claims := s.tasks[f.id].claims
	c := claims[key]
	if c != nil && (c.closed || !c.free) {
		return "", false
	}
	if c == nil {
		c = &claim{}
		if url {
			c.elicitation = rand.Text()
		}
		claims[key] = c
	}
	c.by, c.carrier, c.free = f, nil, false
	return c.elicitation, true
}

// carry notes which stream a claimed request is on, nil for none.
func (s *shared) carry(f *follower, key string, on *carrier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.tasks[f.id].claims[key]
	if on == nil {
		c.free = true
		return
	}
	c.carrier = on
	on.mu.Lock()
	defer on.mu.Unlock()
	if on.lost { // before this was noted
		c.free = true
		s.tasks[f.id].wake()
	}
}

// lose frees what a stream carried and has the followers look again.
func (s *shared) lose(on *carrier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tasks {
		for _, c := range t.claims {
			if c.carrier == on && !c.free {
				c.free = true
				t.wake()
			}
		}
	}
}

// settle closes f's claims of keys that are no longer asked, and returns the
// elicitationIds that f has to call complete. Others may be behind or ahead of
// what f sees, so their claims are theirs.
func (s *shared) settle(f *follower, now *Task) (complete []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, c := range s.tasks[f.id].claims {
		if _, open := now.InputRequests[key]; open || c.by != f || c.closed || c.elicitation != "" && now.Status == StatusInputRequired {
			continue
		}
		c.closed = true
		if c.elicitation != "" {
			complete = append(complete, c.elicitation)
		}
	}
	slices.SortFunc(complete, cmp.Compare)
	return complete
}
