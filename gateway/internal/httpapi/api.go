// Package httpapi is the HTTP API below /v1: uploads, assets, and the bytes of
// renders. What it answers is described in openapi.json, which a test holds
// against the routes.
package httpapi

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/gateway/internal/contract"
	"github.com/vidforge/vidforge/pkg/apikey"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

//go:embed openapi.json
var openAPI []byte

// Farm is what the API needs of the farm's facade.
type Farm interface {
	Upload(ctx context.Context, tenant render.Tenant, u farm.Upload) (*render.Asset, error)
	PresignUpload(ctx context.Context, tenant render.Tenant, a farm.Announcement) (*farm.Presigned, error)
	FinalizeUpload(ctx context.Context, tenant render.Tenant, id render.AssetID, trace render.TraceContext) (a *render.Asset, first bool, err error)
	Asset(ctx context.Context, tenant render.Tenant, id render.AssetID) (*render.Asset, error)
	Assets(ctx context.Context, tenant render.Tenant, cursor string, limit int) (page []*render.Asset, next string, err error)
	DeleteAsset(ctx context.Context, tenant render.Tenant, id render.AssetID) error
	Get(ctx context.Context, tenant render.Tenant, id render.ID) (*farm.View, error)
	Decide(ctx context.Context, tenant render.Tenant, id render.ID, d render.Decision) (*farm.View, error)
	Video(ctx context.Context, tenant render.Tenant, id render.ID) (*farm.Content, error)
	Preview(ctx context.Context, tenant render.Tenant, id render.ID) (*farm.Content, error)
	Log(ctx context.Context, tenant render.Tenant, id render.ID) (string, error)
}

// Config of the API.
type Config struct {
	// Farm does the work. Required.
	Farm Farm
	// Contract makes statuses and error envelopes. Required.
	Contract *contract.Service
	// Auth answers requests without a credential or scope. Required.
	Auth *auth.Authenticator
	// Admit stands behind authentication. Nil lets everybody pass.
	Admit func(http.Handler) http.Handler
	// BasePath is the path of the URL at which clients reach the gateway, ""
	// or "/…" without a slash at the end: what is before it takes it away.
	BasePath string
	// Stall is how long an answer may stand still. Defaults to 60 s.
	Stall time.Duration
	// HumanApproval tells whether only a person who signed in decides on the
	// renders of a tenant. Nil: whoever may see the page does.
	HumanApproval func(render.Tenant) bool
	// CSRFKey signs the approval form, the same on every replica. Required.
	CSRFKey []byte
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// API serves /v1.
type API struct{ cfg Config }

// route is one operation. Any of the scopes is enough; none asks for none.
type route struct {
	method, path string
	scopes       []string
	handle       func(a *API, w http.ResponseWriter, r *http.Request) error
}

func routes() []route {
	read := []string{apikey.ScopeRenderWrite, apikey.ScopeAssetRead}
	return []route{
		{"POST", "/v1/assets", []string{apikey.ScopeAssetWrite}, (*API).upload},
		{"POST", "/v1/assets:presign", []string{apikey.ScopeAssetWrite}, (*API).presign},
		{"POST", "/v1/assets/{asset_id}" + finalizeVerb, []string{apikey.ScopeAssetWrite}, (*API).finalize},
		{"GET", "/v1/assets", []string{apikey.ScopeAssetRead}, (*API).listAssets},
		{"GET", "/v1/assets/{asset_id}", []string{apikey.ScopeAssetRead}, (*API).getAsset},
		{"DELETE", "/v1/assets/{asset_id}", []string{apikey.ScopeAssetWrite}, (*API).deleteAsset},
		{"GET", "/v1/renders/{render_id}", read, (*API).getRender},
		{"GET", "/v1/renders/{render_id}/video", read, (*API).video},
		{"GET", "/v1/renders/{render_id}/preview.png", read, (*API).preview},
		{"GET", "/v1/renders/{render_id}/log", read, (*API).log},
		{"GET", "/v1/renders/{render_id}/approval", read, (*API).approvalPage},
		{"POST", "/v1/renders/{render_id}/approval", []string{apikey.ScopeRenderWrite}, (*API).decide},
	}
}

// Register adds the API's routes to a mux. Requests need an auth.Request in
// their context.
func Register(mux *http.ServeMux, c Config) {
	if c.Stall == 0 {
		c.Stall = time.Minute
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Admit == nil {
		c.Admit = func(next http.Handler) http.Handler { return next }
	}
	if c.HumanApproval == nil {
		c.HumanApproval = func(render.Tenant) bool { return false }
	}
	a := &API{cfg: c}
	if c.Auth.SignIn != nil {
		a.registerSignIn(mux)
	}
	mux.HandleFunc("GET /v1/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		a.write(w, openAPI)
	})
	for _, rt := range routes() {
		// The mux's wildcards are whole segments: the handler takes the verb off.
		mux.Handle(rt.method+" "+strings.TrimSuffix(rt.path, finalizeVerb), c.Auth.Middleware(c.Admit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			req, _ := auth.RequestFrom(r.Context())
			if !req.HasAny(rt.scopes...) {
				c.Auth.Forbid(w, r, contract.InsufficientScope(rt.scopes, c.Contract.Endpoint()), rt.scopes)
				return
			}
			if err := rt.handle(a, w, r); err != nil {
				a.Fail(w, r, err)
			}
		}))))
	}
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		a.Fail(w, r, render.Errorf(render.CodeResourceNotFound, render.BlameCaller, "There is nothing at this path; see /v1/openapi.json."))
	})
}

