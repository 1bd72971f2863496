package httpapi

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"net/http"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/pkg/render"
)

//go:embed signin.html
var signInHTML string

// signInPage fills the page.
type signInPage struct {
	// Form takes the console's code; without it the person is signed out.
	Form   bool
	Action string
	Render render.ID
	Error  string
}

// registerSignIn adds where people sign in and out.
func (a *API) registerSignIn(mux *http.ServeMux) {
	for pattern, handle := range map[string]func(w http.ResponseWriter, r *http.Request) error{
		"GET " + auth.SignInPath: a.signIn, "GET " + auth.CallbackPath: a.signedIn, "POST " + auth.SignOutPath: a.signOut,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := handle(w, r); err != nil {
				a.Fail(w, r, err)
			}
		})
	}
	if a.cfg.Auth.SignIn.ByCode() {
		mux.HandleFunc("POST "+auth.SignInPath, func(w http.ResponseWriter, r *http.Request) {
			if err := a.signInByCode(w, r); err != nil {
				a.Fail(w, r, err)
			}
		})
	}
}

// signIn sends the browser to the provider, or asks for the console's code.
// Whether there is such a render is nobody's business before that.
func (a *API) signIn(w http.ResponseWriter, r *http.Request) error {
	id, ok := render.ParseID(r.URL.Query().Get("render"))
	if !ok {
		return render.InvalidField("render", "", "Open the approval page of a render; it leads here.")
	}
	if a.cfg.Auth.SignIn.ByCode() {
		return a.showSignIn(w, http.StatusOK, signInPage{Form: true, Render: id})
	}
	at, err := a.cfg.Auth.SignIn.Begin(r.Context(), w, id)
	if err != nil {
		return fmt.Errorf("begin sign-in: %w", err)
	}
	a.leave(w, r, at)
	return nil
}

// signedIn takes the provider's answer and goes back to the page.
func (a *API) signedIn(w http.ResponseWriter, r *http.Request) error {
	id, err := a.cfg.Auth.SignIn.Finish(r.Context(), w, r)
	if err != nil {
		return fmt.Errorf("finish sign-in: %w", err)
	}
	a.leave(w, r, a.pageOf(id))
	return nil
}

func (a *API) signInByCode(w http.ResponseWriter, r *http.Request) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		return render.InvalidField("body", "", "The form cannot be read; open the page again.")
	}
	id, ok := render.ParseID(r.PostForm.Get("render"))
	if !ok {
		return render.InvalidField("render", "", "Open the approval page of a render; it leads here.")
	}
	if err := a.cfg.Auth.SignIn.SignInByCode(w, r.PostForm.Get("code")); err != nil {
		e := render.AsError(err)
		return a.showSignIn(w, render.Describe(e.Code).HTTPStatus, signInPage{Form: true, Render: id, Error: e.Message})
	}
	a.leave(w, r, a.pageOf(id))
	return nil
}

func (a *API) signOut(w http.ResponseWriter, _ *http.Request) error {
	a.cfg.Auth.SignIn.SignOut(w)
	return a.showSignIn(w, http.StatusOK, signInPage{})
}

func (a *API) showSignIn(w http.ResponseWriter, status int, p signInPage) error {
	p.Action = a.cfg.BasePath + auth.SignInPath
	t, err := template.New("sign-in").Parse(signInHTML)
	if err != nil {
		return fmt.Errorf("parse sign-in page: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, p); err != nil {
		return fmt.Errorf("fill sign-in page: %w", err)
	}
	a.html(w, status, b.Bytes())
	return nil
}

// pageOf is the path of a render's approval page.
func (a *API) pageOf(id render.ID) string {
	return a.cfg.BasePath + "/v1/renders/" + string(id) + "/approval"
}

// leave goes to another page.
func (a *API) leave(w http.ResponseWriter, r *http.Request, to string) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", referrerPolicy)
	http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // our own path, or the configured provider
}
