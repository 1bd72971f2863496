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
	"syscall"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/e2e/programs"
	"github.com/vidforge/vidforge/deploy/e2e/servers"
	"github.com/vidforge/vidforge/pkg/apikey"
)

const (
	// rounds of each side, alternating.
	rounds = 5
	// tenants share the load; each has as many renders at once as an agent may.
	tenants          = 30
	pollsPerTenant   = 100
	submitsPerTenant = 10
	// clients at once.
	clients = 4
	gogc    = "400"
)

// BenchmarkGatewayCPU compares the CPU time of the gateway's process, over real
// servers in other processes, with that of a stock server of the SDK with the
// same GOGC: for tasks/get, and for a durable submit against a tools/call that
// does nothing. The gateway authenticates, the stock server does not. Figures
// are microseconds of a request and their ratio: the median of the rounds, the
// least and the greatest. CPU time is that of /proc/PID/stat, in hundredths of a
// second, as getrusage gives it.
func BenchmarkGatewayCPU(b *testing.B) {
	dir := b.TempDir()
	const module = "github.com/vidforge/vidforge/"
	if err := programs.Build(b.Context(), dir, "", module+"gateway/cmd/vidforge-gateway", module+"worker/cmd/vidforge-worker", module+"deploy/e2e/performance/stock"); err != nil {
		b.Fatal(err)
	}
	file, keys := mintKeys(b)
	e := servers.Start(b).Endpoints()
	env := append(programs.Endpoints(e), "GOGC="+gogc)
	front := programs.Start(b, filepath.Join(dir, "vidforge-gateway"), env, "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--keys-file", file)
	gateway := side{url: "http://" + front.Logged("gateway listens")["address"].(string), program: front}
	stock := programs.Start(b, filepath.Join(dir, "stock"), []string{"GOGC=" + gogc})
	plain := side{url: "http://" + stock.Logged("listens")["address"].(string), program: stock}

	hand := programs.Start(b, filepath.Join(dir, "vidforge-worker"), env, "--ops-listen", "127.0.0.1:0", "--scratch-dir", b.TempDir())
	clip := makeClip(b)
	var submits, polls []call
	for _, key := range keys {
		arguments := map[string]any{"source_asset_uri": upload(b, gateway.url, key, clip), "output_format": "mp4", "resolution": "720p"}
		submits = append(submits, call{key, "tools/call", "vidforge_render_video", body(b, "tools/call", map[string]any{"name": "vidforge_render_video", "arguments": arguments})})
	}
	hand.Signal(syscall.SIGKILL) // nothing is encoded from here on
	hand.Exit()
	for _, c := range submits {
		polls = append(polls, taskCall(b, c.key, "tasks/get", gateway.send(b, []call{c})[0]))
	}
	b.Run("tasks-get", func(b *testing.B) {
		compare(b, gateway, plain, slices.Repeat(polls, pollsPerTenant), func([]string) {})
	})
	b.Run("submit", func(b *testing.B) {
		compare(b, gateway, plain, slices.Repeat(submits, submitsPerTenant), func(tasks []string) {
			var cancels []call
			for i, id := range tasks { // in the order of the submits
				cancels = append(cancels, taskCall(b, submits[i%len(submits)].key, "tasks/cancel", id))
			}
			gateway.send(b, cancels)
		})
	})
}

// compare sends the calls to both sides in turn. after gets what the gateway
// answered, outside of what is measured.
func compare(b *testing.B, gateway, stock side, calls []call, after func(tasks []string)) {
	b.Helper()
	for b.Loop() {
		var ours, theirs, ratios []float64
		for round := range 1 + rounds { // the first warms up
			var cost [2]float64
			for i, s := range []side{gateway, stock} {
				before := cpuTime(b, s.program.PID())
				tasks := s.send(b, calls)
				cost[i] = (cpuTime(b, s.program.PID()) - before).Seconds() / float64(len(calls)) * 1e6
				if i == 0 {
					after(tasks)
				}
			}
			if round > 0 {
				ours, theirs, ratios = append(ours, cost[0]), append(theirs, cost[1]), append(ratios, cost[0]/cost[1])
			}
		}
		for unit, values := range map[string][]float64{"gateway-µs": ours, "stock-µs": theirs, "ratio": ratios} {
			slices.Sort(values)
			b.ReportMetric(values[len(values)/2], unit)
			b.ReportMetric(values[0], unit+"-min")
			b.ReportMetric(values[len(values)-1], unit+"-max")
		}
		b.ReportMetric(0, "ns/op") // of no meaning here
	}
}

// side is a server that is measured.
type side struct {
	url     string
	program *programs.Program
}

// call is a request of MCP 2026-07-28.
type call struct {
	key, method, name string
	body              []byte
}

func taskCall(b *testing.B, key, method, id string) call {
	b.Helper()
	return call{key, method, id, body(b, method, map[string]any{"taskId": id})}
}

// send sends the calls, by some clients at once, and returns the task that each
// answer names, if any.
func (s side) send(b *testing.B, calls []call) (tasks []string) {
	b.Helper()
	tasks = make([]string, len(calls))
	var wg sync.WaitGroup
	for n := range clients {
		wg.Go(func() {
			for i := n; i < len(calls); i += clients {
				got, err := s.post(calls[i])
				if err != nil {
					b.Error(err)
					return
				}
				tasks[i] = got
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
	return tasks
}

func (s side) post(c call) (task string, err error) {
	req, err := http.NewRequest(http.MethodPost, s.url+"/mcp", bytes.NewReader(c.body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+c.key)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Protocol-Version", "2026-07-28")
	req.Header.Set("Mcp-Method", c.method)
	req.Header.Set("Mcp-Name", c.name)
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	if _, data, ok := bytes.Cut(got, []byte("data: ")); ok { // an event
		got = data
	}
	var m struct {
		Result *struct {
			TaskID  string `json:"taskId"`
			IsError bool   `json:"isError"`
		} `json:"result"`
	}
	if err := json.Unmarshal(got, &m); err != nil || res.StatusCode != http.StatusOK || m.Result == nil || m.Result.IsError {
		return "", fmt.Errorf("%s: %s: %s", c.method, res.Status, got)
	}
	return m.Result.TaskID, nil
}

// client keeps its connections, as agents' hosts do.
var client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: clients}}

// mintKeys makes a keys file with a key for each tenant.
func mintKeys(b *testing.B) (file string, secrets []string) {
	b.Helper()
	file = filepath.Join(b.TempDir(), "keys.yaml")
	for n := range tenants {
		secret, e, err := apikey.New(fmt.Sprintf("tenant-%d", n), "", nil, time.Now())
		if err == nil {
			err = apikey.Add(file, e)
		}
		if err != nil {
			b.Fatal(err)
		}
		secrets = append(secrets, secret)
	}
	return file, secrets
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

func makeClip(b *testing.B) []byte {
	b.Helper()
	file := filepath.Join(b.TempDir(), "clip.mp4")
	out, err := exec.CommandContext(b.Context(), "ffmpeg", "-nostdin", "-v", "error", "-f", "lavfi", "-i", "testsrc2=size=320x240:rate=30:duration=2",
		"-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", file).CombinedOutput()
	if err != nil {
		b.Fatalf("ffmpeg: %v: %s", err, out)
	}
	clip, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	return clip
}

func upload(b *testing.B, gateway, key string, clip []byte) string {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, gateway+"/v1/assets?name=clip.mp4", bytes.NewReader(clip))
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "video/mp4")
	res, err := client.Do(req)
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
