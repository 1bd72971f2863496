package auth

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/vidforge/vidforge/pkg/apikey"
	"github.com/vidforge/vidforge/pkg/render"
)

// keySubject begins the subjects of API keys.
const keySubject = "key:"

// checkEvery bounds how often the keys file is looked at.
const checkEvery = time.Second

// Keys are the API keys of a file, read again when the file changes.
type Keys struct {
	path string
	log  *slog.Logger
	now  func() time.Time
	// accept refuses files that this gateway cannot honour.
	accept func(apikey.File) error

	mu      sync.Mutex
	checked time.Time
	version fileVersion
	byID    map[string]apikey.Entry
	tenants map[string]apikey.Tenant
}

// fileVersion tells that a file changed. Keys files are replaced, never
// written in place, so size and time are enough beside the inode's change.
type fileVersion struct {
	modified time.Time
	size     int64
}

// OpenKeys reads a keys file. A file that is missing, wrong or not accepted is an
// error now, and only logged later, when what was read stays in force.
func OpenKeys(path string, accept func(apikey.File) error, now func() time.Time, log *slog.Logger) (*Keys, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("keys file: %w", err)
	}
	k := &Keys{path: path, log: log, now: now, accept: accept}
	if err := k.reload(); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *Keys) reload() error {
	info, err := os.Stat(k.path)
	if err != nil {
		return fmt.Errorf("keys file: %w", err)
	}
	v := fileVersion{info.ModTime(), info.Size()}
	if v == k.version && k.byID != nil {
		return nil
	}
	f, err := apikey.Load(k.path)
	if err != nil {
		return fmt.Errorf("load %s: %w", k.path, err)
	}
	if err := k.accept(f); err != nil {
		return fmt.Errorf("%s: %w", k.path, err)
	}
	byID := make(map[string]apikey.Entry, len(f.Keys))
	for _, e := range f.Keys {
		byID[e.ID] = e
	}
	k.version, k.byID, k.tenants = v, byID, f.Tenants
	return nil
}

func (k *Keys) entry(id string) (apikey.Entry, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refreshLocked()
	e, ok := k.byID[id]
	return e, ok
}

// Limits are the tenant's own, if the file has any.
func (k *Keys) Limits(tenant render.Tenant) apikey.Limits {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refreshLocked()
	return k.tenants[string(tenant)].Limits
}

// ApprovalPolicy is the tenant's own, "" if the file has none.
func (k *Keys) ApprovalPolicy(tenant render.Tenant) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refreshLocked()
	return k.tenants[string(tenant)].ApprovalPolicy
}

func (k *Keys) refreshLocked() {
	now := k.now()
	if now.Sub(k.checked) < checkEvery {
		return
	}
	k.checked = now
	if err := k.reload(); err != nil {
		k.log.Error("keys file cannot be read again; the keys stay as they were", "error", err)
	}
}

// Authenticate finds the principal of a key. Unknown, revoked and expired keys
// get the same credential_invalid.
func (k *Keys) Authenticate(secret string) (Principal, error) {
	if secret == "" {
		return Principal{}, render.Errorf(render.CodeCredentialMissing, render.BlameCaller, "Send an API key as Authorization: Bearer.")
	}
	id, ok := apikey.ParseID(secret)
	if ok {
		var e apikey.Entry
		if e, ok = k.entry(id); ok && e.Matches(secret) && !e.Expired(k.now()) {
			return Principal{Tenant: render.Tenant(e.Tenant), Subject: keySubject + e.ID, Scopes: e.Scopes}, nil
		}
	}
	return Principal{}, render.Errorf(render.CodeCredentialInvalid, render.BlameCaller, "The API key is unknown, revoked or expired.")
}
