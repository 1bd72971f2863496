package mcptask

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	methodAcknowledged = "notifications/subscriptions/acknowledged"
	methodTasks        = "notifications/tasks"
)

// serveListen lets the SDK serve subscriptions/listen and adds the tasks: their
// ids to the acknowledgement, their notifications between the SDK's own, and
// the end of the stream only when they ended as well.
func (h *Handler) serveListen(w *deadlineWriter, r *http.Request, id jsonrpc.ID, c Caller, p params) {
	ctx := context.WithValue(r.Context(), callerKey{}, c)
	var wanted []string
	if p.Notifications != nil && p.Notifications.TaskIDs != nil {
		wanted = *p.Notifications.TaskIDs
		if !c.Tasks() {
			first := ""
			if len(wanted) > 0 {
				first = wanted[0]
			}
			h.writeRPCError(w, id, h.wireError(ctx, c, methodListen, first, ErrTasksRequired))
			return
		}
		if len(wanted) > h.opts.MaxListenTasks {
			h.writeRPCError(w, id, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams,
				Message: fmt.Sprintf("more than %d taskIds", h.opts.MaxListenTasks)})
			return
		}
	}
	ids, err := h.visible(ctx, c, wanted)
	if err != nil {
		h.writeRPCError(w, id, h.wireError(ctx, c, methodListen, "", err))
		return
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &listenStream{
		h: h, w: w, caller: c, ids: ids, withTasks: wanted != nil,
		meta: mcp.Meta{mcp.MetaKeySubscriptionID: id.Raw()}, sdkDone: make(chan struct{}),
	}
	s.start = func() { s.wg.Go(func() { defer cancel(); s.run(ctx) }) }
	h.modern.ServeHTTP(s, r.WithContext(ctx))
	s.mu.Lock()
	final := s.final
	s.mu.Unlock()
	if final == nil {
		cancel() // refused, or the client is gone
	}
	s.wg.Wait()
	if final != nil && r.Context().Err() == nil {
		if err := s.event(final); err != nil {
			h.opts.Logger.Debug("end listen stream", "error", err)
		}
	}
}

// visible returns the ids of those tasks that exist for the caller.
func (h *Handler) visible(ctx context.Context, c Caller, wanted []string) ([]string, error) {
	ids := []string{}
	for _, id := range wanted {
		if slices.Contains(ids, id) {
			continue
		}
		_, err := h.opts.Store.Get(ctx, c, id)
		switch {
		case err == nil:
			ids = append(ids, id)
		case !gone(err):
			return nil, fmt.Errorf("get task: %w", err)
		}
	}
	return ids, nil
}

// gone reports whether a Store's error means that there is no such task.
func gone(err error) bool {
	var je *jsonrpc.Error
	return errors.Is(err, ErrNotFound) || errors.As(err, &je) && je.Code == jsonrpc.CodeInvalidParams
}

// listenStream is the response writer that the SDK writes a listen stream to.
type listenStream struct {
	h         *Handler
	w         *deadlineWriter
	caller    Caller
	ids       []string // accepted
	withTasks bool     // taskIds were asked for
	meta      mcp.Meta
	start     func()
	wg        sync.WaitGroup

	mu      sync.Mutex // one event at a time
	acked   bool
	final   []byte        // the SDK's response, held until the tasks ended
	sdkDone chan struct{} // closed when final is set
}

// Header implements http.ResponseWriter.
func (s *listenStream) Header() http.Header { return s.w.Header() }

// WriteHeader implements http.ResponseWriter.
func (s *listenStream) WriteHeader(status int) { s.w.WriteHeader(status) }

// FlushError is for http.ResponseController. Events are flushed as they are written.
func (*listenStream) FlushError() error { return nil }

