package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// renewKeysEvery is how long keys are used before they are fetched again,
	// which is how long a key that its issuer withdrew still counts.
	renewKeysEvery = 5 * time.Minute
	// retryKeysAfter is the least time between two fetches of an issuer's keys
	// because a token's key is unknown, whatever tokens name, and after a fetch
	// that failed.
	retryKeysAfter = 10 * time.Second
	// fetchTimeout bounds finding and fetching the keys.
	fetchTimeout = 5 * time.Second
	// maxDocument bounds metadata and key sets.
	maxDocument = 1 << 20
	// maxKeys of a set that are looked at.
	maxKeys = 100
	// minRSABits of a key: RFC 7518 section 3.3.
	minRSABits = 2048
)

// keySet holds the keys of an issuer and fetches them when they are needed.
// Once known, keys go on if they cannot be fetched again.
type keySet struct {
	issuer Issuer
	client *http.Client
	now    func() time.Time
	log    *slog.Logger
	// turn is held by whoever fetches.
	turn chan struct{}

	mu      sync.Mutex
	current *keys
	tried   time.Time
	asked   time.Time // the last fetch because a key was unknown
	failed  error     // of the last fetch
	found   string
}

// keys are what one fetch brought. They do not change.
type keys struct {
	list    []jose.JSONWebKey
	fetched time.Time
}

func newKeySet(i Issuer, client *http.Client, now func() time.Time, log *slog.Logger) *keySet {
	return &keySet{issuer: i, client: client, now: now, log: log, turn: make(chan struct{}, 1)}
}

// match returns the keys that may have made a signature: those of its key id,
// or without one all of its kind.
func (k *keys) match(h jose.Header) []jose.JSONWebKey {
	if k == nil {
		return nil
	}
	var fit []jose.JSONWebKey
	for _, key := range k.list {
		if (h.KeyID == "" || key.KeyID == h.KeyID) && (key.Algorithm == "" || key.Algorithm == h.Algorithm) && suits(key.Key, h.Algorithm) {
			fit = append(fit, key)
		}
	}
	return fit
}

// suits reports whether a key is of the kind of an algorithm, so that a name
// alone never turns a public key into a shared secret.
func suits(key any, alg string) bool {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return (strings.HasPrefix(alg, "RS") || strings.HasPrefix(alg, "PS")) && k.N.BitLen() >= minRSABits
	case *ecdsa.PublicKey:
		return map[string]string{"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}[k.Curve.Params().Name] == alg
	case ed25519.PublicKey:
		return alg == string(jose.EdDSA)
	default:
		return false
	}
}

// snapshot returns the keys at hand, nil if there never were any. Whoever finds
// that they are old fetches them first; the others do not wait for that.
func (s *keySet) snapshot(ctx context.Context) *keys {
	s.mu.Lock()
	current, tried := s.current, s.tried
	s.mu.Unlock()
	now := s.now()
	if current == nil || now.Sub(current.fetched) < renewKeysEvery || now.Sub(tried) < retryKeysAfter {
		return current
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
		fresh, _ := s.renewLocked(ctx, current, false)
		return fresh
	default:
		return current
	}
}

// renew returns keys that are newer than old, if there may be any: fetches are
// rare, and those who want one at once share it. The error says why keys that
// there may be are not here.
func (s *keySet) renew(ctx context.Context, old *keys) (*keys, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return old, fmt.Errorf("wait for keys: %w", context.Cause(ctx))
	}
	defer func() { <-s.turn }()
	return s.renewLocked(ctx, old, true)
}

// renewLocked is renew by the holder of the turn, because a key was unknown or
// because it is time.
func (s *keySet) renewLocked(ctx context.Context, old *keys, unknown bool) (*keys, error) {
	s.mu.Lock()
	current, tried, asked, failed, found := s.current, s.tried, s.asked, s.failed, s.found
	s.mu.Unlock()
	now := s.now()
	switch {
	case current != old:
		return current, nil
	case failed != nil && now.Sub(tried) < retryKeysAfter:
		return current, failed
	case current != nil && unknown && now.Sub(asked) < retryKeysAfter:
		return current, nil
	case current != nil && unknown:
		asked = now
	}
	// A request that ends does not end the fetch, which is for all.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
	defer cancel()
	list, found, err := s.fetch(ctx, found)
	if err != nil {
		s.log.WarnContext(ctx, "keys of an issuer cannot be fetched", "issuer", s.issuer.URL, "have_keys", current != nil, "error", err)
	} else {
		current = &keys{list, now}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.tried, s.asked, s.failed, s.found = current, now, asked, err, found
	return current, err
}

// fetch finds and reads the keys. found is where they were the last time, for
// when the metadata cannot be read.
func (s *keySet) fetch(ctx context.Context, found string) (list []jose.JSONWebKey, at string, err error) {
	at = s.issuer.JWKS
	if at == "" {
		if at, err = s.discover(ctx); err != nil {
			if found == "" {
				return nil, "", err
			}
			at = found
		}
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := s.get(ctx, at, &set); err != nil {
		return nil, found, fmt.Errorf("fetch keys: %w", err)
	}
	for _, raw := range set.Keys[:min(len(set.Keys), maxKeys)] {
		var k jose.JSONWebKey
		// Keys of kinds unknown here are other programs' business.
		if err := json.Unmarshal(raw, &k); err == nil && k.Valid() && k.IsPublic() && (k.Use == "" || k.Use == "sig") {
			list = append(list, k)
		}
	}
	if len(list) == 0 {
		return nil, found, fmt.Errorf("fetch keys: %s holds no public key for signatures", at)
	}
	return list, at, nil
}

// discover reads where the keys are from the issuer's metadata.
func (s *keySet) discover(ctx context.Context) (string, error) {
	u, err := secureURL(s.issuer.URL)
	if err != nil {
		return "", err
	}
	var errs []error
	for _, at := range metadataURLs(u) {
		var meta struct {
			Issuer string `json:"issuer"`
			JWKS   string `json:"jwks_uri"`
		}
		err := s.get(ctx, at, &meta)
		if err == nil {
			if meta.Issuer != s.issuer.URL {
				// RFC 8414 section 3.3: it must not be used.
				err = fmt.Errorf("%s is the metadata of issuer %q", at, meta.Issuer)
			} else if _, err = secureURL(meta.JWKS); err == nil {
				return meta.JWKS, nil
			} else {
				err = fmt.Errorf("%s: jwks_uri %q: %w", at, meta.JWKS, err)
			}
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("discover issuer: %w", errors.Join(errs...))
}

// get reads a JSON document.
func (s *keySet) get(ctx context.Context, at string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return fmt.Errorf("get %s: %w", at, err)
	}
	req.Header.Set("Accept", "application/json")
	res, err := s.client.Do(req)
	if err != nil {
		return fmt.Errorf("get: %w", err) // names the URL
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxDocument+1))
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return fmt.Errorf("read %s: %w", at, err)
	}
	switch {
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("get %s: %s", at, res.Status)
	case len(b) > maxDocument:
		return fmt.Errorf("get %s: more than %d bytes", at, maxDocument)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("parse %s: %w", at, err)
	}
	return nil
}

// keyClient is the HTTP client for keys: it follows redirects only to where
// keys may come from.
func keyClient() *http.Client {
	return &http.Client{CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > 3 {
			return errors.New("more than three redirects")
		}
		if _, err := secureURL(r.URL.String()); err != nil {
			return fmt.Errorf("redirect: %w", err)
		}
		return nil
	}}
}
