package auth

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Issuer is an authorization server whose access tokens are taken.
type Issuer struct {
	// URL is the issuer identifier, compared with the claim iss as it is.
	URL string
	// JWKS is where its keys are. Empty: its metadata says.
	JWKS string
}

// ParseIssuers reads a list of issuers with commas or blanks between them, each
// as "https://issuer" or "https://issuer=https://where/its/keys/are".
func ParseIssuers(list string) ([]Issuer, error) {
	var issuers []Issuer
	seen := map[string]bool{}
	for _, item := range SplitList(list) {
		// An issuer identifier has no query (RFC 8414 section 2), so the first
		// "=" ends it.
		var i Issuer
		i.URL, i.JWKS, _ = strings.Cut(item, "=")
		u, err := secureURL(i.URL)
		switch {
		case err != nil:
			return nil, fmt.Errorf("issuer %q: %w", i.URL, err)
		case u.RawQuery != "" || u.ForceQuery || strings.Contains(i.URL, "#"):
			return nil, fmt.Errorf("issuer %q must have neither query nor fragment", i.URL)
		case seen[i.URL]:
			return nil, fmt.Errorf("issuer %q is named twice", i.URL)
		case i.JWKS == "" && strings.HasSuffix(item, "="):
			return nil, fmt.Errorf("issuer %q: there is no URL of its keys after =", i.URL)
		}
		if i.JWKS != "" {
			if _, err := secureURL(i.JWKS); err != nil {
				return nil, fmt.Errorf("keys of issuer %q: %w", i.URL, err)
			}
		}
		seen[i.URL] = true
		issuers = append(issuers, i)
	}
	return issuers, nil
}

// SplitList takes a setting apart that holds several values with commas or blanks
// between them.
func SplitList(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' })
}

var errInsecureURL = errors.New("must be https://host/…, or http:// on a loopback address")

// secureURL parses a URL that keys may come from: whoever can change what is
// read there can make tokens.
func secureURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && (u.Scheme != "http" || !IsLoopback(u.Host)) {
		return nil, errInsecureURL
	}
	return u, nil
}

// metadataURLs are the places of an issuer's metadata in the order of
// https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization#authorization-server-metadata-discovery:
// RFC 8414, then OpenID Connect Discovery with the path inserted and appended.
func metadataURLs(issuer *url.URL) []string {
	path := strings.TrimRight(issuer.EscapedPath(), "/")
	root := issuer.Scheme + "://" + issuer.Host
	urls := []string{root + "/.well-known/oauth-authorization-server" + path, root + "/.well-known/openid-configuration" + path}
	if path != "" {
		urls = append(urls, root+path+"/.well-known/openid-configuration")
	}
	return urls
}
