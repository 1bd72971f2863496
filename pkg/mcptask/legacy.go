package mcptask

import (
	"context"
	"crypto/rand"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// This file is the core tasks of MCP 2025-11-25.
// https://modelcontextprotocol.io/specification/2025-11-25/basic/utilities/tasks

const (
	methodCancelled = "notifications/cancelled"

	metaRelatedTask       = "io.modelcontextprotocol/related-task"
	metaImmediateResponse = "io.modelcontextprotocol/model-immediate-response"
)

// ErrTaskParams is the error of a tools/call whose params.task is not as MCP
// 2025-11-25 has it. It becomes -32602.
var ErrTaskParams = errors.New("task must be an object, and task.ttl a number of milliseconds that is not negative")

// ErrNoTaskSupport is the error of params.task on a tool that makes no tasks.
// It becomes -32601.
var ErrNoTaskSupport = errors.New("the tool does not support tasks: call it without params.task")

// TaskRequest is params.task of MCP 2025-11-25: the caller wants a task.
type TaskRequest struct {
	// TTL that the caller asked for; zero if it did not. A Store may give more
	// or less.
	TTL time.Duration
}

// parseTaskRequest reads params.task.
func parseTaskRequest(raw stdjson.RawMessage) (*TaskRequest, error) {
	var p *struct {
		TTL stdjson.RawMessage `json:"ttl"`
	}
	if stdjson.Unmarshal(raw, &p) != nil || p == nil {
		return nil, ErrTaskParams
	}
	if p.TTL == nil {
		return &TaskRequest{}, nil
	}
	var ms *float64
	if stdjson.Unmarshal(p.TTL, &ms) != nil || ms == nil || *ms < 0 {
		return nil, ErrTaskParams
	}
	const most = float64(math.MaxInt64 / int64(time.Millisecond) / 2)
	// A wish for nothing is still a wish.
	return &TaskRequest{TTL: max(time.Duration(min(*ms, most)*float64(time.Millisecond)), 1)}, nil
}

// legacyTask is a task of MCP 2025-11-25.
type legacyTask struct {
	TaskID        string `json:"taskId"`
	Status        Status `json:"status"`
	StatusMessage string `json:"statusMessage,omitempty"`
	CreatedAt     string `json:"createdAt"`
	LastUpdatedAt string `json:"lastUpdatedAt"`
	TTL           *int64 `json:"ttl"`
	PollInterval  int64  `json:"pollInterval,omitempty"`
}

// legacyTaskResult answers tasks/get and tasks/cancel.
type legacyTaskResult struct {
	mcp.ResultBase
	legacyTask
}

// legacyCreated answers the call that made the task.
type legacyCreated struct {
	mcp.ResultBase
	Task *legacyTask `json:"task"`
}

// wireStatus is the status in MCP 2025-11-25, where a tool's error is a failure.
func wireStatus(t *Task) Status {
	if t.Status == StatusCompleted && t.Result != nil && t.Result.IsError {
		return StatusFailed
	}
	return t.Status
}

func (h *Handler) legacyView(t *Task) (*legacyTask, error) {
	if _, err := detailedView(t); err != nil { // the same rules
		return nil, err
	}
	v := &legacyTask{
		TaskID: t.ID, Status: wireStatus(t), StatusMessage: t.StatusMessage,
		CreatedAt: timestamp(t.CreatedAt), LastUpdatedAt: timestamp(t.LastUpdatedAt), PollInterval: t.PollInterval.Milliseconds(),
	}
	if t.TTL > 0 {
		ms := t.TTL.Milliseconds()
		v.TTL = &ms
	}
	switch {
	case v.Status != StatusFailed:
	case t.Error != nil:
		v.StatusMessage = t.Error.Message
	case h.opts.FailureMessage != nil:
		v.StatusMessage = h.opts.FailureMessage(t.Result)
	default:
		v.StatusMessage = textOf(t.Result)
	}
	return v, nil
}

// textOf is the first text of a result.
func textOf(r *mcp.CallToolResult) string {
	for _, c := range r.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			return t.Text
		}
	}
	return ""
}

func relatedTask(id string) map[string]any {
	return map[string]any{metaRelatedTask: map[string]any{"taskId": id}}
}

// legacyResult is what the call would have answered: tasks/result of a task that
// ended.
func legacyResult(t *Task) (*mcp.CallToolResult, error) {
	r := &mcp.CallToolResult{}
	switch {
	case t.Status == StatusFailed:
		return nil, t.Error
	case t.Result != nil:
		*r = *t.Result
	default:
		r.SetError(errors.New("the task was cancelled"))
	}
	if r.Content == nil {
		r.Content = []mcp.Content{}
	}
	r.Meta = maps.Clone(r.Meta)
	if r.Meta == nil {
		r.Meta = mcp.Meta{}
	}
	maps.Copy(r.Meta, relatedTask(t.ID))
	return r, nil
}

