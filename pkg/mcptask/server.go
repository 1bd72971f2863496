package mcptask

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"runtime/debug"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	methodGet        = "tasks/get"
	methodUpdate     = "tasks/update"
	methodCancel     = "tasks/cancel"
	methodResult     = "tasks/result"
	methodListen     = "subscriptions/listen"
	methodCall       = "tools/call"
	methodDiscover   = "server/discover"
	methodInitialize = "initialize"
)

type taskParams struct {
	mcp.ParamsBase
	TaskID         string                     `json:"taskId"`
	InputResponses map[string]json.RawMessage `json:"inputResponses"`
}

// newServer makes the SDK server of one generation.
func (h *Handler) newServer(modern bool) (*mcp.Server, error) {
	so := h.opts.Server
	caps := &mcp.ServerCapabilities{}
	if so.Capabilities != nil {
		c := *so.Capabilities
		c.Extensions = maps.Clone(c.Extensions)
		caps = &c
	}
	so.SupportedProtocolVersions = []string{Version20251125, Version20250618, Version20250326}
	if modern {
		// discover lists all four; what is older than 2026-07-28 never gets here.
		so.SupportedProtocolVersions = supportedVersions()
		caps.AddExtension(ExtensionID, nil)
	}
	so.Capabilities = caps
	if so.SetCacheable == nil {
		so.SetCacheable = h.setCacheable
	}

	s := mcp.NewServer(h.opts.Implementation, &so)
	if h.opts.Configure != nil {
		h.opts.Configure(s)
	}
	for _, t := range h.opts.Tools {
		s.AddTool(t.Tool, taskHandler(t.Handle))
	}
	var errs []error
	if modern {
		errs = append(errs,
			mcp.AddReceivingCustomMethod(s, methodGet, h.tasksGet),
			mcp.AddReceivingCustomMethod(s, methodUpdate, h.tasksUpdate),
			mcp.AddReceivingCustomMethod(s, methodCancel, h.tasksCancel))
	} else {
		// Without these the SDK answers a method it does not know with plain
		// text, which a JSON-RPC client cannot read.
		errs = append(errs,
			mcp.AddReceivingCustomMethod(s, methodGet, h.legacyGet),
			mcp.AddReceivingCustomMethod(s, methodCancel, h.legacyCancel))
		for _, m := range []string{methodUpdate, "tasks/list", methodResult} {
			errs = append(errs, mcp.AddReceivingCustomMethod(s, m, refuseMethod))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("mcptask: add task methods: %w", err)
	}
	// Last, so that it is outermost: what Configure added sees the caller.
	s.AddReceivingMiddleware(h.middleware(modern))
	return s, nil
}

func supportedVersions() []string {
	return []string{Version20260728, Version20251125, Version20250618, Version20250326}
}

func refuseMethod(context.Context, *mcp.ServerSession, *taskParams) (*ackResult, error) {
	return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found"}
}

func (h *Handler) setCacheable(_ context.Context, req mcp.Request, c *mcp.Cacheable) {
	if _, ok := req.(*mcp.ReadResourceRequest); ok {
		// Its handler knows; private is the safe default.
		if c.CacheScope == "" {
			c.CacheScope = "private"
		}
		return
	}
	c.TTLMs, c.CacheScope = int(h.opts.CacheTTL.Milliseconds()), h.opts.CacheScope
}

// createdKey holds a *Task pointer that a task tool fills while the SDK runs it.
type createdKey struct{}

// taskHandler runs a task tool inside the SDK, so that a plain result takes the
// SDK's own way. A task goes around it: middleware sends it.
func taskHandler(run Tool) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		c, ok := CallerFrom(ctx)
		if !ok {
			return nil, errors.New("tool called outside of a handler")
		}
		res, task, err := run(ctx, c, req)
		switch {
		case err != nil:
			return nil, err
		case task != nil && !c.Tasks():
			return nil, errors.New("tool made a task for a caller without tasks")
		case task != nil:
			created, _ := ctx.Value(createdKey{}).(**Task)
			*created = task
			return &mcp.CallToolResult{}, nil
		case res == nil:
			return nil, errors.New("tool returned neither result nor task")
		}
		return res, nil
	}
}

