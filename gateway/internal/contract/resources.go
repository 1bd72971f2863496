package contract

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
)

// URIs of the static resources and of the templates.
const (
	uriCapabilities = "vidforge://capabilities"
	uriGuide        = "vidforge://guide"
	uriSchema       = "vidforge://schema/render"

	templateVideo   = "vidforge://videos/{render_id}/final.{ext}"
	templatePreview = "vidforge://renders/{render_id}/watermark-preview.png"
	templateLog     = "vidforge://renders/{render_id}/log"
	templateAsset   = "vidforge://assets/{asset_id}"
)

const (
	// maxInlineVideo is the largest video that resources/read sends as bytes.
	maxInlineVideo = 8 << 20
	// immutableTTL is the cache hint of what never changes while it exists.
	immutableTTL = time.Hour
)

// ResourceKind is what a resource below the templates is.
type ResourceKind string

// Kinds of resources.
const (
	KindVideo   ResourceKind = "video"
	KindPreview ResourceKind = "preview"
	KindLog     ResourceKind = "log"
	KindAsset   ResourceKind = "asset"
)

var (
	videoPattern  = regexp.MustCompile(`^vidforge://videos/([^/]+)/final\.([a-z0-9]+)$`)
	renderPattern = regexp.MustCompile(`^vidforge://renders/([^/]+)/(watermark-preview\.png|log)$`)
)

// Resource is a parsed resource URI.
type Resource struct {
	Kind  ResourceKind
	ID    render.ID      // of the render, unless it is an asset
	Asset render.AssetID // of an asset
	// Ext is the format that a video must have; "" is the one that it has.
	Ext string
}

// parseResource takes a URI apart. ok is false for everything that cannot be
// one of ours.
func parseResource(uri string) (r Resource, ok bool) {
	if asset, ok := render.ParseAssetURI(uri); ok {
		return Resource{Kind: KindAsset, Asset: asset}, true
	}
	if m := videoPattern.FindStringSubmatch(uri); m != nil {
		r.Kind, r.Ext = KindVideo, m[2]
		r.ID, ok = render.ParseID(m[1])
		return r, ok
	}
	if m := renderPattern.FindStringSubmatch(uri); m != nil {
		r.Kind = KindLog
		if m[2] != "log" {
			r.Kind = KindPreview
		}
		r.ID, ok = render.ParseID(m[1])
		return r, ok
	}
	return Resource{}, false
}

// staticResources are what is always there.
func staticResources() []StaticResource {
	user := &mcp.Annotations{Audience: []mcp.Role{"assistant"}, Priority: 0.5}
	doc := func(r *mcp.Resource, read func(Capabilities) (string, error)) StaticResource {
		return StaticResource{r, read}
	}
	return []StaticResource{
		doc(&mcp.Resource{URI: uriCapabilities, Name: "capabilities", Title: "What vidforge does", MIMEType: "application/json", Annotations: user,
			Description: "What the server does and does not do, its limits, tasks, approvals and every error code. The same as " + ToolCapabilities + " with detail full."},
			func(c Capabilities) (string, error) {
				raw, err := encode(c)
				return string(raw), err
			}),
		doc(&mcp.Resource{URI: uriGuide, Name: "guide", Title: "How to author a render", MIMEType: "text/markdown", Annotations: user,
			Description: "How to upload, choose format, resolution and watermark, decide on a preview, and fetch the video."},
			func(Capabilities) (string, error) { return guide, nil }),
		doc(&mcp.Resource{URI: uriSchema, Name: "render-schema", Title: "Schema of a render request", MIMEType: "application/schema+json", Annotations: user,
			Description: "The input schema of " + ToolRender + "."},
			func(Capabilities) (string, error) { return string(renderSchema()), nil }),
	}
}

func templates() []*mcp.ResourceTemplate {
	return []*mcp.ResourceTemplate{
		{URITemplate: templateVideo, Name: "video", Title: "Rendered video",
			Description: "The finished video. Up to 8 MiB come as bytes; a larger one as a text/uri-list entry with a download URL that expires."},
		{URITemplate: templatePreview, Name: "watermark-preview", Title: "Watermark preview", MIMEType: "image/png",
			Description: "A frame with the watermark as it will be drawn, up to 1 MiB. It exists once the render awaits approval."},
		{URITemplate: templateLog, Name: "log", Title: "Render log", MIMEType: "text/plain",
			Description: "The encoder's last lines of every stage. It changes while the render runs."},
		{URITemplate: templateAsset, Name: "asset", Title: "Uploaded asset", MIMEType: "application/json",
			Description: "What the farm knows of an asset, as " + ToolProbe + " tells it. The bytes are not served."},
	}
}

