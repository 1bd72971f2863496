package contract

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

// downloadTTL is how long a presigned download lives.
const downloadTTL = time.Hour

// sessionTimeout ends the session of an older client that has gone quiet: each
// holds some 30 KB, and its tasks do not depend on it.
const sessionTimeout = 15 * time.Minute

// errNoSuchTool is what check says of anything that is not a tool.
var errNoSuchTool = errors.New("contract: no such tool")

// Config of a Service.
type Config struct {
	// Farm does the work. Required.
	Farm Farm
	// Version of the product. Required.
	Version string
	// PublicURL is where clients reach the gateway: scheme, host and, if there
	// is one, a path prefix; no slash at the end. Required.
	PublicURL string
	// Limits that a tenant is told. Nil: none.
	Limits func(render.Tenant) Limits
	// Limited is called with the name of each limit that somebody met. Nil:
	// nobody counts.
	Limited func(limit string)
	// HumanApproval tells whether only a person on the approval page decides on
	// the renders of a tenant. Nil: agents may too.
	HumanApproval func(render.Tenant) bool
	// Dialect that is spoken. Nil: the contract of this package.
	Dialect *Dialect
	// Local is what the client of the standard streams gets. Nil: clients come
	// over HTTP. It has a dialect of its own.
	Local *Local
	// MaxSessions bounds the sessions of one principal. 0: no bound.
	MaxSessions int
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// Tracer makes the span of each tool call. Required.
	Tracer trace.Tracer
}

// Limits of the farm as clients are told.
type Limits struct {
	MaxAssetBytes        int64 `json:"max_asset_bytes"`
	MaxConcurrentRenders int   `json:"max_concurrent_renders"`
	// Those that follow are absent where there is no limit.
	MaxStorageBytes       int64   `json:"max_storage_bytes,omitempty"`
	RenderMinutesPerDay   int     `json:"render_minutes_per_day,omitempty"`
	RenderMinutesPerMonth int     `json:"render_minutes_per_month,omitempty"`
	RequestsPerSecond     float64 `json:"requests_per_second,omitempty"`
	RequestsAtOnce        int     `json:"requests_at_once,omitempty"`
	MaxOpenRequests       int     `json:"max_open_requests,omitempty"`
	MaxSessions           int     `json:"max_sessions,omitempty"`
}

// Service answers MCP clients. Make it with New; its methods may be called at
// once.
type Service struct {
	cfg         Config
	dialect     *Dialect
	fingerprint string
	handler     *mcptask.Handler
	watches     watches
	previews    *previews
}

// New makes a Service. Close it after its HTTP server has stopped.
func New(c Config) (*Service, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.HumanApproval == nil {
		c.HumanApproval = func(render.Tenant) bool { return false }
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case c.Local != nil:
		c.Dialect = c.Local.dialect()
	case c.Dialect == nil:
		c.Dialect = native()
	}
	for _, r := range c.Dialect.Resources {
		r.Meta = mcp.Meta{c.Dialect.Namespace + "/lifecycle": Stable()}
	}
	for _, t := range c.Dialect.Templates {
		t.Meta = mcp.Meta{c.Dialect.Namespace + "/lifecycle": Stable()}
	}
	s := &Service{cfg: c, dialect: c.Dialect, previews: newPreviews()}
	s.watches.init()
	fp, err := s.makeFingerprint()
	if err != nil {
		return nil, err
	}
	s.fingerprint = fp
	if s.handler, err = mcptask.New(s.options()); err != nil {
		return nil, fmt.Errorf("make MCP handler: %w", err)
	}
	return s, nil
}

// Handler serves the endpoint. Requests need an auth.Request in their context, put
// there by mcptask.WithPrincipal.
func (s *Service) Handler() *mcptask.Handler { return s.handler }

// Fingerprint names the surface.
func (s *Service) Fingerprint() string { return s.fingerprint }

// Close ends open streams and subscriptions and waits for them.
func (s *Service) Close() error {
	err := s.handler.Close()
	s.watches.close()
	if err != nil {
		return fmt.Errorf("close MCP handler: %w", err)
	}
	return nil
}