func (h *Handler) middleware(modern bool) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
			// A panic here would end the process: the SDK calls handlers from
			// goroutines of its own.
			defer func() {
				if p := recover(); p != nil {
					h.opts.Logger.ErrorContext(ctx, "handler panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
					res, err = nil, internalError()
				}
			}()
			c, from, err := h.callerOf(ctx, req, modern)
			if err != nil {
				return nil, err
			}
			ctx = context.WithValue(context.WithValue(ctx, callerKey{}, c), senderKey{}, from)
			var created *Task
			switch method {
			case methodCall:
				ctx = context.WithValue(ctx, createdKey{}, &created)
			case methodListen:
				// Ends the stream in good order when the handler closes.
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(ctx)
				defer cancel()
				stop := context.AfterFunc(h.closing, cancel) //nolint:contextcheck // the handler's, on purpose
				defer stop()
			}
			res, err = next(ctx, method, req)
			if err != nil {
				return nil, h.wireError(ctx, c, method, taskIDOf(req), err)
			}
			if r, ok := res.(*mcp.CallToolResult); ok && from != nil && from.task != nil {
				return h.created(from, created, r)
			}
			if created != nil {
				return createView(created), nil
			}
			version := c.ProtocolVersion
			if r, ok := res.(*mcp.InitializeResult); ok && !modern {
				version = r.ProtocolVersion
				h.openSession(req.GetSession(), c, version)
			}
			return h.dress(res, version), nil
		}
	}
}

// dress adds to discover, initialize and the lists what the SDK has no option for.
func (h *Handler) dress(res mcp.Result, version string) mcp.Result {
	switch r := res.(type) {
	case *mcp.ListToolsResult:
		if len(h.opts.ToolOrder) > 0 {
			place := func(t *mcp.Tool) int {
				if i := slices.Index(h.opts.ToolOrder, t.Name); i >= 0 {
					return i
				}
				return len(h.opts.ToolOrder)
			}
			slices.SortStableFunc(r.Tools, func(a, b *mcp.Tool) int { return place(a) - place(b) })
		}
	case *mcp.DiscoverResult, *mcp.InitializeResult, *mcp.ListPromptsResult, *mcp.ListResourcesResult, *mcp.ListResourceTemplatesResult:
	default:
		return res
	}
	if len(h.opts.SurfaceMeta) > 0 {
		m := maps.Clone(h.opts.SurfaceMeta)
		maps.Copy(m, res.GetMeta())
		res.SetMeta(m)
	}
	if version == Version20251125 {
		return h.withTasks(res)
	}
	return res
}

// callerOf tells who sent a request that reached the SDK.
func (h *Handler) callerOf(ctx context.Context, req mcp.Request, modern bool) (Caller, *sender, error) {
	c := Caller{Meta: metaOf(req)}
	var init *mcp.InitializeParams
	if ss, ok := req.GetSession().(*mcp.ServerSession); ok {
		init = ss.InitializeParams()
	}
	if init != nil {
		c.ProtocolVersion, c.Capabilities = init.ProtocolVersion, init.Capabilities
	}
	if modern {
		c.Principal = ctx.Value(principalKey{})
		if init == nil { // server/discover, which has no session yet
			c.ProtocolVersion = Version20260728
			c.Capabilities, _ = metaCapabilities(c.Meta)
		}
		return c, nil, nil
	}
	if ip, ok := req.GetParams().(*mcp.InitializeParams); ok && ip != nil {
		c.ProtocolVersion, c.Capabilities = ip.ProtocolVersion, ip.Capabilities
	}
	if !slices.Contains(supportedVersions()[1:], c.ProtocolVersion) {
		c.ProtocolVersion = Version20251125 // what the SDK negotiates then
	}
	// A session's context is that of the request that opened it, so who sent
	// this one is looked up by its private header.
	var token string
	if x := req.GetExtra(); x != nil && x.Header != nil {
		token = x.Header.Get(requestHeader)
	}
	if v, ok := h.requests.Load(token); ok {
		from := v.(*sender) //nolint:forcetypeassert // nothing else is stored
		c.Principal = from.principal
		switch _, call := req.(*mcp.CallToolRequest); {
		case call:
			c.Task = from.task
		case from.session != nil:
			c.Task = from.session.requested(taskIDOf(req))
		}
		return c, from, nil
	}
	if _, ok := req.(*mcp.InitializedRequest); ok {
		return c, nil, nil // its POST is answered before it is handled
	}
	return c, nil, context.Canceled
}

// metaOf returns _meta, or nil where params are absent: the SDK then has a nil
// pointer there, whose methods panic.
func metaOf(req mcp.Request) map[string]any {
	p := req.GetParams()
	if v := reflect.ValueOf(p); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil
	}
	return p.GetMeta()
}