// created answers a call that asked for a task, with the one that was made or,
// where the tool answered at once, with one that holds its answer.
func (h *Handler) created(from *sender, made *Task, res *mcp.CallToolResult) (mcp.Result, error) {
	if made == nil {
		made = from.session.keep(strings.ToLower(rand.Text()), res)
	} else {
		from.made = made
	}
	v, err := h.legacyView(made)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("The call goes on as task %s; its result follows when it ends. There is no need to call again.", made.ID)
	switch {
	case made.Status.Terminal():
		text = v.StatusMessage
	case h.opts.ImmediateResponse != nil:
		text = h.opts.ImmediateResponse(made)
	}
	out := &legacyCreated{Task: v}
	if text != "" {
		out.Meta = mcp.Meta{metaImmediateResponse: text}
	}
	return out, nil
}

// The SDK's types have no room for tasks: what embeds them is sent with it.
type (
	legacyInitialize struct {
		*mcp.InitializeResult
		Capabilities legacyCapabilities `json:"capabilities"`
	}
	legacyCapabilities struct {
		*mcp.ServerCapabilities
		Tasks stdjson.RawMessage `json:"tasks"`
	}
	legacyTools struct {
		*mcp.ListToolsResult
		Tools []legacyTool `json:"tools"`
	}
	legacyTool struct {
		*mcp.Tool
		Execution *legacyExecution `json:"execution,omitempty"`
	}
	legacyExecution struct {
		TaskSupport string `json:"taskSupport"`
	}
)

// withTasks adds to initialize and tools/list what MCP 2025-11-25 says there.
func (h *Handler) withTasks(res mcp.Result) mcp.Result {
	switch r := res.(type) {
	case *mcp.InitializeResult:
		return &legacyInitialize{r, legacyCapabilities{r.Capabilities, stdjson.RawMessage(`{"cancel":{},"requests":{"tools":{"call":{}}}}`)}}
	case *mcp.ListToolsResult:
		out := &legacyTools{ListToolsResult: r, Tools: []legacyTool{}}
		for _, t := range r.Tools {
			v := legacyTool{Tool: t}
			if h.taskTool(t.Name) {
				v.Execution = &legacyExecution{"optional"}
			}
			out.Tools = append(out.Tools, v)
		}
		return out
	}
	return res
}

func (h *Handler) taskTool(name string) bool {
	return slices.ContainsFunc(h.opts.Tools, func(t TaskTool) bool { return t.Name == name })
}

// legacyCaller is the gate of tasks/* in sessions.
func legacyCaller(ctx context.Context, p *taskParams) (Caller, *sender, error) {
	c, ok := CallerFrom(ctx)
	from, _ := ctx.Value(senderKey{}).(*sender)
	switch {
	case !ok:
		return c, nil, errors.New("task method called outside of a handler")
	case from == nil || !from.session.knowsTasks():
		return c, nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found"}
	case p == nil:
		return c, nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "params are required"}
	}
	return c, from, nil
}

func (h *Handler) legacyGet(ctx context.Context, _ *mcp.ServerSession, p *taskParams) (*legacyTaskResult, error) {
	c, from, err := legacyCaller(ctx, p)
	if err != nil {
		return nil, err
	}
	return h.getInSession(ctx, c, from.session, p.TaskID)
}

// getInSession is tasks/get on both ways, before errors are mapped.
func (h *Handler) getInSession(ctx context.Context, c Caller, s *session, id string) (*legacyTaskResult, error) {
	t, err := s.task(ctx, c, id)
	if err != nil {
		return nil, fmt.Errorf("get task: %w", err)
	}
	v, err := h.legacyView(t)
	if err != nil {
		return nil, err
	}
	return &legacyTaskResult{legacyTask: *v}, nil
}

func (h *Handler) legacyCancel(ctx context.Context, _ *mcp.ServerSession, p *taskParams) (*legacyTaskResult, error) {
	c, from, err := legacyCaller(ctx, p)
	if err != nil {
		return nil, err
	}
	t, err := from.session.task(ctx, c, p.TaskID)
	if err != nil {
		return nil, fmt.Errorf("cancel task: %w", err)
	}
	if !t.Status.Terminal() {
		if err := h.opts.Store.Cancel(ctx, c, p.TaskID); err != nil {
			return nil, fmt.Errorf("cancel task: %w", err)
		}
		if t, err = h.opts.Store.Get(ctx, c, p.TaskID); err != nil {
			return nil, fmt.Errorf("cancel task: %w", err)
		}
		if t.Status == StatusCancelled || !t.Status.Terminal() {
			v, err := h.legacyView(t)
			if err != nil {
				return nil, err
			}
			return &legacyTaskResult{legacyTask: *v}, nil
		}
	}
	return nil, &TerminalError{Status: wireStatus(t)}
}

// TerminalError is the error of tasks/cancel for a task that ended. It becomes
// -32602.
type TerminalError struct{ Status Status }

func (e *TerminalError) Error() string {
	return fmt.Sprintf("Cannot cancel task: already in terminal status '%s'", e.Status)
}

