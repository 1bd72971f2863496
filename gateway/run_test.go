package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/gateway/internal/farmtest"
	"github.com/vidforge/vidforge/pkg/ops"
	"github.com/vidforge/vidforge/pkg/render"
)

// running is a gateway as Run serves it, over a farm in memory.
type running struct {
	bound Bound
	farm  *farmtest.Farm
	stop  context.CancelFunc
	ended chan error
}

func start(t *testing.T, c Config) *running {
	t.Helper()
	f := farmtest.New(time.Now)
	r := startOver(t, c, f, shared{formKey: []byte("secret"), sessionKey: []byte("session secret")})
	r.farm = f
	return r
}

func startOver(t *testing.T, c Config, f facade, with shared) *running {
	t.Helper()
	c.Listen, c.OpsListen, c.Logger = "127.0.0.1:0", "127.0.0.1:0", slog.New(slog.DiscardHandler)
	ctx, stop := context.WithCancel(t.Context())
	r := &running{stop: stop, ended: make(chan error, 1)}
	ready := make(chan Bound, 1)
	c.Ready = func(b Bound) { ready <- b }
	c = c.withDefaults()
	operators, err := ops.Start(ctx, ops.Options{Listen: c.OpsListen, Registry: c.Registry, Logger: c.Logger})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		r.ended <- errors.Join(serve(ctx, c, f, with, operators), operators.Close())
	}()
	t.Cleanup(stop)
	select {
	case r.bound = <-ready:
	case err := <-r.ended:
		t.Fatal(err)
	}
	return r
}

