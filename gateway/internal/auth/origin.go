package auth

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/rs/cors"
)

// ParseOrigins reads a list of origins with commas or blanks between them, each
// as a browser writes it: https://app.example.org.
func ParseOrigins(list string) ([]string, error) {
	origins := SplitList(list)
	for _, o := range origins {
		u, err := url.Parse(o)
		if err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != o || strings.Contains(o, "*") || strings.ToLower(o) != o {
			return nil, fmt.Errorf("origin %q must be scheme://host or scheme://host:port in lower case; there are no wildcards", o)
		}
	}
	return origins, nil
}

// Guard keeps browsers of other sites away: requests of another origin (by
// Sec-Fetch-Site or Origin), and requests to a loopback address under a name
// that is not this machine's, which is how DNS rebinding looks. public is the
// gateway's own URL. Pages of the allowed origins may use MCP and the API, with
// a credential that they send themselves, but not the pages for people, where a
// browser sends one by itself. What is public is for all origins.
func Guard(public *url.URL, allowed []string, next http.Handler) (http.Handler, error) {
	own := public.Scheme + "://" + public.Host
	strict, err := sameSite(own)
	if err != nil {
		return nil, fmt.Errorf("trust the public URL's origin: %w", err)
	}
	open, err := sameSite(append([]string{own}, allowed...)...)
	if err != nil {
		return nil, fmt.Errorf("trust allowed origins: %w", err)
	}
	shared := sharing(func(o string) bool { return slices.Contains(allowed, o) }, next, http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete)
	everybody := sharing(func(string) bool { return true }, next, http.MethodGet, http.MethodHead)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, check := next, strict
		switch {
		case strings.HasPrefix(r.URL.Path, "/.well-known/"):
			h, check = everybody, func(*http.Request) error { return nil }
		case forPrograms(r):
			h, check = shared, open
		}
		if ownForm(r) {
			check = func(*http.Request) error { return nil }
		}
		if err := errors.Join(check(r), checkHost(r, public)); err != nil {
			http.Error(w, "forbidden: "+err.Error(), http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	}), nil
}

// ownForm reports a form of our pages. They ask for no-referrer, so browsers send
// it with "Origin: null" (https://fetch.spec.whatwg.org/#append-a-request-origin-header);
// Sec-Fetch-Site, which no page can set, says where it comes from. Browsers leave
// that away for http, where nobody is signed in by a cookie: what counts there is
// the form's token.
func ownForm(r *http.Request) bool {
	if r.Method != http.MethodPost || r.Header.Get("Origin") != "null" || !isApproval(r) && r.URL.Path != SignInPath && r.URL.Path != SignOutPath {
		return false
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin":
		return true
	case "":
		return r.Header.Get("Cookie") == ""
	default:
		return false
	}
}

// forPrograms reports whether a request is for what programs use, and only
// they.
func forPrograms(r *http.Request) bool {
	p := r.URL.Path
	return p == "/mcp" || strings.HasPrefix(p, "/mcp/") || strings.HasPrefix(p, "/v1/") && !isApproval(r)
}

// sameSite returns a check that refuses all origins but these and the one that
// the request itself goes to.
func sameSite(origins ...string) (func(*http.Request) error, error) {
	cross := http.NewCrossOriginProtection()
	for _, o := range origins {
		if err := cross.AddTrustedOrigin(o); err != nil {
			return nil, fmt.Errorf("origin %s: %w", o, err)
		}
	}
	return func(r *http.Request) error { return errors.Join(cross.Check(r), checkOrigin(r, origins)) }, nil
}

// sharing tells browsers that pages of these origins may send requests of these
// methods and read answers. No credential is sent by browsers themselves.
func sharing(allowed func(origin string) bool, next http.Handler, methods ...string) http.Handler {
	return cors.New(cors.Options{
		AllowOriginFunc: allowed,
		AllowedMethods:  methods,
		// Mcp-Param-… are named by tools; trace headers by whoever traces.
		AllowedHeaders: []string{"*"},
		ExposedHeaders: []string{
			"Mcp-Session-Id", "Mcp-Protocol-Version", "WWW-Authenticate", "Retry-After", "X-Request-Id",
			"Location", "ETag", "Accept-Ranges", "Content-Range", "Content-Disposition",
		},
		MaxAge:              600,
		AllowPrivateNetwork: true,
	}).Handler(next)
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
func checkOrigin(r *http.Request, trusted []string) error {
	o := r.Header.Get("Origin")
	if o == "" || slices.Contains(trusted, o) {
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
