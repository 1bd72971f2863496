//go:build clients

package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/deploy/e2e/conformance/npm"
)

// packages is the folder of package.json.
const packages = ".."

// patience bounds each client's run.
const patience = 10 * time.Minute

// farm is a running 'vidforge up' with a source for it.
type farm struct {
	url, binary, clip string
}

// running is started once: a client's checks take seconds, a farm's start too.
var running = sync.OnceValues(start)

var stop func() error

func TestMain(m *testing.M) {
	code := m.Run()
	if stop != nil {
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func start() (_ *farm, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := npm.Install(ctx, packages); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "vidforge-clients-")
	if err != nil {
		return nil, err
	}
	stop = func() error { return os.RemoveAll(dir) }
	f := &farm{binary: filepath.Join(dir, "vidforge"), clip: filepath.Join(dir, "clip.mp4")}
	for _, args := range [][]string{
		{"go", "build", "-o", f.binary, "github.com/vidforge/vidforge/deploy/vidforge"},
		{"ffmpeg", "-nostdin", "-v", "error", "-f", "lavfi", "-i", "testsrc2=size=320x240:rate=30:duration=1", "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", f.clip},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", args[0], err, out)
		}
	}
	cmd := exec.Command(f.binary, "up", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--data-dir", filepath.Join(dir, "data"), "--log-level", "warn")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() error {
		err := cmd.Process.Signal(syscall.SIGTERM)
		if err == nil {
			err = cmd.Wait()
		}
		if rerr := os.RemoveAll(dir); err == nil {
			err = rerr
		}
		return err
	}
	var printed bytes.Buffer
	url := regexp.MustCompile(`MCP endpoint\s+(\S+)\n`)
	for buf := make([]byte, 1024); ; {
		n, err := out.Read(buf)
		printed.Write(buf[:n])
		if m := url.FindStringSubmatch(printed.String()); m != nil {
			f.url = m[1]
			go io.Copy(io.Discard, out) // it ends with the process
			return f, nil
		}
		if err != nil {
			return nil, fmt.Errorf("start a farm: %w: %s", err, printed.String())
		}
	}
}

func theFarm(t *testing.T) *farm {
	t.Helper()
	f, err := running()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// run runs a Node program to its end.
func run(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := npm.Node(ctx, packages, args...)
	var stderr bytes.Buffer
	cmd.Stderr, cmd.Env = &stderr, append(os.Environ(), "HOME="+t.TempDir()) // not the user's settings
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}

// script runs one of the scripts here, which print what they checked.
func script(t *testing.T, name string, args ...string) {
	t.Helper()
	f := theFarm(t)
	t.Log("\n" + run(t, append([]string{"clients/" + name, f.url, f.clip}, args...)...))
}

func TestModernClient(t *testing.T) {
	t.Parallel()
	script(t, "modern.mjs")
}

func TestLegacyClient(t *testing.T) {
	t.Parallel()
	script(t, "legacy.mjs")
}

func TestLegacySDK(t *testing.T) {
	t.Parallel()
	script(t, "sdk.mjs")
}

// TestStdioClients renders a file with the clients that start the program by
// themselves.
func TestStdioClients(t *testing.T) {
	t.Parallel()
	f := theFarm(t)
	t.Log("\n" + run(t, "clients/stdio.mjs", f.binary, f.clip, t.TempDir()))
}

const inspector = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"

// TestInspector lists and calls by the Inspector's command line, over HTTP and
// over standard streams.
func TestInspector(t *testing.T) {
	t.Parallel()
	f := theFarm(t)
	home := t.TempDir()
	for name, target := range map[string][]string{
		"http":  {f.url, "--transport", "http"},
		"stdio": {f.binary, "mcp", "-e", "VIDFORGE_DATA_DIR=" + filepath.Join(home, "data"), "-e", "VIDFORGE_INPUT_DIR=" + filepath.Dir(f.clip), "-e", "VIDFORGE_OUTPUT_DIR=" + home},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ask := func(into any, args ...string) {
				t.Helper()
				out := run(t, append(append([]string{inspector, "--cli"}, target...), args...)...)
				if err := json.Unmarshal([]byte(out), into); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			var tools struct{ Tools []struct{ Name string } }
			ask(&tools, "--method", "tools/list")
			if len(tools.Tools) != 7 || tools.Tools[0].Name != "vidforge_render_video" {
				t.Errorf("%+v", tools)
			}
			var resources struct{ Resources []struct{ URI string } }
			ask(&resources, "--method", "resources/list")
			if len(resources.Resources) != 3 {
				t.Errorf("%+v", resources)
			}
			var res struct {
				StructuredContent struct {
					Server struct{ Name, Transport string }
				}
			}
			ask(&res, "--method", "tools/call", "--tool-name", "vidforge_get_capabilities")
			if s := res.StructuredContent.Server; s.Name != "vidforge" || (s.Transport == "stdio") != (name == "stdio") {
				t.Errorf("%+v", res)
			}
		})
	}
}

// TestSDKClient renders with the Go SDK's client, in both generations.
func TestSDKClient(t *testing.T) {
	t.Parallel()
	f := theFarm(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	clip, err := os.ReadFile(f.clip)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(strings.TrimSuffix(f.url, "/mcp")+"/v1/assets?name=clip.mp4", "video/mp4", bytes.NewReader(clip))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var asset struct {
		URI string `json:"asset_uri"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&asset); err != nil || asset.URI == "" {
		t.Fatalf("%+v, %v", asset, err)
	}
	for _, version := range []string{"2026-07-28", "2025-11-25"} {
		cs, err := mcp.NewClient(&mcp.Implementation{Name: "go", Version: "1"}, nil).
			Connect(ctx, &mcp.StreamableClientTransport{Endpoint: f.url}, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		if got := cs.InitializeResult().ProtocolVersion; got != version {
			t.Errorf("negotiated %s, not %s", got, version)
		}
		type status struct {
			RenderID string `json:"render_id"`
			State    string `json:"state"`
			Terminal bool   `json:"terminal"`
			FollowUp struct {
				Tool      string         `json:"tool"`
				Arguments map[string]any `json:"arguments"`
			} `json:"follow_up"`
			Frames int `json:"frame_count"`
		}
		call := func(tool string, args any) (s status) {
			t.Helper()
			res, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
			if err != nil || res.IsError {
				t.Fatalf("%s: %+v, %v", tool, res, err)
			}
			raw, err := json.Marshal(res.StructuredContent)
			if err == nil {
				err = json.Unmarshal(raw, &s)
			}
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := call("vidforge_render_video", map[string]any{
			"source_asset_uri": asset.URI, "output_format": "mp4", "resolution": "720p", "quality": "draft", "watermark": map[string]any{"text": "© Go"},
		})
		for id := s.RenderID; !s.Terminal; {
			if s = call("vidforge_get_render_status", map[string]any{"render_id": id}); s.State == "awaiting_watermark_approval" {
				call(s.FollowUp.Tool, s.FollowUp.Arguments)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if s.State != "succeeded" || s.Frames != 30 {
			t.Errorf("%s: %+v", version, s)
		}
		if err := cs.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestBundle holds the bundle's manifest against its schema, by the official
// packer.
func TestBundle(t *testing.T) {
	t.Parallel()
	theFarm(t)
	if out := run(t, "node_modules/@anthropic-ai/mcpb/dist/cli/cli.js", "validate", "../../vidforge/mcpb/manifest.json"); !strings.Contains(out, "passes") {
		t.Errorf("%s", out)
	}
}