func (r *running) wait(t *testing.T) {
	t.Helper()
	select {
	case err := <-r.ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the gateway does not stop")
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil {
		t.Error(err)
	}
	return res.StatusCode, string(b)
}

// listen opens a subscription to a task and returns its events.
func listen(t *testing.T, address string, id render.ID) *bufio.Reader {
	t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":9,"method":"subscriptions/listen","params":{"notifications":{"taskIds":[%q]},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":%s}}}`, id, tasks)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"} {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := res.Body.Close(); err != nil {
			t.Log(err)
		}
	})
	return bufio.NewReader(res.Body)
}

// until reads events until one holds the text, and returns it.
func until(t *testing.T, r *bufio.Reader, text string) string {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if strings.Contains(line, text) {
			return line
		}
		if err != nil {
			t.Fatalf("the stream ended before %q: %v", text, err)
		}
	}
}

func (r *running) render(t *testing.T) render.ID {
	t.Helper()
	src := r.farm.AddAsset(render.LocalTenant, "a.mov", farmtest.VideoFacts())
	v, _, err := r.farm.Submit(t.Context(), render.LocalTenant, submission(src))
	if err != nil {
		t.Fatal(err)
	}
	return v.Record.ID
}

func TestOpsEndpoints(t *testing.T) {
	t.Parallel()
	r := start(t, Config{})
	if code, _ := get(t, "http://"+r.bound.Listen+"/v1/openapi.json"); code != 200 {
		t.Fatalf("a request: %d", code)
	}
	url := "http://" + r.bound.OpsListen
	if code, body := get(t, url+"/metrics"); code != 200 || !strings.Contains(body, `vidforge_http_request_duration_seconds_count{method="GET",route="GET /v1/openapi.json",status="200"} 1`) {
		t.Errorf("/metrics: %d\n%s", code, body)
	}
	if code, body := get(t, url+"/readyz"); code != 200 || body != "ok\n" {
		t.Errorf("/readyz: %d %q", code, body)
	}
	r.farm.Fail("Ready", errors.New("no ledger"))
	if code, body := get(t, url+"/readyz"); code != 503 || strings.Contains(body, "ledger") {
		t.Errorf("not ready: %d %q", code, body)
	}
	if code, _ := get(t, url+"/healthz"); code != 200 {
		t.Errorf("/healthz while not ready: %d", code)
	}
}

// TestDrainDelay: a gateway that was asked to stop says so, and still answers.
func TestDrainDelay(t *testing.T) {
	t.Parallel()
	r := start(t, Config{DrainDelay: time.Hour})
	r.stop()
	deadline := time.Now().Add(time.Minute)
	for {
		code, body := get(t, "http://"+r.bound.OpsListen+"/readyz")
		if code == 503 && body == "draining\n" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("/readyz: %d %q", code, body)
		}
	}
	if code, _ := get(t, "http://"+r.bound.Listen+"/v1/openapi.json"); code != 200 {
		t.Errorf("a request while it drains: %d", code)
	}
	r.farm.Broken <- errors.New("the farm broke")
	if err := <-r.ended; err == nil || !strings.Contains(err.Error(), "the farm broke") {
		t.Errorf("a farm that breaks meanwhile: %v", err)
	}
}

// TestShutdown: streams end in good order, an upload in flight is finished, and
// nothing is accepted meanwhile.
func TestShutdown(t *testing.T) {
	t.Parallel()
	r := start(t, Config{})
	if code, body := get(t, "http://"+r.bound.OpsListen+"/readyz"); code != 200 {
		t.Fatalf("readyz: %d %s", code, body)
	}
	events := listen(t, r.bound.Listen, r.render(t))
	until(t, events, "notifications/tasks")

	body, in := io.Pipe()
	arrived := make(chan struct{})
	r.farm.OnUpload = func() { close(arrived) }
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.bound.Listen+"/v1/assets", body)
	if err != nil {
		t.Fatal(err)
	}
	uploaded := make(chan int, 1)
	go func() {
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			uploaded <- 0
			return
		}
		if err := res.Body.Close(); err != nil {
			t.Error(err)
		}
		uploaded <- res.StatusCode
	}()
	if _, err := in.Write([]byte("the first half, ")); err != nil {
		t.Fatal(err)
	}
	<-arrived
	r.stop()
	until(t, events, `"result"`) // the listen call's own answer
	if code, _ := get(t, "http://"+r.bound.OpsListen+"/readyz"); code != 503 {
		t.Errorf("readyz while draining: %d", code)
	}
	if _, err := in.Write([]byte("the second")); err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if code := <-uploaded; code != 201 {
		t.Errorf("upload in flight: %d", code)
	}
	r.wait(t)
	if _, err := http.Get("http://" + r.bound.Listen + "/v1/openapi.json"); err == nil {
		t.Error("it still answers")
	}
}

// TestShutdownCutsOff: whoever does not finish in time is cut off.
func TestShutdownCutsOff(t *testing.T) {
	t.Parallel()
	r := start(t, Config{ShutdownTimeout: 50 * time.Millisecond})
	body, in := io.Pipe()
	arrived := make(chan struct{})
	r.farm.OnUpload = func() { close(arrived) }
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.bound.Listen+"/v1/assets", body)
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			err = res.Body.Close()
		}
		failed <- err
	}()
	if _, err := in.Write([]byte("never more")); err != nil {
		t.Fatal(err)
	}
	<-arrived
	r.stop()
	r.wait(t)
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := <-failed; err == nil {
		t.Error("the upload was answered")
	}
}

// TestStreamsOutlastTheStall: a quiet stream is no stalled body.
func TestStreamsOutlastTheStall(t *testing.T) {
	t.Parallel()
	const stall = 50 * time.Millisecond
	r := start(t, Config{StallTimeout: stall})
	id := r.render(t)
	events := listen(t, r.bound.Listen, id)
	until(t, events, `"status":"working"`)
	<-time.After(4 * stall) // the time that is tested
	if err := r.farm.Apply(id, render.Cancelled{}); err != nil {
		t.Fatal(err)
	}
	until(t, events, `"status":"cancelled"`)
	until(t, events, `"resultType":"complete"`)
	r.stop()
	r.wait(t)
}

func TestConfigRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"everywhere without keys": {Config{Listen: ":8080"}, "KeysFile"},
		"a network without keys":  {Config{Listen: "192.0.2.1:8080"}, "KeysFile"},
		"a name without keys":     {Config{Listen: "render.example.org:8080"}, "KeysFile"},
		"no port":                 {Config{Listen: "127.0.0.1"}, "invalid Listen"},
		"negative":                {Config{MaxConcurrent: -1}, "negative"},
	} {
		if err := c.cfg.withDefaults().validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, ok := range []Config{{}, {Listen: "localhost:0"}, {Listen: "[::1]:0"}, {Listen: ":8080", KeysFile: "keys.yaml"}} {
		if err := ok.withDefaults().validate(); err != nil {
			t.Errorf("%+v: %v", ok.Listen, err)
		}
	}
	for _, bad := range []string{"render.example.org", "ftp://x", "https://user@x", "https://x?y", "://"} {
		if u, err := (Config{PublicURL: bad}).publicURL("127.0.0.1:1"); err == nil {
			t.Errorf("PublicURL %q became %v", bad, u)
		}
	}
	if u, err := (Config{PublicURL: "https://x/render/"}).publicURL(""); err != nil || u.String() != "https://x/render" {
		t.Errorf("%v, %v", u, err)
	}
	farm := farmtest.New(time.Now)
	if err := serve(t.Context(), Config{Listen: "127.0.0.1:0", KeysFile: "/does/not/exist"}.withDefaults(), farm, shared{}, nil); err == nil || !strings.Contains(err.Error(), "keys file") {
		t.Errorf("missing keys file: %v", err)
	}
}
