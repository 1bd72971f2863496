package auth

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/vidforge/vidforge/pkg/apikey"
	"github.com/vidforge/vidforge/pkg/render"
)

// DefaultEndpoint is the MCP endpoint whose tokens are also good for /v1.
const DefaultEndpoint = "/mcp"

// Authenticator finds the principal of HTTP requests.
type Authenticator struct {
	// Keys holds the API keys. Nil: there are none.
	Keys *Keys
	// Tokens verifies access tokens. Nil: none are taken; and if Keys is nil
	// too, everybody is Local, which is only for listeners on a loopback
	// address.
	Tokens *Tokens
	// Public is the URL at which clients reach the gateway, without a slash at
	// the end; tokens are issued for what is below it. Required with Tokens.
	Public *url.URL
	// SignIn signs people in to the pages. Nil: nobody can.
	SignIn *SignIn
	// Open reports whether a page may be used without signing in where no other
	// credential is asked for. Required with SignIn.
	Open func() bool
	// Fail answers a request that may not go on.
	Fail func(w http.ResponseWriter, r *http.Request, err error)

	endpoint string // "" is DefaultEndpoint
}

// Realm is what challenges name.
const realm = `realm="vidforge"`

// Middleware lets requests with a credential through, with the principal in
// the request of their context.
func (a *Authenticator) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, _ := RequestFrom(r.Context())
		if a.SignIn != nil && isApproval(r) && r.Header.Get("Authorization") == "" {
			if done := a.person(w, r, &req); done {
				return
			} else if req.SignedIn != "" {
				next.ServeHTTP(w, r.WithContext(WithRequest(r.Context(), req)))
				return
			}
		}
		p, err := a.authenticate(r)
		if err != nil {
			a.challenge(w, r, err)
			return
		}
		req.Principal = p
		next.ServeHTTP(w, r.WithContext(WithRequest(r.Context(), req)))
	})
}

// person finds who is signed in, and sends browsers of others to where they
// sign in; done is true once that was answered.
func (a *Authenticator) person(w http.ResponseWriter, r *http.Request, req *Request) (done bool) {
	who, session, ok := a.SignIn.Person(r)
	switch {
	case ok:
		req.Principal, req.SignedIn = who, session
		return false
	case !strings.Contains(r.Header.Get("Accept"), "text/html"), a.Keys == nil && a.Tokens == nil && a.Open():
		return false
	case r.Method == http.MethodPost:
		// A browser would not follow from a form to the provider.
		a.Fail(w, r, render.Errorf(render.CodeCredentialMissing, render.BlameCaller, "You are not signed in, or no longer; open the approval page again."))
		return true
	default:
		id := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/v1/renders/"), "/approval")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Referrer-Policy", "no-referrer")
		http.Redirect(w, r, a.SignIn.cfg.Public.Path+SignInPath+"?"+url.Values{"render": {id}}.Encode(), http.StatusSeeOther)
		return true
	}
}

func (a *Authenticator) authenticate(r *http.Request) (Principal, error) {
	if a.Keys == nil && a.Tokens == nil {
		return Local(), nil
	}
	secret := credential(r)
	switch _, isKey := apikey.ParseID(secret); {
	case len(r.Header.Values("Authorization")) > 1:
		return Principal{}, invalid("There is more than one Authorization header.")
	case a.Tokens == nil:
		return a.Keys.Authenticate(secret)
	case secret == "":
		what := "an access token"
		if a.Keys != nil {
			what += " or an API key"
		}
		return Principal{}, render.Errorf(render.CodeCredentialMissing, render.BlameCaller, "Send %s as Authorization: Bearer.", what)
	case a.Keys != nil && isKey:
		return a.Keys.Authenticate(secret)
	default:
		return a.Tokens.Verify(r.Context(), secret, a.resource())
	}
}

// credential is the token or API key of a request. A browser that shows the approval
// page can send it as the password of Basic; nowhere else is that taken, since
// browsers send it by themselves.
func credential(r *http.Request) string {
	scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch {
	case strings.EqualFold(scheme, "bearer"):
		return strings.TrimSpace(rest)
	case isApproval(r):
		_, password, _ := r.BasicAuth()
		return password
	default:
		return ""
	}
}

func isApproval(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/v1/renders/") && strings.HasSuffix(r.URL.Path, "/approval")
}

// challenge answers 401. A missing credential is told apart from a wrong one
// as RFC 6750 section 3 does: without an error code. That nobody can tell right
// now whether a credential is good is no challenge.
func (a *Authenticator) challenge(w http.ResponseWriter, r *http.Request, err error) {
	e := render.AsError(err)
	var params []string
	switch e.Code {
	case render.CodeCredentialMissing:
	case render.CodeCredentialInvalid:
		params = []string{`error="invalid_token"`, "error_description=" + quoted(e.Message)}
	default:
		a.Fail(w, r, err)
		return
	}
	if a.Tokens != nil {
		params = append(params, "scope="+quoted(strings.Join(apikey.Scopes(), " ")))
	}
	w.Header().Add("WWW-Authenticate", a.bearer(params))
	if isApproval(r) && a.Keys != nil {
		w.Header().Add("WWW-Authenticate", "Basic "+realm+`, charset="UTF-8"`)
	}
	a.Fail(w, r, err)
}

// bearer is a challenge; with tokens it says where to learn how to get one (RFC
// 9728 section 5.1).
func (a *Authenticator) bearer(params []string) string {
	params = append([]string{realm}, params...)
	if a.Tokens != nil {
		params = append(params, "resource_metadata="+quoted(a.metadataURL()))
	}
	return "Bearer " + strings.Join(params, ", ")
}

// quoted is a quoted-string of what RFC 6750 section 3 allows in one.
func quoted(s string) string {
	return `"` + strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '\''
		}
		return r
	}, s) + `"`
}

// Forbid answers 403 to a credential without the scope.
func (a *Authenticator) Forbid(w http.ResponseWriter, r *http.Request, err error, need []string) {
	w.Header().Add("WWW-Authenticate", a.bearer([]string{`error="insufficient_scope"`, "scope=" + quoted(strings.Join(need, " "))}))
	a.Fail(w, r, err)
}

// maxPeek bounds what ScopeGate reads of a body. Larger ones are judged by the
// handler.
const maxPeek = 1 << 20

// ScopeGate answers 403 to an MCP request whose credential lacks a scope. need
// tells the scopes of a method and, for tools/call, a tool; fail makes the
// error. It is a courtesy to clients that understand challenges: handlers check
// for themselves.
func (a *Authenticator) ScopeGate(need func(method, tool string) []string, fail func(need []string) error, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, _ := RequestFrom(r.Context())
		if r.Method != http.MethodPost || len(req.Scopes) == len(Local().Scopes) {
			next.ServeHTTP(w, r)
			return
		}
		head, err := io.ReadAll(io.LimitReader(r.Body, maxPeek))
		if err != nil {
			http.Error(w, "failed to read body", http.StatusBadRequest)
			return
		}
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(head), r.Body), r.Body}
		var m struct {
			Method string `json:"method"`
			Params struct {
				Name string `json:"name"`
			} `json:"params"`
		}
		if json.Unmarshal(head, &m) == nil {
			if scopes := need(m.Method, m.Params.Name); !req.HasAny(scopes...) {
				a.Forbid(w, r, fail(scopes), scopes)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