// Fail answers with the error envelope and the status of its code.
func (a *API) Fail(w http.ResponseWriter, r *http.Request, err error) {
	Fail(a.cfg.Contract, w, r, err)
}

// Fail answers with the error envelope and the status of its code.
func Fail(s *contract.Service, w http.ResponseWriter, r *http.Request, err error) {
	env := s.Envelope(r.Context(), err, nil)
	e := render.AsError(err)
	h := w.Header()
	for _, k := range []string{"Content-Length", "Content-Disposition", "ETag", "Last-Modified", "Accept-Ranges"} {
		h.Del(k)
	}
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	if env.RetryAfterMS != nil {
		h.Set("Retry-After", strconv.FormatInt((*env.RetryAfterMS+999)/1000, 10))
	}
	status := render.Describe(e.Code).HTTPStatus
	if errors.Is(err, farm.ErrInUse) {
		status = http.StatusConflict
	}
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(env); err != nil && r.Context().Err() == nil {
		slog.Default().DebugContext(r.Context(), "write error", "error", err)
	}
}

func (a *API) write(w http.ResponseWriter, b []byte) {
	if _, err := w.Write(b); err != nil { //nolint:gosec // JSON, plain text or an escaped page
		a.cfg.Logger.Debug("write answer", "error", err)
	}
}

// json answers with a JSON body that nobody may keep.
func (a *API) json(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	a.write(w, b)
	return nil
}

// renderOf is the render that the path names. A malformed id is an unknown one.
func renderOf(r *http.Request) (auth.Request, render.ID, error) {
	req, _ := auth.RequestFrom(r.Context())
	id, ok := render.ParseID(r.PathValue("render_id"))
	if !ok {
		return req, "", contract.RenderNotFound()
	}
	return req, id, nil
}

func (a *API) getRender(w http.ResponseWriter, r *http.Request) error {
	req, id, err := renderOf(r)
	if err != nil {
		return err
	}
	v, err := a.cfg.Farm.Get(r.Context(), req.Tenant, id)
	if err != nil {
		return fmt.Errorf("get render: %w", err)
	}
	return a.json(w, http.StatusOK, a.cfg.Contract.Status(r.Context(), v))
}