func (s *Service) addResources(srv *mcp.Server) {
	for _, r := range s.dialect.Resources {
		srv.AddResource(r.Resource, s.readStatic)
	}
	for _, t := range s.dialect.Templates {
		srv.AddResourceTemplate(t, s.readResource)
	}
}

func (s *Service) readStatic(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	r, ok := s.dialect.static(req.Params.URI)
	if !ok {
		return nil, resourceNotFound()
	}
	c, _ := mcptask.CallerFrom(ctx)
	text, err := r.Read(s.capabilities(c, true))
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", r.URI, err)
	}
	return s.contents(immutableTTL, &mcp.ResourceContents{URI: r.URI, MIMEType: r.MIMEType, Text: text}), nil
}

func (s *Service) contents(ttl time.Duration, c *mcp.ResourceContents) *mcp.ReadResourceResult {
	res := &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}
	res.TTLMs, res.CacheScope = int(ttl.Milliseconds()), "private"
	return res
}

func resourceNotFound() *render.Error {
	return render.Errorf(render.CodeResourceNotFound, render.BlameCaller, "No resource of yours has this URI.")
}

// readResource reads what a template names. Its errors carry the URI.
func (s *Service) readResource(ctx context.Context, req *mcp.ReadResourceRequest) (res *mcp.ReadResourceResult, err error) {
	c, _ := mcptask.CallerFrom(ctx)
	uri := req.Params.URI
	err = s.guarded(ctx, "resources/read", func() (err error) {
		res, err = s.read(ctx, c, uri)
		return err
	})
	if err != nil {
		return nil, s.resourceError(ctx, c, uri, err)
	}
	return res, nil
}

// resourceError is the JSON-RPC error of a resource: unknown and foreign ones
// get the same answer.
func (s *Service) resourceError(ctx context.Context, c mcptask.Caller, uri string, err error) error {
	r, _ := c.Principal.(auth.Request)
	e := render.AsError(err)
	switch e.Code {
	case render.CodeRenderNotFound, render.CodeSourceNotFound:
		e = resourceNotFound()
	case render.CodeAssetNotReady:
		e = render.Errorf(render.CodeResourceNotReady, render.BlameCaller, "%s", e.Message)
	}
	f := failure{}
	if p, ok := s.dialect.Parse(uri); ok && e.Code == render.CodeResourceNotReady {
		f.id = p.ID
	}
	env := s.envelopeFor(ctx, r.ID, e, f)
	env.ResourceURI = uri
	if other, ok := errors.AsType[*otherFormatError](err); ok {
		env.Repair = &NextStep{Step: "read_resource", ResourceURI: other.uri, Arguments: map[string]any{}}
	}
	return s.resourceCode(c, env.rpcError())
}

// otherFormatError says under which URI a video is there.
type otherFormatError struct{ uri string }

func (o *otherFormatError) Error() string { return "the video is " + o.uri }

func (s *Service) read(ctx context.Context, c mcptask.Caller, uri string) (*mcp.ReadResourceResult, error) {
	r, _ := c.Principal.(auth.Request)
	p, ok := s.dialect.Parse(uri)
	if !ok || r.Tenant == "" {
		return nil, resourceNotFound()
	}
	if !r.HasAny(requiredScopes(ToolStatus)...) {
		return nil, InsufficientScope(requiredScopes(ToolStatus), s.Endpoint())
	}
	switch p.Kind {
	case KindAsset:
		return s.readAsset(ctx, r.Tenant, p.Asset, uri)
	case KindLog:
		text, err := s.cfg.Farm.Log(ctx, r.Tenant, p.ID)
		if err != nil {
			return nil, err
		}
		return s.contents(0, &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: text}), nil
	case KindPreview:
		b, err := s.preview(ctx, r.Tenant, p.ID, maxPreviewPixels)
		if err != nil {
			return nil, err
		}
		return s.contents(immutableTTL, &mcp.ResourceContents{URI: uri, MIMEType: "image/png", Blob: b}), nil
	default:
		return s.readVideo(ctx, r.Tenant, p, uri)
	}
}

