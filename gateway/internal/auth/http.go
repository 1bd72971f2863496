package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/vidforge/vidforge/pkg/render"
)

// Authenticator finds the principal of HTTP requests.
type Authenticator struct {
	// Keys holds the API keys. Nil: everybody is Local, which is only for
	// listeners on a loopback address.
	Keys *Keys
	// Fail answers a request that may not go on.
	Fail func(w http.ResponseWriter, r *http.Request, err error)
}

// Realm is what challenges name.
const realm = `realm="vidforge"`

// Middleware lets requests with a credential through, with the principal in
// the request of their context.
func (a *Authenticator) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, _ := RequestFrom(r.Context())
		req.Principal = Local()
		if a.Keys != nil {
			p, err := a.Keys.Authenticate(credential(r))
			if err != nil {
				a.challenge(w, r, err)
				return
			}
			req.Principal = p
		}
		next.ServeHTTP(w, r.WithContext(WithRequest(r.Context(), req)))
	})
}

// credential is the API key of a request. A browser that shows the approval
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
// as RFC 6750 section 3 does: without an error code.
func (a *Authenticator) challenge(w http.ResponseWriter, r *http.Request, err error) {
	c := "Bearer " + realm
	if render.CodeOf(err) == render.CodeCredentialInvalid {
		c += `, error="invalid_token", error_description="The API key is unknown, revoked or expired."`
	}
	w.Header().Add("WWW-Authenticate", c)
	if isApproval(r) {
		w.Header().Add("WWW-Authenticate", "Basic "+realm+`, charset="UTF-8"`)
	}
	a.Fail(w, r, err)
}

// Forbid answers 403 to a credential without the scope.
func (a *Authenticator) Forbid(w http.ResponseWriter, r *http.Request, err error, need []string) {
	w.Header().Add("WWW-Authenticate", fmt.Sprintf(`Bearer %s, error="insufficient_scope", scope=%q`, realm, strings.Join(need, " ")))
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

// Guard keeps browsers of other sites away: unsafe requests of another origin
// (by Sec-Fetch-Site or Origin), and requests to a loopback address under a
// name that is not this machine's, which is how DNS rebinding looks. public is
// the gateway's own URL.
func Guard(public *url.URL, next http.Handler) (http.Handler, error) {
	cross := http.NewCrossOriginProtection()
	origin := public.Scheme + "://" + public.Host
	if err := cross.AddTrustedOrigin(origin); err != nil {
		return nil, fmt.Errorf("trust the public URL's origin: %w", err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := errors.Join(cross.Check(r), checkHost(r, public), checkOrigin(r, origin)); err != nil {
			http.Error(w, "forbidden: "+err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	}), nil
}

var (
	errHost   = errors.New("the Host header does not name this server")
	errOrigin = errors.New("the Origin header names another site")
)

func checkHost(r *http.Request, public *url.URL) error {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || !IsLoopback(addr.String()) || IsLoopback(r.Host) || r.Host == public.Host {
		return nil
	}
	return errHost
}

// checkOrigin refuses a foreign Origin on any method: the MCP transport asks
// for it, and it also covers reads, which CrossOriginProtection lets pass.
func checkOrigin(r *http.Request, public string) error {
	o := r.Header.Get("Origin")
	if o == "" || o == public {
		return nil
	}
	if u, err := url.Parse(o); err == nil && u.Host != "" && u.Host == r.Host {
		return nil
	}
	return errOrigin
}

// IsLoopback reports whether a host or host:port is this machine's loopback.
func IsLoopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
