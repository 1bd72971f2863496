package performance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/e2e/programs"
	"github.com/vidforge/vidforge/deploy/e2e/servers"
)

const (
	// rounds of each side, alternating.
	rounds = 5
	// warmups before the first round: connections, caches, the heap's size.
	warmups = 500
	// polls and submits of one round.
	polls, submits = 4000, 1500
	// clients at once.
	clients = 4
	gogc    = "400"
)

// BenchmarkGatewayCPU compares the CPU time of the gateway's process, over real
// servers in other processes, with that of a stock server of the SDK with the
// same GOGC: for tasks/get, and for a durable submit against a tools/call that
// does nothing. The first figure is the median of rounds, then come the least
// and the greatest. CPU time is that of /proc/PID/stat, in hundredths of a
// second, as getrusage gives it.
func BenchmarkGatewayCPU(b *testing.B) {
	dir := b.TempDir()
	const module = "github.com/vidforge/vidforge/"
	if err := programs.Build(b.Context(), dir, "", module+"gateway/cmd/vidforge-gateway", module+"worker/cmd/vidforge-worker", module+"deploy/e2e/performance/stock"); err != nil {
		b.Fatal(err)
	}
	e := servers.Start(b).Endpoints()
	env := append(programs.Endpoints(e), "GOGC="+gogc)
	front := programs.Start(b, filepath.Join(dir, "vidforge-gateway"), env, "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0",
		"--max-concurrent", "1000000")
	gateway := "http://" + front.Logged("gateway listens")["address"].(string)
	stock := programs.Start(b, filepath.Join(dir, "stock"), []string{"GOGC=" + gogc})
	plain := "http://" + stock.Logged("listens")["address"].(string)

	hand := programs.Start(b, filepath.Join(dir, "vidforge-worker"), env, "--ops-listen", "127.0.0.1:0", "--scratch-dir", b.TempDir())
	asset := upload(b, gateway)
	hand.Signal(9) // nothing is encoded from here on
	hand.Exit()
	arguments := map[string]any{"source_asset_uri": asset, "output_format": "mp4", "resolution": "720p"}
	submit := body(b, "tools/call", map[string]any{"name": "vidforge_render_video", "arguments": arguments})
	poll := body(b, "tasks/get", map[string]any{"taskId": submitted(b, gateway, submit)})
	for name, c := range map[string]struct {
		n            int
		method, name string
		body         []byte
	}{
		"tasks-get": {polls, "tasks/get", taskOf(b, poll), poll},
		"submit":    {submits, "tools/call", "vidforge_render_video", submit},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var ours, theirs, ratios []float64
				sides := []struct {
					url string
					p   *programs.Program
					cpu *[]float64
				}{{gateway + "/mcp", front, &ours}, {plain, stock, &theirs}}
				for _, s := range sides {
					send(b, s.url, c.method, c.name, c.body, warmups)
				}
				for range rounds {
					for _, s := range sides {
						before := cpuTime(b, s.p.PID())
						send(b, s.url, c.method, c.name, c.body, c.n)
						*s.cpu = append(*s.cpu, (cpuTime(b, s.p.PID())-before).Seconds()/float64(c.n)*1e6)
					}
				}
				for i := range ours {
					ratios = append(ratios, ours[i]/theirs[i])
				}
				for unit, values := range map[string][]float64{"gateway-µs": ours, "stock-µs": theirs, "ratio": ratios} {
					slices.Sort(values)
					b.ReportMetric(values[len(values)/2], unit)
					b.ReportMetric(values[0], unit+"-min")
					b.ReportMetric(values[len(values)-1], unit+"-max")
				}
			}
		})
	}
}

func taskOf(b *testing.B, poll []byte) string {
	b.Helper()
	var m struct {
		Params struct {
			TaskID string `json:"taskId"`
		} `json:"params"`
	}
	if err := json.Unmarshal(poll, &m); err != nil {
		b.Fatal(err)
	}
	return m.Params.TaskID
}

// body is a request of MCP 2026-07-28 that declares tasks.
func body(b *testing.B, method string, params map[string]any) []byte {
	b.Helper()
	params["_meta"] = map[string]any{
		"io.modelcontextprotocol/protocolVersion": "2026-07-28",
		"io.modelcontextprotocol/clientInfo":      map[string]any{"name": "bench", "version": "1"},
		"io.modelcontextprotocol/clientCapabilities": map[string]any{
			"extensions": map[string]any{"io.modelcontextprotocol/tasks": map[string]any{}},
		},
	}
	raw, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		b.Fatal(err)
	}
	return raw
}

func post(url, method, name string, body []byte) ([]byte, error) {
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body)) //nolint:noctx // the client's timeout bounds it
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Protocol-Version", "2026-07-28")
	req.Header.Set("Mcp-Method", method)
	req.Header.Set("Mcp-Name", name)
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err == nil && (res.StatusCode != http.StatusOK || bytes.Contains(got, []byte(`"error"`)) || bytes.Contains(got, []byte(`"isError":true`))) {
		err = fmt.Errorf("%s: %s: %s", method, res.Status, got)
	}
	return got, err
}

// client keeps its connections, as agents' hosts do.
var client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: clients}}

// send sends a request n times, by some clients at once.
func send(b *testing.B, url, method, name string, body []byte, n int) {
	b.Helper()
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for range n / clients {
				if _, err := post(url, method, name, body); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
}

// submitted sends a render and returns its task.
func submitted(b *testing.B, gateway string, submit []byte) string {
	b.Helper()
	got, err := post(gateway+"/mcp", "tools/call", "vidforge_render_video", submit)
	if err != nil {
		b.Fatal(err)
	}
	if data, ok := bytes.CutPrefix(got, []byte("event: message\ndata: ")); ok {
		got = data
	}
	var m struct {
		Result struct {
			TaskID string `json:"taskId"`
		} `json:"result"`
	}
	if err := json.Unmarshal(got, &m); err != nil || m.Result.TaskID == "" {
		b.Fatalf("submit: %v: %s", err, got)
	}
	return m.Result.TaskID
}

func upload(b *testing.B, gateway string) string {
	b.Helper()
	file := filepath.Join(b.TempDir(), "clip.mp4")
	out, err := exec.CommandContext(b.Context(), "ffmpeg", "-nostdin", "-v", "error", "-f", "lavfi", "-i", "testsrc2=size=320x240:rate=30:duration=2",
		"-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", file).CombinedOutput()
	if err != nil {
		b.Fatalf("ffmpeg: %v: %s", err, out)
	}
	f, err := os.Open(file)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	res, err := client.Post(gateway+"/v1/assets?name=clip.mp4", "video/mp4", f) //nolint:noctx // the client's timeout bounds it
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	var asset struct {
		URI        string `json:"asset_uri"`
		Renderable bool   `json:"renderable"`
	}
	if err := json.NewDecoder(res.Body).Decode(&asset); err != nil || !asset.Renderable {
		b.Fatalf("upload: %s %+v, %v", res.Status, asset, err)
	}
	return asset.URI
}

// ticks of CPU time a second, on every Linux that Go runs on (USER_HZ).
const ticks = 100

// cpuTime is the user and system time that a process has used.
func cpuTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		b.Fatal(err)
	}
	// The command's name, in parentheses, may hold spaces; utime and stime are
	// the 12th and 13th field after it (proc_pid_stat(5)).
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var sum int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks
}