func (s *Service) options() mcptask.Options {
	o := mcptask.Options{
		Implementation:    &mcp.Implementation{Name: s.dialect.Name, Title: s.dialect.Title, Version: s.cfg.Version},
		Store:             store{s},
		Configure:         s.configure,
		ToolOrder:         s.dialect.names(),
		SurfaceMeta:       map[string]any{s.dialect.Namespace + "/fingerprint": s.fingerprint},
		CacheTTL:          time.Hour,
		CacheScope:        "private",
		MapError:          s.mapError,
		MissingCapability: s.missingCapability,
		FailureMessage:    failureMessage,
		ImmediateResponse: s.immediateResponse,
		PrincipalKey: func(p any) string {
			r, _ := p.(auth.Request)
			return r.Key()
		},
		MaxBodyBytes:   maxBodyBytes,
		SessionTimeout: s.sessionTimeout(),
		MaxSessions:    s.cfg.MaxSessions,
		Logger:         s.cfg.Logger,
		// auth.Guard stands in front and knows the public URL.
		DisableLocalhostProtection: true,
		CrossOrigin:                http.NewCrossOriginProtection(),
	}
	o.CrossOrigin.AddInsecureBypassPattern("/") //nolint:gosec // as above: auth.Guard checks origins
	o.Server = mcp.ServerOptions{
		Instructions:       s.dialect.Instructions,
		SubscribeHandler:   s.subscribe,
		UnsubscribeHandler: s.unsubscribe,
		Capabilities: &mcp.ServerCapabilities{
			Tools:     &mcp.ToolCapabilities{},
			Resources: &mcp.ResourceCapabilities{Subscribe: true, ListChanged: true},
		},
	}
	if s.dialect.Complete {
		o.Server.CompletionHandler = s.complete
	}
	if t, ok := s.dialect.as(ToolRender); ok {
		o.Tools = []mcptask.TaskTool{{Tool: t.Tool, Handle: s.renderTool}}
	}
	return o
}

func (s *Service) configure(srv *mcp.Server) {
	handlers := map[string]toolFunc{
		ToolStatus: s.status, ToolApprove: s.approve, ToolCancel: s.cancel,
		ToolValidate: s.validate, ToolProbe: s.probe, ToolCapabilities: s.capabilitiesTool,
	}
	for _, t := range s.dialect.Tools {
		fn, ok := handlers[t.As]
		if !ok {
			continue // the render tool is mcptask's
		}
		srv.AddTool(t.Tool, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			c, _ := mcptask.CallerFrom(ctx)
			res, _, err := s.run(ctx, c, req, func(ctx context.Context, in *call) (*mcp.CallToolResult, *mcptask.Task, error) {
				res, err := fn(ctx, in)
				return res, nil, err
			})
			return res, err
		})
	}
	s.addResources(srv)
}

// call is one tool call.
type call struct {
	auth.Request
	caller mcptask.Caller
	// name is the tool's for clients, tool the one of this package.
	name, tool string
	// raw are the arguments for tool. corrected: what was wrong with them is
	// left out already.
	raw       json.RawMessage
	corrected bool
	// about is the render that the call concerns, for repairs.
	record *render.Record
	id     render.ID
}

type toolFunc func(ctx context.Context, in *call) (*mcp.CallToolResult, error)