func (a *API) log(w http.ResponseWriter, r *http.Request) error {
	req, id, err := renderOf(r)
	if err != nil {
		return err
	}
	text, err := a.cfg.Farm.Log(r.Context(), req.Tenant, id)
	if err != nil {
		return fmt.Errorf("get log: %w", err)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	a.write(w, []byte(text))
	return nil
}

func (a *API) video(w http.ResponseWriter, r *http.Request) error {
	return a.content(w, r, a.cfg.Farm.Video, "attachment")
}

func (a *API) preview(w http.ResponseWriter, r *http.Request) error {
	return a.content(w, r, a.cfg.Farm.Preview, "inline")
}

func (a *API) content(w http.ResponseWriter, r *http.Request, find func(context.Context, render.Tenant, render.ID) (*farm.Content, error), disposition string) error {
	req, id, err := renderOf(r)
	if err != nil {
		return err
	}
	c, err := find(r.Context(), req.Tenant, id)
	if err != nil {
		return fmt.Errorf("find content: %w", err)
	}
	return a.serve(w, r, c, disposition)
}

// asset is an asset as the probe tool shows it, and how far it is: until it is
// ready nothing is known but what the upload told.
type asset struct {
	contract.Asset
	State render.AssetState `json:"state"`
}

type pendingAsset struct {
	AssetURI  string            `json:"asset_uri"`
	Name      string            `json:"name"`
	MIMEType  string            `json:"mime_type"`
	SizeBytes int64             `json:"size_bytes"`
	SHA256    string            `json:"sha256,omitempty"`
	State     render.AssetState `json:"state"`
	ExpiresAt string            `json:"expires_at"`
}

func showAsset(rec *render.Asset) any {
	if v, err := contract.NewAsset(rec); err == nil {
		return asset{v, rec.State}
	}
	return pendingAsset{rec.ID.URI(), rec.Name, rec.MIMEType, rec.Object.Size, rec.Object.SHA256, rec.State, rec.Expires.UTC().Format(time.RFC3339)}
}

func (a *API) upload(w http.ResponseWriter, r *http.Request) error {
	req, _ := auth.RequestFrom(r.Context())
	sum := strings.ToLower(r.Header.Get("X-Content-Sha256"))
	if sum != "" && !isSHA256(sum) {
		return render.InvalidField("X-Content-Sha256", "", "X-Content-Sha256 must be 64 hexadecimal digits.")
	}
	rec, err := a.cfg.Farm.Upload(r.Context(), req.Tenant, farm.Upload{
		Name: r.URL.Query().Get("name"), MIMEType: mimeType(r), Size: r.ContentLength, SHA256: sum,
		Body: r.Body, Trace: telemetry.TraceOf(r.Context()),
	})
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	w.Header().Set("Location", a.cfg.BasePath+"/v1/assets/"+string(rec.ID))
	return a.json(w, http.StatusCreated, showAsset(rec))
}

func assetOf(r *http.Request) (auth.Request, render.AssetID, error) {
	req, _ := auth.RequestFrom(r.Context())
	s := r.PathValue("asset_id")
	id, ok := render.ParseAssetID(s)
	if !ok {
		return req, "", render.SourceNotFound("asset_id", "vidforge://assets/"+s)
	}
	return req, id, nil
}

func (a *API) getAsset(w http.ResponseWriter, r *http.Request) error {
	req, id, err := assetOf(r)
	if err != nil {
		return err
	}
	rec, err := a.cfg.Farm.Asset(r.Context(), req.Tenant, id)
	switch {
	case render.CodeOf(err) == render.CodeSourceNotFound:
		return render.SourceNotFound("asset_id", id.URI())
	case err != nil:
		return fmt.Errorf("get asset: %w", err)
	}
	return a.json(w, http.StatusOK, showAsset(rec))
}

func (a *API) deleteAsset(w http.ResponseWriter, r *http.Request) error {
	req, id, err := assetOf(r)
	if err != nil {
		return err
	}
	if err := a.cfg.Farm.DeleteAsset(r.Context(), req.Tenant, id); err != nil {
		return fmt.Errorf("delete asset: %w", err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// Page sizes of GET /v1/assets.
const (
	defaultPage = 50
	maxPage     = farm.MaxAssetPage
)

func (a *API) listAssets(w http.ResponseWriter, r *http.Request) error {
	req, _ := auth.RequestFrom(r.Context())
	q := r.URL.Query()
	limit := defaultPage
	if s := q.Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > maxPage {
			return render.InvalidField("limit", "", fmt.Sprintf("limit must be a number from 1 to %d.", maxPage))
		}
		limit = n
	}
	page, next, err := a.cfg.Farm.Assets(r.Context(), req.Tenant, q.Get("cursor"), limit)
	if err != nil {
		return fmt.Errorf("list assets: %w", err)
	}
	out := struct {
		Assets     []any  `json:"assets"`
		NextCursor string `json:"next_cursor,omitempty"`
	}{[]any{}, next}
	for _, rec := range page {
		out.Assets = append(out.Assets, showAsset(rec))
	}
	return a.json(w, http.StatusOK, out)
}