// serveTask answers tasks/get and tasks/result of a session in front of the SDK.
// It reports false for what the SDK shall answer, and refuse.
func (h *Handler) serveTask(w *deadlineWriter, r *http.Request, s *session, m message) bool {
	v := r.Header.Get(versionHeader)
	if !s.knowsTasks() || m.method != methodResult && (m.method != methodGet || h.slowGet) ||
		!m.id.IsValid() || !acceptable(r) || v != "" && !slices.Contains(supportedVersions()[1:], v) {
		return false
	}
	p, err := m.parseParams()
	switch {
	case err != nil && m.method == methodGet:
		return false
	case err != nil:
		h.writeError(w, http.StatusOK, m.id, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()})
		return true
	}
	c := s.caller(r.Context().Value(principalKey{}), p.Meta, p.TaskID)
	ctx := context.WithValue(r.Context(), callerKey{}, c)
	if m.method == methodResult {
		h.serveResult(ctx, w, s, m.id, c, p.TaskID)
		return true
	}
	res, err := h.getInSession(ctx, c, s, p.TaskID)
	h.writeResult(ctx, w, m, c, p.TaskID, res, err)
	return true
}

// writeResult answers a request of a session.
func (h *Handler) writeResult(ctx context.Context, w http.ResponseWriter, m message, c Caller, taskID string, res any, err error) {
	h.write(w, http.StatusOK, h.response(ctx, m.id, c, m.method, taskID, res, err))
}

func (h *Handler) response(ctx context.Context, id jsonrpc.ID, c Caller, method, taskID string, res any, err error) *jsonrpc.Response {
	var raw stdjson.RawMessage
	if err == nil {
		raw, err = marshal(res)
	}
	if err != nil {
		return &jsonrpc.Response{ID: id, Error: asRPC(h.wireError(ctx, c, method, taskID, err))}
	}
	return &jsonrpc.Response{ID: id, Result: raw}
}

func asRPC(err error) *jsonrpc.Error {
	if je, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return je
	}
	return internalError()
}

// serveResult answers tasks/result when the task has ended. Until then the
// stream carries what the task asks and tells.
func (h *Handler) serveResult(ctx context.Context, w *deadlineWriter, s *session, id jsonrpc.ID, c Caller, taskID string) {
	t, err := s.task(ctx, c, taskID)
	if err != nil || t.Status.Terminal() {
		h.write(w, http.StatusOK, h.resultResponse(ctx, id, c, taskID, t, err))
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopWith := context.AfterFunc(s.ctx, cancel) //nolint:contextcheck // the session's, on purpose
	defer stopWith()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache, no-transform")
	w.WriteHeader(http.StatusOK)
	cr := newCarrier(w)
	if cr.write([]byte(": ok\n\n"), false) != nil {
		return
	}
	s.hold(id, taskID, cr, cancel)
	defer s.release(id, taskID, cr)

	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { cr.keepAlive(h.opts.KeepAlive, stop) })
	defer wg.Wait()
	defer close(stop)

	t = nil
	h.watch(ctx, c, taskID, func(now *Task) { t = now })
	switch {
	case h.closing.Err() != nil && s.ctx.Err() != nil && (t == nil || !t.Status.Terminal()):
		err = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the server is shutting down; the task goes on: start a new session and ask again"}
	case ctx.Err() != nil:
		return // cancelled, gone, or the session ended
	case t == nil || !t.Status.Terminal():
		err = ErrNotFound
	}
	b, err := jsonrpc.EncodeMessage(h.resultResponse(ctx, id, c, taskID, t, err))
	if err != nil {
		h.opts.Logger.ErrorContext(ctx, "encode response", "error", err)
		return
	}
	if err := cr.last(b); err != nil {
		h.opts.Logger.DebugContext(ctx, "write response", "error", err)
	}
}

func (h *Handler) resultResponse(ctx context.Context, id jsonrpc.ID, c Caller, taskID string, t *Task, err error) *jsonrpc.Response {
	var res *mcp.CallToolResult
	if err == nil {
		if _, err = detailedView(t); err == nil {
			res, err = legacyResult(t)
		}
	}
	return h.response(ctx, id, c, methodResult, taskID, (*plainResult)(res), err)
}

// hold notes the stream of a tasks/result.
func (s *session) hold(id jsonrpc.ID, taskID string, c *carrier, cancel context.CancelFunc) {
	s.mu.Lock()
	s.held[taskID] = append(s.held[taskID], c)
	s.results[id] = cancel
	s.mu.Unlock()
	s.wake(taskID)
}

func (s *session) release(id jsonrpc.ID, taskID string, c *carrier) {
	s.mu.Lock()
	if s.held[taskID] = slices.DeleteFunc(s.held[taskID], func(o *carrier) bool { return o == c }); len(s.held[taskID]) == 0 {
		delete(s.held, taskID)
	}
	delete(s.results, id)
	s.mu.Unlock()
	s.lose(c)
}