// run is around every tool call: who calls and whether they may, the span, the
// error envelope, and what older versions cannot read.
func (s *Service) run(ctx context.Context, c mcptask.Caller, req *mcp.CallToolRequest, fn func(context.Context, *call) (*mcp.CallToolResult, *mcptask.Task, error)) (res *mcp.CallToolResult, task *mcptask.Task, err error) {
	t, ok := s.dialect.tool(req.Params.Name)
	if !ok {
		return nil, nil, fmt.Errorf("%w: %s", errNoSuchTool, req.Params.Name)
	}
	in := &call{caller: c, name: t.Name, tool: t.As, raw: req.Params.Arguments}
	in.Request, _ = c.Principal.(auth.Request)
	if len(in.raw) == 0 {
		in.raw = json.RawMessage("{}")
	}
	ctx, span := s.startSpan(ctx, in)
	defer span.End()
	err = s.guarded(ctx, in.tool, func() (err error) {
		if in.Tenant == "" {
			return errors.New("a request without a principal")
		}
		if need := requiredScopes(in.tool); !in.HasAny(need...) {
			return InsufficientScope(need, s.Endpoint())
		}
		if in.raw, err = t.Arguments(in.raw); err != nil {
			in.corrected = true
			return err
		}
		if res, task, err = fn(ctx, in); err != nil || res == nil {
			return err
		}
		res, err = t.Result(c, res)
		return err
	})
	if id := (failure{record: in.record, id: in.id}).renderID(); id != "" {
		span.SetAttributes(telemetry.RenderID(string(id)), telemetry.Tenant(in.Tenant.Key()))
	}
	if err != nil {
		e := render.AsError(err)
		span.SetStatus(codes.Error, string(e.Code))
		span.SetAttributes(attribute.String("error.type", string(e.Code)))
		f := failure{tool: in.tool, raw: in.raw, corrected: in.corrected, record: in.record, id: in.id, local: s.cfg.Local != nil}
		if id := f.renderID(); id != "" {
			f.approvalURL = s.ApprovalURL(id)
		}
		res, task = s.envelopeFor(ctx, in.ID, e, f).result(), nil
	}
	if res != nil && c.ProtocolVersion <= mcptask.Version20250326 {
		res = textOnly(res)
	}
	return res, task, nil
}

// guarded turns a panic into an error: the SDK runs handlers on goroutines of
// its own, where one would end the process.
func (s *Service) guarded(ctx context.Context, what string, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Logger.ErrorContext(ctx, "panic", "in", what, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic in %s: %v", what, p)
		}
	}()
	return fn()
}

// InsufficientScope is the error of a credential that may not do this.
func InsufficientScope(need []string, resource string) *render.Error {
	e := render.Errorf(render.CodeInsufficientScope, render.BlameCaller, "The credential lacks the scope %s.", strings.Join(need, " or "))
	e.Details = &render.Details{Reason: "missing scope", Extra: map[string]any{"required_scopes": need, "resource": resource}}
	return e
}

// startSpan begins the span of a tool call, below the caller's own span if its
// _meta names one, else below the HTTP request's.
func (s *Service) startSpan(ctx context.Context, in *call) (context.Context, trace.Span) {
	opts := []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindInternal),
		trace.WithAttributes(attribute.String("mcp.method.name", "tools/call"), attribute.String("gen_ai.tool.name", in.name)),
	}
	ctx = trace.ContextWithSpanContext(ctx, in.Span)
	own := telemetry.Extract(ctx, telemetry.MetaCarrier(in.caller.Meta))
	if in.Span.IsValid() && !trace.SpanContextFromContext(own).Equal(in.Span) {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: in.Span}))
	}
	return s.cfg.Tracer.Start(own, "tools/call "+in.name, opts...) //nolint:spancheck // the caller ends it
}

// envelopeFor makes the envelope of an error. What is the farm's fault is
// logged here, with its cause.
func (s *Service) envelopeFor(ctx context.Context, requestID string, e *render.Error, f failure) Envelope {
	if e.Code == render.CodeInternalError || e.Code == render.CodeUnavailable {
		s.cfg.Logger.ErrorContext(ctx, "request failed", "request_id", requestID, "render_id", f.renderID(), "code", e.Code, "error", e.Cause)
	}
	if e.Code == render.CodeRenderNotFound {
		e = RenderNotFound() // whoever found it missing, the answer is one
	}
	if e.Details != nil && s.cfg.Limited != nil {
		if limit, ok := e.Details.Extra["limit"].(string); ok {
			s.cfg.Limited(limit)
		}
	}
	e = s.withUploadHint(e)
	env := NewEnvelope(e, requestID, s.fingerprint, repair(e, f))
	out := s.dialect.Error(env)
	if f.corrected { // by the dialect, in its own words
		out.Message, out.Details = env.Message, env.Details
	}
	return out
}

