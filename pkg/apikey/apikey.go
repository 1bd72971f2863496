// Package apikey mints API keys and keeps their hashes in a YAML file.
//
// A key is "vf_<id>_<secret>": the id is public and names the key in logs and
// in the file, the secret is 256 random bits. The file holds the SHA-256 of the
// whole key; a hash that cannot be guessed needs no salt and no slow function.
package apikey

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Scopes that a key may hold.
const (
	// ScopeRenderWrite submits, approves and cancels renders.
	ScopeRenderWrite = "render:write"
	// ScopeAssetRead looks at assets and validates requests.
	ScopeAssetRead = "asset:read"
	// ScopeAssetWrite uploads and deletes assets.
	ScopeAssetWrite = "asset:write"
)

// Scopes lists every scope.
func Scopes() []string { return []string{ScopeRenderWrite, ScopeAssetRead, ScopeAssetWrite} }

// ErrNoSuchKey is returned by Revoke for an id that the file does not hold.
var ErrNoSuchKey = errors.New("apikey: no such key")

// secretBytes is the length of the random part of a key: 256 bits.
const secretBytes = 32

var keyPattern = regexp.MustCompile(`^vf_([a-z2-7]{10})_[a-z2-7]{52}$`)

// Entry is what is kept of a key.
type Entry struct {
	// ID is the public part of the key.
	ID string `yaml:"id"`
	// Tenant owns what is made with the key.
	Tenant string `yaml:"tenant"`
	// Name says whose key it is, for logs and decisions.
	Name string `yaml:"name,omitempty"`
	// Scopes that the key holds; see Scopes.
	Scopes []string `yaml:"scopes"`
	// SHA256 of the whole key, in hex.
	SHA256 string `yaml:"sha256"`
	// Created is when the key was minted.
	Created time.Time `yaml:"created"`
	// Expires ends the key; zero never.
	Expires time.Time `yaml:"expires,omitempty"`
}

// Expired reports whether the key's time is over.
func (e Entry) Expired(now time.Time) bool { return !e.Expires.IsZero() && !now.Before(e.Expires) }

// Matches reports in constant time whether secret is this entry's key.
func (e Entry) Matches(secret string) bool {
	want, err := hex.DecodeString(e.SHA256)
	if err != nil {
		return false
	}
	got := sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(got[:], want) == 1
}

// New mints a key. The secret is shown once and stored nowhere; the entry goes
// into the file. No scopes means all of them.
func New(tenant, name string, scopes []string, now time.Time) (secret string, e Entry, err error) {
	if len(scopes) == 0 {
		scopes = Scopes()
	}
	var raw [secretBytes]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return "", Entry{}, fmt.Errorf("read random bytes: %w", err)
	}
	id := strings.ToLower(rand.Text())[:10]
	secret = "vf_" + id + "_" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw[:]))
	sum := sha256.Sum256([]byte(secret))
	e = Entry{
		ID: id, Tenant: tenant, Name: name, Scopes: slices.Clone(scopes),
		SHA256: hex.EncodeToString(sum[:]), Created: now.UTC().Truncate(time.Second),
	}
	if err := e.validate(); err != nil {
		return "", Entry{}, err
	}
	return secret, e, nil
}

// ParseID takes the public id out of a key. ok is false for anything that New
// cannot have minted.
func ParseID(secret string) (id string, ok bool) {
	m := keyPattern.FindStringSubmatch(secret)
	if m == nil {
		return "", false
	}
	return m[1], true
}

func (e Entry) validate() error {
	switch {
	case len(e.ID) != 10:
		return fmt.Errorf("apikey: id %q is not 10 characters", e.ID)
	case e.Tenant == "":
		return fmt.Errorf("apikey: key %s has no tenant", e.ID)
	case len(e.SHA256) != 2*sha256.Size:
		return fmt.Errorf("apikey: sha256 of key %s is not %d hex digits", e.ID, 2*sha256.Size)
	}
	if _, err := hex.DecodeString(e.SHA256); err != nil {
		return fmt.Errorf("apikey: sha256 of key %s: %w", e.ID, err)
	}
	for _, s := range e.Scopes {
		if !slices.Contains(Scopes(), s) {
			return fmt.Errorf("apikey: key %s has the unknown scope %q; scopes are %s", e.ID, s, strings.Join(Scopes(), ", "))
		}
	}
	return nil
}

