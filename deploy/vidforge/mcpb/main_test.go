package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

// registryModule is the MCP registry's own code, which holds the schemas that it
// accepts entries by.
const registryModule = "github.com/modelcontextprotocol/registry@v1.8.9"

// entrySchema is the schema that an entry names.
func entrySchema(t *testing.T, entry []byte) *jsonschema.Resolved {
	t.Helper()
	var e struct {
		Schema string `json:"$schema"`
	}
	if err := json.Unmarshal(entry, &e); err != nil {
		t.Fatal(err)
	}
	date := strings.TrimSuffix(strings.TrimPrefix(e.Schema, "https://static.modelcontextprotocol.io/schemas/"), "/server.schema.json")
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", registryModule)
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("download %s: %v: %s", registryModule, err, out)
	}
	var m struct{ Dir string }
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(m.Dir, "internal", "validators", "schemas", date+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return resolved
}

func TestEntryIsValid(t *testing.T) {
	t.Parallel()
	schema := entrySchema(t, entry)
	validate := func(raw []byte) error {
		var v any
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
		return schema.Validate(v)
	}
	if err := validate(entry); err != nil {
		t.Error(err)
	}
	for name, wrong := range map[string][]byte{
		"no package identifier": bytes.Replace(entry, []byte(`"identifier"`), []byte(`"id"`), 1),
		"a long description":    bytes.Replace(entry, []byte("Renders video"), bytes.Repeat([]byte("Renders video "), 9), 1),
		"a name without domain": bytes.Replace(entry, []byte("io.github.vidforge/"), nil, 1),
	} {
		if validate(wrong) == nil {
			t.Errorf("the schema takes %s", name)
		}
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "program")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := pack(options{binary: binary, dir: dir, version: "1.2.3", platform: "linux-arm64"})
	if err != nil {
		t.Fatal(err)
	}
	made, err := os.ReadFile(filepath.Join(dir, "server.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(made); err != nil {
		t.Error(err)
	}
	bundle, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(bundle)
	for _, want := range []string{hex.EncodeToString(sum[:]), releases + "/v1.2.3/" + filepath.Base(path), `"version": "1.2.3"`} {
		if !bytes.Contains(made, []byte(want)) {
			t.Errorf("server.json lacks %s:\n%s", want, made)
		}
	}
	z, err := zip.NewReader(bytes.NewReader(bundle), int64(len(bundle)))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name+" "+f.Mode().String()] = string(b)
	}
	if len(files) != 2 || files["server/vidforge -rwxr-xr-x"] != "#!/bin/sh\n" || !strings.Contains(files["manifest.json -rw-r--r--"], `"version": "1.2.3"`) {
		t.Errorf("%q", files)
	}
}

// The two files agree with each other.
func TestManifestsAgree(t *testing.T) {
	t.Parallel()
	var m struct {
		Version string `json:"version"`
		Server  struct {
			MCPConfig struct {
				Env map[string]string `json:"env"`
			} `json:"mcp_config"`
		} `json:"server"`
		UserConfig map[string]any `json:"user_config"`
	}
	var e struct {
		Version  string `json:"version"`
		Packages []struct {
			Version, Identifier  string
			EnvironmentVariables []struct{ Name string }
		} `json:"packages"`
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(entry, &e); err != nil {
		t.Fatal(err)
	}
	p := e.Packages[0]
	if m.Version != e.Version || p.Version != m.Version || !strings.Contains(p.Identifier, "/v"+m.Version+"/") {
		t.Errorf("versions %s, %s, %s, %s", m.Version, e.Version, p.Version, p.Identifier)
	}
	for _, v := range p.EnvironmentVariables {
		if !strings.HasPrefix(m.Server.MCPConfig.Env[v.Name], "${user_config.") {
			t.Errorf("the bundle does not set %s", v.Name)
		}
	}
	if len(m.UserConfig) != len(p.EnvironmentVariables) {
		t.Errorf("%d settings and %d variables", len(m.UserConfig), len(p.EnvironmentVariables))
	}
}