func taskIDOf(req mcp.Request) string {
	if p, ok := req.GetParams().(*taskParams); ok && p != nil {
		return p.TaskID
	}
	return ""
}

func (h *Handler) tasksGet(ctx context.Context, _ *mcp.ServerSession, p *taskParams) (*taskResult, error) {
	c, err := taskCaller(ctx, p)
	if err != nil {
		return nil, err
	}
	return h.get(ctx, c, p.TaskID)
}

// get is tasks/get on both ways, before errors are mapped.
func (h *Handler) get(ctx context.Context, c Caller, id string) (*taskResult, error) {
	t, err := h.opts.Store.Get(ctx, c, id)
	if err != nil {
		return nil, fmt.Errorf("get task: %w", err)
	}
	return detailedView(t)
}

func (h *Handler) tasksUpdate(ctx context.Context, _ *mcp.ServerSession, p *taskParams) (*ackResult, error) {
	c, err := taskCaller(ctx, p)
	if err != nil {
		return nil, err
	}
	if p.InputResponses == nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "inputResponses is required"}
	}
	if err := h.opts.Store.Update(ctx, c, p.TaskID, p.InputResponses); err != nil {
		return nil, fmt.Errorf("update task: %w", err)
	}
	return &ackResult{ResultType: resultComplete}, nil
}

func (h *Handler) tasksCancel(ctx context.Context, _ *mcp.ServerSession, p *taskParams) (*ackResult, error) {
	c, err := taskCaller(ctx, p)
	if err != nil {
		return nil, err
	}
	if err := h.opts.Store.Cancel(ctx, c, p.TaskID); err != nil {
		return nil, fmt.Errorf("cancel task: %w", err)
	}
	return &ackResult{ResultType: resultComplete}, nil
}

// taskCaller is the gate of tasks/*.
func taskCaller(ctx context.Context, p *taskParams) (Caller, error) {
	c, ok := CallerFrom(ctx)
	switch {
	case !ok:
		return c, errors.New("task method called outside of a handler")
	case !c.Tasks():
		return c, ErrTasksRequired
	case p == nil:
		return c, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "params are required"}
	}
	return c, nil
}

// wireError is what the client reads: MapError's choice, and never the text of
// an error that nobody meant for it.
func (h *Handler) wireError(ctx context.Context, c Caller, method, taskID string, err error) error {
	if h.opts.MapError != nil {
		err = h.opts.MapError(ctx, c, method, err)
	}
	var je *jsonrpc.Error
	var ended *TerminalError
	switch {
	case errors.As(err, &je):
		// The SDK's own errors wrap a bare code and carry the text outside.
		if len(je.Data) == 0 && !isTaskMethod(method) {
			return err
		}
		return je
	case errors.Is(err, ErrNoTaskSupport):
		return &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: ErrNoTaskSupport.Error()}
	case errors.Is(err, ErrTaskParams):
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: ErrTaskParams.Error()}
	case errors.As(err, &ended):
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: ended.Error()}
	case errors.Is(err, ErrTasksRequired):
		return h.missingCapability(ctx, c, method, taskID)
	case errors.Is(err, ErrNotFound):
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Failed to retrieve task: Task not found"}
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return err // nobody reads it
	}
	h.opts.Logger.ErrorContext(ctx, "request failed", "method", method, "error", err)
	return internalError()
}

// internalError tells no more than that it was not the client's fault.
func internalError() *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
}

func (h *Handler) missingCapability(ctx context.Context, c Caller, method, taskID string) error {
	data := map[string]any{}
	if h.opts.MissingCapability != nil {
		maps.Copy(data, h.opts.MissingCapability(ctx, c, method, taskID))
	}
	data["requiredCapabilities"] = map[string]any{"extensions": map[string]any{ExtensionID: struct{}{}}}
	raw, err := marshal(data)
	if err != nil {
		h.opts.Logger.ErrorContext(ctx, "encode the missing capability's data", "error", err)
	}
	return &jsonrpc.Error{Code: mcp.CodeMissingRequiredClientCapabilities, Message: "Missing required client capability", Data: raw}
}

// Close ends open streams in good order, lets calls in flight be answered, closes
// the sessions of older clients and waits for all. Requests that come later are
// refused. What takes too long ends when its HTTP server is closed.
func (h *Handler) Close() error {
	h.close()
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.calls.Wait()
	var errs []error
	for ss := range h.legacySessions() {
		if err := ss.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close session: %w", err))
		}
	}
	h.wg.Wait()
	return errors.Join(errs...)
}

var _ http.Handler = (*Handler)(nil)