// envelope is envelopeFor with the request of the context.
func (s *Service) envelope(ctx context.Context, e *render.Error, f failure) Envelope {
	return s.envelopeFor(ctx, requestID(ctx), e, f)
}

// Envelope is what the HTTP API answers an error with.
func (s *Service) Envelope(ctx context.Context, err error, rec *render.Record) Envelope {
	f := failure{record: rec}
	if rec != nil {
		f.approvalURL = s.ApprovalURL(rec.ID)
	}
	return s.envelope(ctx, render.AsError(err), f)
}

// withUploadHint says where to upload, for errors that an upload repairs.
func (s *Service) withUploadHint(e *render.Error) *render.Error {
	if e.Code != render.CodeSourceNotFound && (e.Code != render.CodeInvalidField || e.Details == nil || !strings.HasSuffix(e.Details.Field, "asset_uri") && !strings.HasSuffix(e.Details.Field, "asset_id")) {
		return e
	}
	d := render.Details{}
	if e.Details != nil {
		d = *e.Details
	}
	extra := map[string]any{"upload_url": s.publicURL("/v1/assets")}
	maps.Copy(extra, d.Extra)
	d.Extra = extra
	c := *e
	c.Details = &d
	return &c
}

func requestID(ctx context.Context) string {
	if c, ok := mcptask.CallerFrom(ctx); ok {
		if r, ok := c.Principal.(auth.Request); ok {
			return r.ID
		}
	}
	r, _ := auth.RequestFrom(ctx)
	return r.ID
}

// mapError dresses every JSON-RPC error in the envelope.
func (s *Service) mapError(ctx context.Context, c mcptask.Caller, method string, err error) error {
	r, _ := c.Principal.(auth.Request)
	var je *jsonrpc.Error
	var re *render.Error
	var ended *mcptask.TerminalError
	switch {
	case errors.Is(err, mcptask.ErrTaskParams):
		return s.envelopeFor(ctx, r.ID, render.InvalidField("task.ttl", "", "task must be an object, and its ttl a number of milliseconds that is not negative; leave ttl out for 24 hours."), failure{}).rpcError()
	case errors.As(err, &ended):
		return s.envelopeFor(ctx, r.ID, render.InvalidField("taskId", "", fmt.Sprintf("The task has ended: it is %s. tasks/result tells how.", ended.Status)), failure{}).rpcError()
	case errors.Is(err, mcptask.ErrNoTaskSupport):
		return err
	case errors.Is(err, mcptask.ErrTasksRequired), errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return err
	case errors.Is(err, mcptask.ErrTooManySessions):
		e := TooMany("sessions", s.cfg.MaxSessions, sessionTimeout)
		return s.envelopeFor(ctx, r.ID, e, failure{}).rpcError()
	case errors.As(err, &re):
		return s.resourceCode(c, s.envelopeFor(ctx, r.ID, re, failure{}).rpcError())
	case errors.As(err, &je):
		if hasEnvelope(je.Data) || je.Code != jsonrpc.CodeInvalidParams {
			return err
		}
		e := render.InvalidField(paramOf(method), "", err.Error())
		out := s.envelopeFor(ctx, r.ID, e, failure{})
		if method == "resources/read" || method == "resources/subscribe" {
			out = s.envelopeFor(ctx, r.ID, resourceNotFound(), failure{})
			out.ResourceURI = uriOf(je.Data)
		}
		return s.resourceCode(c, out.rpcError())
	default:
		return s.envelopeFor(ctx, r.ID, render.AsError(err), failure{}).rpcError()
	}
}

// resourceCode gives resource_not_found the number that older clients know.
func (s *Service) resourceCode(c mcptask.Caller, e *jsonrpc.Error) *jsonrpc.Error {
	if c.ProtocolVersion < mcptask.Version20260728 && bytes.Contains(e.Data, []byte(`"machine_code":"resource_not_found"`)) {
		e.Code = codeResourceNotFound2025
	}
	return e
}

