package httpapi

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/gateway/internal/contract"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

//go:embed approval.html
var approvalHTML string

// approvalTemplate parses the page. It is parsed at each use: the page is
// opened by people, a few times a day.
func approvalTemplate() (*template.Template, error) {
	t, err := template.New("approval").Parse(approvalHTML)
	if err != nil {
		return nil, fmt.Errorf("parse approval page: %w", err)
	}
	return t, nil
}

const (
	// maxForm bounds the posted form: a note of 500 characters, escaped.
	maxForm = 16 << 10
	// csrfLife is how long a form may be sent after it was shown. An open
	// preview waits for half an hour.
	csrfLife = time.Hour
	// maxPagePreview is the widest preview on the page.
	maxPagePreview = 1920
	// referrerPolicy keeps the page's address, which holds a handle, from
	// everybody. Browsers then post the form with "Origin: null": see auth.Guard.
	referrerPolicy = "no-referrer"
)

// pageData fills the page.
type pageData struct {
	ID        render.ID
	State     render.State
	Pending   bool
	Preview   template.URL
	Position  render.Position
	Opacity   float64
	Text      string
	Format    render.Format
	Size      render.Resolution
	Source    string
	Deadline  string
	Token     string
	Decision  *render.Decision
	DecidedAt string
	Error     string
	Reload    bool
	// MayDecide is false where only a person who signed in does.
	MayDecide bool
	Person    string // who is signed in
	SignIn    string // path of the sign-in, if there is one
	SignOut   string
}

// approvalPage shows the preview and, while the render waits, the two buttons.
// It decides nothing.
func (a *API) approvalPage(w http.ResponseWriter, r *http.Request) error {
	req, id, err := renderOf(r)
	if err != nil {
		return err
	}
	v, err := a.cfg.Farm.Get(r.Context(), req.Tenant, id)
	if err != nil {
		return fmt.Errorf("get render: %w", err)
	}
	return a.showPage(w, r, http.StatusOK, v, "")
}

func (a *API) showPage(w http.ResponseWriter, r *http.Request, status int, v *farm.View, problem string) error {
	req, _ := auth.RequestFrom(r.Context())
	rec := v.Record
	d := pageData{
		ID: rec.ID, State: rec.State, Pending: rec.State == render.StateAwaitingApproval, Format: rec.Spec.Format, Size: rec.Spec.Resolution,
		Source: rec.Source.Name, Decision: rec.Decision, Error: problem, Reload: rec.State == render.StateQueued || rec.State == render.StateRendering,
	}
	if wm := rec.Spec.Watermark; wm != nil {
		d.Position, d.Opacity, d.Text = wm.Position, wm.Opacity, wm.Text
	}
	if rec.Decision != nil {
		d.DecidedAt = rec.Decision.At.UTC().Format(time.RFC1123)
	}
	if rec.Preview != nil {
		d.Deadline = rec.Preview.Deadline.UTC().Format(time.RFC1123)
		// Inside the page, so that the browser needs no second credential.
		d.Preview = a.inlinePreview(r, req.Tenant, rec.ID)
	}
	d.MayDecide = a.mayDecide(req)
	if a.cfg.Auth.SignIn != nil {
		d.SignIn, d.SignOut = a.cfg.BasePath+auth.SignInPath+"?render="+string(rec.ID), a.cfg.BasePath+auth.SignOutPath
	}
	if req.SignedIn != "" {
		d.Person = req.Subject
	}
	if d.Pending && d.MayDecide {
		d.Token = a.token(req, rec.ID, a.cfg.Now())
	}
	t, err := approvalTemplate()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, d); err != nil {
		return fmt.Errorf("fill approval page: %w", err)
	}
	a.html(w, status, b.Bytes())
	return nil
}

// html answers with a page that nobody may keep or frame.
func (a *API) html(w http.ResponseWriter, status int, page []byte) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", referrerPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Content-Security-Policy", "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	w.WriteHeader(status)
	a.write(w, page)
}