// Limits are what a tenant may use, in place of the gateway's settings. A member
// that is absent leaves the setting as it is; 0 is no limit.
type Limits struct {
	// RequestRate is requests a second over time, RequestBurst how many at once.
	RequestRate  *float64 `yaml:"request_rate,omitempty"`
	RequestBurst *int     `yaml:"request_burst,omitempty"`
	// OpenRequests is how many requests and streams each credential may have
	// open at a gateway.
	OpenRequests *int `yaml:"open_requests,omitempty"`
	// MaxConcurrent renders that are not finished, at least 1.
	MaxConcurrent *int `yaml:"max_concurrent,omitempty"`
	// RenderMinutes of finished video in the gateway's window.
	RenderMinutes *int `yaml:"render_minutes,omitempty"`
	// StorageBytes of uploads that are kept at once.
	StorageBytes *int64 `yaml:"storage_bytes,omitempty"`
}

// Who may decide on a watermark preview.
const (
	// PolicyAgent lets agents decide too: by an elicitation, the tool or the page.
	PolicyAgent = "agent"
	// PolicyHuman leaves it to a person who signed in on the page.
	PolicyHuman = "human"
)

// Tenant is what one tenant has of its own.
type Tenant struct {
	Limits `yaml:",inline"`

	// ApprovalPolicy is PolicyAgent or PolicyHuman; empty: as the gateway's
	// setting says.
	ApprovalPolicy string `yaml:"approval_policy,omitempty"`
}

func (t Tenant) validate(name string) error {
	switch t.ApprovalPolicy {
	case "", PolicyAgent, PolicyHuman:
		return t.Limits.validate(name)
	default:
		return fmt.Errorf("apikey: approval_policy of tenant %s is neither %s nor %s", name, PolicyAgent, PolicyHuman)
	}
}

func (l Limits) validate(tenant string) error {
	for name, wrong := range map[string]bool{
		"request_rate": l.RequestRate != nil && !(*l.RequestRate >= 0), "request_burst": l.RequestBurst != nil && *l.RequestBurst < 0,
		"open_requests": l.OpenRequests != nil && *l.OpenRequests < 0, "render_minutes": l.RenderMinutes != nil && *l.RenderMinutes < 0,
		"max_concurrent": l.MaxConcurrent != nil && *l.MaxConcurrent < 1, "storage_bytes": l.StorageBytes != nil && *l.StorageBytes < 0,
	} {
		if wrong {
			return fmt.Errorf("apikey: %s of tenant %s must not be negative; 0 is no limit, except for max_concurrent", name, tenant)
		}
	}
	return nil
}

// File is the content of a keys file.
type File struct {
	Keys []Entry `yaml:"keys"`
	// Tenants holds those that have something of their own, by name.
	Tenants map[string]Tenant `yaml:"tenants,omitempty"`
}

// Parse reads a keys file. Unknown members, unknown scopes and repeated ids
// are errors.
func Parse(b []byte) (File, error) {
	var f File
	if len(bytes.TrimSpace(b)) == 0 {
		return f, nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&f); err != nil {
		return File{}, fmt.Errorf("parse keys file: %w", err)
	}
	seen := map[string]bool{}
	for _, e := range f.Keys {
		if err := e.validate(); err != nil {
			return File{}, err
		}
		if seen[e.ID] {
			return File{}, fmt.Errorf("apikey: id %s appears twice", e.ID)
		}
		seen[e.ID] = true
	}
	for name, t := range f.Tenants {
		if err := t.validate(name); err != nil {
			return File{}, err
		}
	}
	return f, nil
}

// Load reads a keys file. A file that does not exist holds no keys.
func Load(path string) (File, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, nil
	}
	if err != nil {
		return File{}, fmt.Errorf("read keys file: %w", err)
	}
	return Parse(b)
}

// Add appends an entry to a keys file, which it makes if there is none. Running
// gateways notice the change by themselves.
func Add(path string, e Entry) error {
	if err := e.validate(); err != nil {
		return err
	}
	f, err := Load(path)
	if err != nil {
		return err
	}
	f.Keys = append(f.Keys, e)
	return f.save(path)
}

// Revoke removes the key of that id from a keys file. ErrNoSuchKey if it is
// not there.
func Revoke(path, id string) error {
	f, err := Load(path)
	if err != nil {
		return err
	}
	kept := slices.DeleteFunc(slices.Clone(f.Keys), func(e Entry) bool { return e.ID == id })
	if len(kept) == len(f.Keys) {
		return fmt.Errorf("%w: %s", ErrNoSuchKey, id)
	}
	f.Keys = kept
	return f.save(path)
}

// save replaces the file in one step, so that a gateway never reads half of it.
func (f File) save(path string) (err error) {
	b, err := yaml.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode keys file: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".keys-*")
	if err != nil {
		return fmt.Errorf("write keys file: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	_, err = tmp.Write(b)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return fmt.Errorf("write keys file: %w", err)
	}
	if err = os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("replace keys file: %w", err)
	}
	return nil
}