func (s *Service) readAsset(ctx context.Context, tenant render.Tenant, id render.AssetID, uri string) (*mcp.ReadResourceResult, error) {
	a, err := s.cfg.Farm.Asset(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	out, err := NewAsset(a)
	if err != nil {
		return nil, err
	}
	raw, err := encode(out)
	if err != nil {
		return nil, fmt.Errorf("encode asset: %w", err)
	}
	return s.contents(min(immutableTTL, max(0, a.Expires.Sub(s.cfg.Now()))), &mcp.ResourceContents{URI: uri, MIMEType: "application/json", Text: string(raw)}), nil
}

func (s *Service) readVideo(ctx context.Context, tenant render.Tenant, p Resource, uri string) (*mcp.ReadResourceResult, error) {
	v, err := s.cfg.Farm.Get(ctx, tenant, p.ID)
	if err != nil {
		return nil, err
	}
	if f := v.Record.Spec.Format; p.Ext != "" && p.Ext != string(f) {
		return nil, resourceNotFound().WithCause(&otherFormatError{p.ID.VideoURI(f)})
	}
	c, err := s.cfg.Farm.Video(ctx, tenant, p.ID)
	if err != nil {
		return nil, err
	}
	if c.Object.Size <= maxInlineVideo {
		b, err := readAll(ctx, c, maxInlineVideo)
		if err != nil {
			return nil, err
		}
		return s.contents(immutableTTL, &mcp.ResourceContents{URI: uri, MIMEType: c.MIMEType, Blob: b}), nil
	}
	link, until, err := s.downloadURL(ctx, v.Record)
	switch {
	case err != nil:
		return nil, err
	case link == "":
		return nil, render.Errorf(render.CodeUnavailable, render.BlameFarm, "No download URL that is safe to hand out can be made; use the HTTP API.")
	}
	// Half the URL's life, so that whoever reads from a cache can still use it.
	ttl := max(0, until.Sub(s.cfg.Now())/2)
	return s.contents(min(ttl, immutableTTL), &mcp.ResourceContents{URI: uri, MIMEType: "text/uri-list", Text: link + "\r\n"}), nil
}

// complete completes {ext} and the tenant's own asset ids, nothing else: to
// complete render ids would list handles.
func (s *Service) complete(ctx context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	c, _ := mcptask.CallerFrom(ctx)
	r, _ := c.Principal.(auth.Request)
	res := &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{}}}
	if r.Tenant == "" || req.Params.Ref == nil || req.Params.Ref.Type != "ref/resource" {
		return res, nil
	}
	arg := req.Params.Argument
	switch {
	case req.Params.Ref.URI == templateVideo && arg.Name == "ext":
		for _, ext := range s.extensions(ctx, r, req.Params.Context) {
			if strings.HasPrefix(ext, arg.Value) {
				res.Completion.Values = append(res.Completion.Values, ext)
			}
		}
	case req.Params.Ref.URI == templateAsset && arg.Name == "asset_id" && r.HasAny(requiredScopes(ToolProbe)...):
		page, next, err := s.assetIDs(ctx, r.Tenant, arg.Value)
		if err != nil {
			return nil, err
		}
		res.Completion.Values, res.Completion.HasMore = page, next
	}
	res.Completion.Total = len(res.Completion.Values)
	if res.Completion.HasMore {
		res.Completion.Total = 0 // unknown
	}
	return res, nil
}

// extensions are the formats of videos, or the one of the render that the
// context names.
func (s *Service) extensions(ctx context.Context, r auth.Request, given *mcp.CompleteContext) []string {
	if given != nil && r.HasAny(requiredScopes(ToolStatus)...) {
		if id, ok := render.ParseID(given.Arguments["render_id"]); ok {
			if v, err := s.cfg.Farm.Get(ctx, r.Tenant, id); err == nil {
				return []string{string(v.Record.Spec.Format)}
			}
		}
	}
	var all []string
	for _, f := range render.Formats() {
		all = append(all, string(f))
	}
	return all
}

// Bounds of a completion. The protocol allows 100 values.
const (
	maxCompletions  = 100
	completionPages = 5
)

func (s *Service) assetIDs(ctx context.Context, tenant render.Tenant, prefix string) (ids []string, more bool, err error) {
	ids = []string{}
	cursor := ""
	for range completionPages {
		page, next, err := s.cfg.Farm.Assets(ctx, tenant, cursor, maxCompletions)
		if err != nil {
			return nil, false, err
		}
		for _, a := range page {
			if strings.HasPrefix(string(a.ID), prefix) {
				ids = append(ids, string(a.ID))
			}
		}
		if len(ids) > maxCompletions {
			return ids[:maxCompletions], true, nil
		}
		if next == "" {
			return ids, false, nil
		}
		cursor = next
	}
	return ids, true, nil
}