// mayDecide reports whether the page takes a decision of whoever sends this.
func (a *API) mayDecide(req auth.Request) bool {
	return req.SignedIn != "" || !a.cfg.HumanApproval(req.Tenant)
}

func (a *API) inlinePreview(r *http.Request, tenant render.Tenant, id render.ID) template.URL {
	b, err := a.cfg.Contract.Preview(r.Context(), tenant, id, maxPagePreview)
	if err != nil {
		a.cfg.Logger.WarnContext(r.Context(), "no preview on the approval page", "render_id", id, "error", err)
		return ""
	}
	return template.URL("data:image/png;base64," + base64.StdEncoding.EncodeToString(b)) //nolint:gosec // our own bytes, in base64
}

// decide takes the posted form.
func (a *API) decide(w http.ResponseWriter, r *http.Request) error {
	req, id, err := renderOf(r)
	if err != nil {
		return err
	}
	if !a.mayDecide(req) {
		if _, err := a.cfg.Farm.Get(r.Context(), req.Tenant, id); err != nil {
			return fmt.Errorf("get render: %w", err)
		}
		return render.Errorf(render.CodeApprovalRequiresHuman, render.BlameCaller, "Only a person who is signed in on the approval page decides on this render.")
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		return render.InvalidField("body", "", "The form cannot be read; open the page again.")
	}
	form := r.PostForm
	if !a.validToken(req, id, form.Get("csrf_token")) {
		return render.InvalidField("csrf_token", "", "The form is too old or was not made by this page; open the page again.")
	}
	approved := false
	switch form.Get("decision") {
	case "approve":
		approved = true
	case "reject":
	default:
		return render.InvalidField("decision", "", "decision must be approve or reject.")
	}
	note := strings.ReplaceAll(form.Get("note"), "\r\n", "\n")
	if err := contract.CheckNote("note", note); err != nil {
		return fmt.Errorf("check note: %w", err)
	}
	_, err = a.cfg.Farm.Decide(r.Context(), req.Tenant, id, render.Decision{Approved: approved, Note: note, By: req.Subject, Channel: render.ChannelPage})
	if code := render.CodeOf(err); code == render.CodeApprovalAlreadyRecorded || code == render.CodeApprovalNotPending {
		v, getErr := a.cfg.Farm.Get(r.Context(), req.Tenant, id)
		if getErr != nil {
			return fmt.Errorf("get render: %w", getErr)
		}
		return a.showPage(w, r, render.Describe(code).HTTPStatus, v, render.AsError(err).Message)
	}
	if err != nil {
		return fmt.Errorf("decide: %w", err)
	}
	w.Header().Set("Referrer-Policy", referrerPolicy)
	http.Redirect(w, r, a.pageOf(id), http.StatusSeeOther) //nolint:gosec // an id that was parsed, below our own path
	return nil
}

// token binds a form to the render, the person, the sign-in and the hour. Another site can
// neither read nor make one.
func (a *API) token(req auth.Request, id render.ID, now time.Time) string {
	until := strconv.FormatInt(now.Add(csrfLife).Unix(), 10)
	return until + "." + a.sign(req, id, until)
}

func (a *API) sign(req auth.Request, id render.ID, until string) string {
	mac := hmac.New(sha256.New, a.cfg.CSRFKey)
	for _, part := range []string{string(id), req.Tenant.Key(), req.Subject, req.SignedIn, until} {
		// hash.Hash never fails; the lengths keep the parts apart.
		_, _ = io.WriteString(mac, strconv.Itoa(len(part))+":"+part)
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func (a *API) validToken(req auth.Request, id render.ID, token string) bool {
	until, mac, ok := strings.Cut(token, ".")
	unix, err := strconv.ParseInt(until, 10, 64)
	return ok && err == nil && a.cfg.Now().Unix() <= unix && hmac.Equal([]byte(mac), []byte(a.sign(req, id, until)))
}