// Write receives one whole SSE event of the SDK, or an error's body.
func (s *listenStream) Write(b []byte) (int, error) {
	data, ok := eventData(b)
	if !ok || !strings.HasPrefix(s.Header().Get("Content-Type"), "text/event-stream") {
		return s.w.Write(b)
	}
	var m struct {
		Method string          `json:"method"`
		Result json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return 0, fmt.Errorf("read the SDK's event: %w", err)
	}
	switch {
	case m.Method == methodAcknowledged:
		if s.withTasks {
			var err error
			if data, err = withTaskIDs(data, s.ids); err != nil {
				return 0, err
			}
		}
		if err := s.event(data); err != nil {
			return 0, err
		}
		s.acked = true
		s.start()
	case m.Result != nil && s.acked:
		s.mu.Lock()
		s.final = bytes.Clone(data)
		s.mu.Unlock()
		close(s.sdkDone)
	default:
		if err := s.event(data); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// eventData returns the payload of one SSE event on one data line.
func eventData(b []byte) ([]byte, bool) {
	_, data, ok := bytes.Cut(b, []byte("data: "))
	return bytes.TrimSuffix(data, []byte("\n\n")), ok
}

// withTaskIDs adds the accepted ids to the SDK's acknowledgement.
func withTaskIDs(ack []byte, ids []string) ([]byte, error) {
	var m struct {
		JSONRPC string `json:"jsonrpc"`
		Method  string `json:"method"`
		Params  struct {
			Meta          json.RawMessage            `json:"_meta,omitempty"`
			Notifications map[string]json.RawMessage `json:"notifications"`
		} `json:"params"`
	}
	if err := json.Unmarshal(ack, &m); err != nil {
		return nil, fmt.Errorf("read the SDK's acknowledgement: %w", err)
	}
	raw, err := marshal(ids)
	if err != nil {
		return nil, err
	}
	if m.Params.Notifications == nil {
		m.Params.Notifications = map[string]json.RawMessage{}
	}
	m.Params.Notifications["taskIds"] = raw
	return marshal(m)
}

func (s *listenStream) event(data []byte) error {
	return s.send(slices.Concat([]byte("event: message\ndata: "), data, []byte("\n\n")))
}

func (s *listenStream) send(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.w.Write(b); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	if err := s.w.rc.Flush(); err != nil {
		return fmt.Errorf("flush event: %w", err)
	}
	return nil
}

// run sends the tasks' notifications until all tasks ended and the SDK's part
// did too, or the client is gone.
func (s *listenStream) run(parent context.Context) {
	ctx, cancel := context.WithCancel(parent)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	for _, id := range s.ids {
		tasks.Go(func() {
			if err := s.follow(ctx, id); err != nil {
				s.h.opts.Logger.DebugContext(ctx, "listen stream broke off", "error", err)
				cancel()
			}
		})
	}
	tasksDone := make(chan struct{})
	s.wg.Go(func() { tasks.Wait(); close(tasksDone) })

	keepAlive := time.NewTicker(s.h.opts.KeepAlive)
	defer keepAlive.Stop()
	for waitTasks, waitSDK := tasksDone, s.sdkDone; waitTasks != nil || waitSDK != nil; {
		select {
		case <-waitTasks:
			waitTasks = nil
		case <-waitSDK:
			waitSDK = nil
		case <-keepAlive.C:
			if err := s.send([]byte(":\n\n")); err != nil {
				s.h.opts.Logger.DebugContext(ctx, "listen stream broke off", "error", err)
				return
			}
		case <-s.h.closing.Done():
			// The SDK's part ends by itself, and its result is the last word.
			select {
			case <-s.sdkDone:
			case <-parent.Done():
			}
			return
		case <-ctx.Done():
			return
		}
	}
}

// follow sends one task's state and changes, at most once per interval, each
// time the latest, and returns when the task ended.
func (s *listenStream) follow(ctx context.Context, id string) error {
	latest := make(chan []byte, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { defer close(latest); s.watch(ctx, id, latest) })

	var sent []byte
	pause := time.NewTimer(0)
	defer pause.Stop()
	for event := range latest {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil
		}
		select {
		case newer, ok := <-latest:
			if ok {
				event = newer
			}
		default:
		}
		if bytes.Equal(event, sent) {
			pause.Reset(0)
			continue
		}
		if err := s.event(event); err != nil {
			return err
		}
		sent = event
		pause.Reset(s.h.opts.NotifyInterval)
	}
	return nil
}

// watch puts a task's latest state into a channel that holds one, until the
// task is terminal or gone.
func (s *listenStream) watch(ctx context.Context, id string, latest chan []byte) {
	for {
		terminal := false
		err := s.h.opts.Store.Watch(ctx, s.caller, id, func(t *Task) error {
			event, err := s.notification(t)
			if err != nil {
				return err
			}
			select {
			case <-latest: // nobody has seen it yet: superseded
			default:
			}
			latest <- event // never blocks, there is no other sender
			terminal = t.Status.Terminal()
			return nil
		})
		if terminal || gone(err) || ctx.Err() != nil {
			return
		}
		s.h.opts.Logger.WarnContext(ctx, "task watch broke off", "error", err)
		select {
		case <-time.After(s.h.opts.NotifyInterval):
		case <-ctx.Done():
			return
		}
	}
}

// notification is what tasks/get would answer, as notifications/tasks.
func (s *listenStream) notification(t *Task) ([]byte, error) {
	v, err := detailedView(t)
	if err != nil {
		return nil, err
	}
	v.ResultType, v.Meta = "", s.meta
	raw, err := marshal(v)
	if err != nil {
		return nil, err
	}
	b, err := jsonrpc.EncodeMessage(&jsonrpc.Request{Method: methodTasks, Params: raw})
	if err != nil {
		return nil, fmt.Errorf("encode notification: %w", err)
	}
	return b, nil
}
