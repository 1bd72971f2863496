package auth

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/vidforge/vidforge/pkg/apikey"
)

// wellKnown begins the paths of protected resources' metadata: RFC 9728
// section 3.
const wellKnown = "/.well-known/oauth-protected-resource"

// For is the authenticator of another MCP endpoint, such as "/mcp/video-render":
// tokens are issued for one endpoint's URL and good for no other.
func (a *Authenticator) For(endpoint string) *Authenticator {
	c := *a
	c.endpoint = endpoint
	return &c
}

// resource is the URL that tokens must have been issued for.
func (a *Authenticator) resource() string { return a.Public.String() + a.path() }

func (a *Authenticator) path() string {
	if a.endpoint == "" {
		return DefaultEndpoint
	}
	return a.endpoint
}

// metadataURL is where clients find the endpoint's metadata: between the host
// and the path of its URL.
func (a *Authenticator) metadataURL() string {
	return a.Public.Scheme + "://" + a.Public.Host + wellKnown + a.Public.EscapedPath() + a.path()
}

// RegisterMetadata serves the endpoint's metadata (RFC 9728), if there are
// issuers of tokens. It needs no credential.
func (a *Authenticator) RegisterMetadata(mux *http.ServeMux) error {
	if a.Tokens == nil {
		return nil
	}
	b, err := json.Marshal(oauthex.ProtectedResourceMetadata{
		Resource: a.resource(), AuthorizationServers: a.Tokens.Issuers(), ScopesSupported: apikey.Scopes(),
		BearerMethodsSupported: []string{"header"}, ResourceName: "vidforge",
	})
	if err != nil {
		return fmt.Errorf("encode resource metadata: %w", err)
	}
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "public, max-age=300")
		if _, err := w.Write(b); err != nil {
			return // the client left
		}
	})
	mux.Handle("GET "+wellKnown+a.path(), h)
	// As it is at the public URL, for a proxy that does not take its path away.
	if base := a.Public.EscapedPath(); base != "" && !strings.ContainsAny(base, "{}") {
		mux.Handle("GET "+wellKnown+base+a.path(), h)
	}
	return nil
}