// watchKey names what a subscription watches.
type watchKey struct {
	tenant render.Tenant
	uri    string
}

// watch is one watched resource and the sessions that want it. A session that
// subscribes twice does so once; it cannot give up what another has.
type watch struct {
	holders map[*mcp.ServerSession]bool
	cancel  context.CancelFunc
}

func (w *watches) init() {
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.live = map[watchKey]*watch{}
}

func (w *watches) close() {
	w.cancel()
	w.wg.Wait()
}

// subscribe begins to watch a preview, a video or a log of the caller. Other
// resources do not change; subscribing to them is accepted and stays silent.
func (s *Service) subscribe(ctx context.Context, req *mcp.SubscribeRequest) error { //nolint:contextcheck // the watch outlives the request
	c, _ := mcptask.CallerFrom(ctx)
	r, _ := c.Principal.(auth.Request)
	uri := req.Params.URI
	if _, ok := s.dialect.static(uri); ok {
		return nil
	}
	p, ok := s.dialect.Parse(uri)
	if !ok || r.Tenant == "" || !r.HasAny(requiredScopes(ToolStatus)...) {
		return s.resourceError(ctx, c, uri, resourceNotFound())
	}
	if p.Kind == KindAsset {
		if _, err := s.cfg.Farm.Asset(ctx, r.Tenant, p.Asset); err != nil {
			return s.resourceError(ctx, c, uri, err)
		}
		return nil
	}
	v, err := s.cfg.Farm.Get(ctx, r.Tenant, p.ID)
	if err != nil {
		return s.resourceError(ctx, c, uri, err)
	}
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	key := watchKey{r.Tenant, uri}
	if w := s.watches.live[key]; w != nil {
		w.holders[req.Session] = true
		return nil
	}
	if s.watches.ctx.Err() != nil {
		return s.resourceError(ctx, c, uri, render.Errorf(render.CodeUnavailable, render.BlameFarm, "The server is shutting down."))
	}
	wctx, cancel := context.WithCancel(s.watches.ctx)
	w := &watch{holders: map[*mcp.ServerSession]bool{req.Session: true}, cancel: cancel}
	s.watches.live[key] = w
	seen := resourceVersion(p.Kind, v)
	s.watches.wg.Go(func() {
		defer cancel()
		s.watchResource(wctx, key, p, seen)
		s.watches.mu.Lock()
		defer s.watches.mu.Unlock()
		if s.watches.live[key] == w {
			delete(s.watches.live, key)
		}
	})
	return nil
}

// unsubscribe gives up one subscription.
func (s *Service) unsubscribe(ctx context.Context, req *mcp.UnsubscribeRequest) error {
	c, _ := mcptask.CallerFrom(ctx)
	r, _ := c.Principal.(auth.Request)
	key := watchKey{r.Tenant, req.Params.URI}
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	if w := s.watches.live[key]; w != nil && w.holders[req.Session] {
		if delete(w.holders, req.Session); len(w.holders) == 0 {
			w.cancel()
			delete(s.watches.live, key)
		}
	}
	return nil
}

// watchResource announces a resource's changes until the render has ended or
// ctx has.
func (s *Service) watchResource(ctx context.Context, key watchKey, p Resource, seen string) {
	err := s.cfg.Farm.Watch(ctx, key.tenant, p.ID, func(v *farm.View) error {
		now := resourceVersion(p.Kind, v)
		if now == seen {
			return nil
		}
		seen = now
		if err := s.handler.ResourceUpdated(ctx, key.uri); err != nil {
			s.cfg.Logger.DebugContext(ctx, "announce resource", "error", err)
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		s.cfg.Logger.WarnContext(ctx, "watch resource", "render_id", p.ID, "error", err)
	}
}

// resourceVersion differs when what a read would give differs.
func resourceVersion(k ResourceKind, v *farm.View) string {
	rec := v.Record
	switch k {
	case KindPreview:
		return fmt.Sprint(rec.Preview != nil, rec.Preview == nil && rec.State.Terminal())
	case KindVideo:
		return fmt.Sprint(rec.Output != nil, rec.State.Terminal())
	default:
		return fmt.Sprint(rec.State, rec.Step, rec.Generation, v.Progress.LogTail)
	}
}
