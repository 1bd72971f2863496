// Command mcpb packs the program into an MCP bundle (.mcpb), which desktop hosts
// install, and writes the entry of an MCP registry that names it.
//
// https://github.com/modelcontextprotocol/mcpb/blob/main/MANIFEST.md
// https://github.com/modelcontextprotocol/registry/tree/main/docs/reference/server-json
package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

var (
	//go:embed manifest.json
	manifest []byte
	//go:embed server.json
	entry []byte
)

// releases is where a release's files are.
const releases = "https://github.com/vidforge/vidforge/releases/download"

func main() {
	var o options
	flag.StringVar(&o.binary, "binary", "bin/vidforge", "program to pack")
	flag.StringVar(&o.dir, "dir", "bin", "folder of the bundle and of server.json")
	flag.StringVar(&o.version, "version", "", "version of the release (default that of manifest.json)")
	flag.StringVar(&o.platform, "platform", runtime.GOOS+"-"+runtime.GOARCH, "platform that the program was built for")
	flag.Parse()
	path, err := pack(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mcpb:", err)
		os.Exit(1)
	}
	fmt.Println(path)
}

type options struct{ binary, dir, version, platform string }

// pack writes the bundle and the registry's entry, and returns the bundle's path.
func pack(o options) (path string, err error) {
	var m, e map[string]any
	if err := errors.Join(json.Unmarshal(manifest, &m), json.Unmarshal(entry, &e)); err != nil {
		return "", fmt.Errorf("read the manifests: %w", err)
	}
	if o.version != "" {
		m["version"] = o.version
	}
	goos, _, _ := strings.Cut(o.platform, "-")
	m["compatibility"] = map[string]any{"platforms": []string{goos}} // one program runs on one of them
	packed, err := encode(m)
	if err != nil {
		return "", err
	}
	program, err := os.ReadFile(o.binary)
	if err != nil {
		return "", fmt.Errorf("read the program: %w", err)
	}
	var bundle bytes.Buffer
	z := zip.NewWriter(&bundle)
	for _, f := range []struct {
		name string
		mode os.FileMode
		data []byte
	}{{"manifest.json", 0o644, packed}, {"server/vidforge", 0o755, program}} {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate} // no times: the same program gives the same bundle
		h.SetMode(f.mode)
		w, err := z.CreateHeader(h)
		if err == nil {
			_, err = io.Copy(w, bytes.NewReader(f.data))
		}
		if err != nil {
			return "", fmt.Errorf("pack %s: %w", f.name, err)
		}
	}
	if err := z.Close(); err != nil {
		return "", fmt.Errorf("pack: %w", err)
	}
	name := "vidforge-" + o.platform + ".mcpb"
	sum := sha256.Sum256(bundle.Bytes())
	version := fmt.Sprint(m["version"])
	e["version"] = version
	packages, _ := e["packages"].([]any)
	for _, p := range packages {
		if p, ok := p.(map[string]any); ok {
			p["version"], p["identifier"], p["fileSha256"] = version, releases+"/v"+version+"/"+name, hex.EncodeToString(sum[:])
		}
	}
	listed, err := encode(e)
	if err != nil {
		return "", err
	}
	path = filepath.Join(o.dir, name)
	if err := errors.Join(os.WriteFile(path, bundle.Bytes(), 0o644), os.WriteFile(filepath.Join(o.dir, "server.json"), listed, 0o644)); err != nil { //nolint:gosec // for everybody to install
		return "", fmt.Errorf("write the bundle: %w", err)
	}
	return path, nil
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return b.Bytes(), nil
}
