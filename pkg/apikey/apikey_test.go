package apikey

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

func mint(t *testing.T, scopes ...string) (string, Entry) {
	t.Helper()
	secret, e, err := New("acme", "ci", scopes, now)
	if err != nil {
		t.Fatal(err)
	}
	return secret, e
}

func TestKeyMatchesOnlyItself(t *testing.T) {
	t.Parallel()
	secret, e := mint(t)
	other, _ := mint(t)
	if !e.Matches(secret) || e.Matches(other) || e.Matches("") {
		t.Fatalf("matches: own %t, other %t, empty %t", e.Matches(secret), e.Matches(other), e.Matches(""))
	}
	if id, ok := ParseID(secret); !ok || id != e.ID {
		t.Fatalf("ParseID(%q) = %q, %t; want %q", secret, id, ok, e.ID)
	}
	if strings.Contains(e.SHA256, secret) || len(e.Scopes) != 3 {
		t.Fatalf("entry %+v", e)
	}
	for _, bad := range []string{"", "vf_", secret + "a", strings.ToUpper(secret), "vf_aaaaaaaaaa_" + strings.Repeat("*", 52)} {
		if id, ok := ParseID(bad); ok {
			t.Errorf("ParseID(%q) = %q", bad, id)
		}
	}
}

func TestFileKeepsHashesOnly(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys.yaml")
	secret, first := mint(t, ScopeAssetRead)
	_, second := mint(t)
	second.Expires = now.Add(time.Hour)
	for _, e := range []Entry{first, second} {
		if err := Add(path, e); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), secret) {
		t.Fatal("the file holds a secret")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v; want 0600", info.Mode(), err)
	}
	f, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Keys) != 2 || !f.Keys[0].Matches(secret) || f.Keys[1].Expires != second.Expires {
		t.Fatalf("loaded %+v", f)
	}
	if f.Keys[1].Expired(now) || !f.Keys[1].Expired(now.Add(time.Hour)) || f.Keys[0].Expired(now.AddDate(100, 0, 0)) {
		t.Fatal("expiry")
	}
	if err := Revoke(path, first.ID); err != nil {
		t.Fatal(err)
	}
	if err := Revoke(path, first.ID); !errors.Is(err, ErrNoSuchKey) {
		t.Fatalf("second revoke: %v", err)
	}
	if f, err = Load(path); err != nil || len(f.Keys) != 1 || f.Keys[0].ID != second.ID {
		t.Fatalf("after revoke %+v, %v", f, err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".keys-*")); err != nil || len(left) != 0 {
		t.Fatalf("left behind %v, %v", left, err)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	_, e := mint(t)
	entry := "keys:\n- id: " + e.ID + "\n  tenant: acme\n  sha256: " + e.SHA256 + "\n"
	if f, err := Parse([]byte(entry)); err != nil || len(f.Keys) != 1 {
		t.Fatalf("%+v, %v", f, err)
	}
	for name, text := range map[string]string{
		"unknown member": entry + "  colour: red\n",
		"unknown scope":  entry + "  scopes: [all]\n",
		"twice":          entry + strings.TrimPrefix(entry, "keys:\n"),
		"no tenant":      strings.Replace(entry, "acme", `""`, 1),
		"short hash":     strings.Replace(entry, e.SHA256, "abcd", 1),
		"no hex":         strings.Replace(entry, e.SHA256, strings.Repeat("z", 64), 1),
		"not yaml":       "keys: [",
	} {
		if f, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s: accepted %+v", name, f)
		}
	}
	if _, _, err := New("acme", "", []string{"everything"}, now); err == nil {
		t.Error("minted a key with an unknown scope")
	}
}

// TestTenants: a tenant may have limits and a policy of its own, side by side.
func TestTenants(t *testing.T) {
	t.Parallel()
	f, err := Parse([]byte("tenants:\n  acme:\n    request_rate: 5\n    approval_policy: human\n  other:\n    approval_policy: agent\n"))
	if err != nil || f.Tenants["acme"].ApprovalPolicy != PolicyHuman || f.Tenants["acme"].RequestRate == nil || *f.Tenants["acme"].RequestRate != 5 || f.Tenants["other"].ApprovalPolicy != PolicyAgent {
		t.Errorf("%+v, %v", f, err)
	}
	for _, wrong := range []string{"approval_policy: robot", "approval: human", "request_rate: -1"} {
		if f, err := Parse([]byte("tenants:\n  acme:\n    " + wrong + "\n")); err == nil || !strings.Contains(err.Error(), strings.Split(wrong, ":")[0]) {
			t.Errorf("%s: %+v, %v", wrong, f, err)
		}
	}
}

func TestLoadOfNothing(t *testing.T) {
	t.Parallel()
	f, err := Load(filepath.Join(t.TempDir(), "none.yaml"))
	if err != nil || len(f.Keys) != 0 {
		t.Fatalf("%+v, %v", f, err)
	}
}