// codeResourceNotFound2025 is what MCP 2025-11-25 and older say.
const codeResourceNotFound2025 = -32002

func hasEnvelope(data json.RawMessage) bool {
	return bytes.Contains(data, []byte(`"machine_code"`))
}

func uriOf(data json.RawMessage) string {
	var d struct {
		URI string `json:"uri"`
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return ""
	}
	return d.URI
}

// paramOf is the parameter that most likely was wrong.
func paramOf(method string) string {
	switch method {
	case "tools/call":
		return "name"
	case "resources/read", "resources/subscribe", "resources/unsubscribe":
		return "uri"
	case "completion/complete":
		return "argument"
	case "tools/list", "resources/list", "resources/templates/list", "prompts/list":
		return "cursor"
	case "tasks/update":
		return "inputResponses"
	case "subscriptions/listen":
		return "notifications"
	default:
		return "params"
	}
}

// missingCapability is what goes beside requiredCapabilities in -32021.
func (s *Service) missingCapability(ctx context.Context, c mcptask.Caller, method, taskID string) map[string]any {
	r, _ := c.Principal.(auth.Request)
	f := failure{}
	if id, ok := render.ParseID(taskID); ok {
		f.id = id
	}
	e := render.Errorf(render.CodeMissingClientCapability, render.BlameCaller,
		"%s needs the extension %s in this request's client capabilities; the tools %s, %s and %s do the same without it.",
		method, mcptask.ExtensionID, ToolStatus, ToolApprove, ToolCancel)
	env := s.envelopeFor(ctx, r.ID, e, f)
	if t, ok := s.dialect.as(ToolCancel); ok && method == "tasks/cancel" && env.Repair != nil {
		env.Repair.Step, env.Repair.Tool = "cancel_render", t.Name
	}
	var out map[string]any
	if err := json.Unmarshal(env.rpcError().Data, &out); err != nil {
		return nil
	}
	return out
}

func (s *Service) publicURL(path string) string { return s.cfg.PublicURL + path }

// ApprovalURL is the page on which a person decides.
func (s *Service) ApprovalURL(id render.ID) string {
	return s.publicURL("/v1/renders/" + string(id) + "/approval")
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// Structured is a result whose text block is the same JSON: hosts drop one or
// the other.
func Structured(v any, more ...mcp.Content) (*mcp.CallToolResult, error) {
	raw, err := encode(v)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return &mcp.CallToolResult{
		StructuredContent: raw,
		Content:           append([]mcp.Content{&mcp.TextContent{Text: string(raw)}}, more...),
	}, nil
}

// encode marshals without escaping HTML: nothing here is HTML.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err //nolint:wrapcheck // wrapped by callers
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// textOnly is a result for MCP 2025-03-26, which has neither structured content
// nor resource links. The text of an error is prose, so its envelope follows.
func textOnly(r *mcp.CallToolResult) *mcp.CallToolResult {
	out := &mcp.CallToolResult{IsError: r.IsError}
	for _, c := range r.Content {
		if _, ok := c.(*mcp.ResourceLink); !ok {
			out.Content = append(out.Content, c)
		}
	}
	if r.IsError {
		if raw, err := encode(r.StructuredContent); err == nil {
			out.Content = append(out.Content, &mcp.TextContent{Text: string(raw)})
		}
	}
	return out
}

// watches are the resource subscriptions that somebody holds.
type watches struct {
	mu     sync.Mutex
	wg     sync.WaitGroup
	ctx    context.Context //nolint:containedctx // the service's lifetime
	cancel context.CancelFunc
	live   map[watchKey]*watch
}

// Path of the endpoint below the public URL.
func (s *Service) Path() string { return s.dialect.Path }

// Endpoint is the URL of the MCP endpoint.
func (s *Service) Endpoint() string { return s.publicURL(s.dialect.Path) }

// Preview reads the watermark preview as a PNG of at most that many pixels'
// width and 1 MiB.
func (s *Service) Preview(ctx context.Context, tenant render.Tenant, id render.ID, width int) ([]byte, error) {
	return s.preview(ctx, tenant, id, width)
}
