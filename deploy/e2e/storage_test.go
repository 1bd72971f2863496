package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/embedded/embeddedtest"
	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/faultproxy"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker"
)

// site is a farm whose own way to the stores is sound; its workers may have
// another one.
type site struct {
	*line
	share  embeddedtest.Farm
	stores farm.Stores
}

func newSite(t *testing.T) *site {
	t.Helper()
	share := embeddedtest.Servers(t)
	stores := share.Dial(t).Stores
	s := &site{line: &line{Farm: farm.New(stores, farm.Config{Logger: quiet()}), tenant: "acme", t: t}, share: share, stores: stores}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("farm: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s
}

// proxy stands before the object store.
func (s *site) proxy() (*faultproxy.HTTP, farm.Endpoints) {
	s.t.Helper()
	u, err := url.Parse(s.share.Endpoints.S3.Endpoint)
	if err != nil {
		s.t.Fatal(err)
	}
	p := faultproxy.NewHTTP(s.t, u.Host)
	e := s.share.Endpoints
	e.S3.Endpoint, e.S3.Backoff = "http://"+p.Addr(), time.Millisecond
	return p, e
}

// hire runs a worker in this process until the test ends or stop is called.
func (s *site) hire(cfg worker.Config) (log *diary, stop func()) {
	s.t.Helper()
	log = newDiary()
	cfg.Logger = slog.New(log)
	if cfg.ScratchDir == "" {
		cfg.ScratchDir = s.t.TempDir()
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan struct{})
	cfg.Ready = func() { close(ready) }
	go func() {
		defer close(done)
		if err := worker.Run(ctx, cfg); err != nil {
			s.t.Errorf("worker: %v", err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	s.t.Cleanup(func() {
		stop()
		if s.t.Failed() {
			s.t.Logf("log of %s:\n%s", cfg.ID, log.text())
		}
	})
	select {
	case <-ready:
	case <-done:
	}
	return log, stop
}

func (s *site) ask(a *render.Asset, quality string) render.ID {
	s.t.Helper()
	v, _, err := s.Submit(s.t.Context(), s.tenant, farm.Submission{Request: render.Request{
		SourceAssetURI: a.ID.URI(), OutputFormat: "mp4", Resolution: "720p", Quality: &quality}})
	if err != nil {
		s.t.Fatal(err)
	}
	return v.Record.ID
}

// attempts are all tries at the works of a finished render.
func (s *site) attempts(rec *render.Record) []ledger.Attempt {
	s.t.Helper()
	works := []render.Work{{Stage: render.StagePlan}, {Stage: render.StageAudio}, {Stage: render.StageAssemble}}
	for i := range rec.Plan.Segments {
		works = append(works, render.Work{Stage: render.StageSegment, Index: i})
	}
	var all []ledger.Attempt
	for _, w := range works {
		w.Tenant, w.Task, w.Generation = s.tenant, rec.ID, rec.Generation
		h, err := s.stores.Ledger.AttemptHistory(s.t.Context(), w)
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, h.Attempts...)
	}
	return all
}

// check looks at a finished render: its video decodes to the frames, no attempt
// counted as the job's failure, and nothing but the video is stored.
func (s *site) check(id render.ID, frames string) (handbacks []ledger.Attempt) {
	s.t.Helper()
	rec := s.until(id, render.StateSucceeded).Record
	content, err := s.Video(s.t.Context(), s.tenant, id)
	if err != nil {
		s.t.Fatal(err)
	}
	file := s.save(content, string(id)+".mp4")
	if got := look(s.t, file); got.Streams[0].Frames != frames {
		s.t.Errorf("the video has %s frames, not %s", got.Streams[0].Frames, frames)
	}
	run(s.t, "ffmpeg", "-v", "error", "-xerror", "-err_detect", "explode", "-i", file, "-f", "null", "-")
	for _, a := range s.attempts(rec) {
		switch a.Outcome {
		case ledger.OutcomeFailed, ledger.OutcomeLost:
			s.t.Errorf("an attempt counts as %s: %s", a.Outcome, a.Reason)
		case ledger.OutcomeHandback:
			handbacks = append(handbacks, a)
		case ledger.OutcomeOpen, ledger.OutcomeDone:
		}
	}
	s.untilOnly(blob.RenderPrefix(s.tenant, id), rec.Output.Object.Key)
	return handbacks
}

// untilOnly waits until whoever settles the render's end has removed everything
// else.
func (s *site) untilOnly(prefix, key string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		var keys []string
		for info, err := range s.stores.Blobs.List(ctx, prefix) {
			if err != nil {
				s.t.Fatal(err)
			}
			keys = append(keys, info.Key)
		}
		if slices.Equal(keys, []string{key}) {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			s.t.Fatalf("%q are left beside %s", keys, key)
		}
	}
}

// diary keeps log lines and tells of new ones.
type diary struct {
	mu    sync.Mutex
	lines []string
	grown chan struct{}
}

func newDiary() *diary { return &diary{grown: make(chan struct{})} }

func (d *diary) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (d *diary) WithAttrs([]slog.Attr) slog.Handler           { return d }
func (d *diary) WithGroup(string) slog.Handler                { return d }
func (d *diary) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += fmt.Sprintf(" %s=%v", a.Key, a.Value); return true })
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
	close(d.grown)
	d.grown = make(chan struct{})
	return nil
}

func (d *diary) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.lines, "\n")
}

// await waits for a line that holds part.
func (d *diary) await(t *testing.T, part string) string {
	t.Helper()
	limit := time.After(2 * time.Minute)
	for {
		d.mu.Lock()
		i := slices.IndexFunc(d.lines, func(l string) bool { return strings.Contains(l, part) })
		var line string
		if i >= 0 {
			line = d.lines[i]
		}
		grown := d.grown
		d.mu.Unlock()
		if i >= 0 {
			return line
		}
		select {
		case <-grown:
		case <-limit:
			t.Fatalf("no %q in the log:\n%s", part, d.text())
		}
	}
}

func (d *diary) count(part string) int { return strings.Count(d.text(), part) }

// A worker whose way to the object store fails again and again, by a seed,
// makes the same video.
func TestRenderThroughAFailingStore(t *testing.T) {
	s := newSite(t)
	file := clip(t, 3, "320x240")
	for seed := range uint64(2) {
		proxy, e := s.proxy()
		chance := rand.New(rand.NewPCG(seed, 7))
		proxy.SetFault(func(int, *http.Request) faultproxy.HTTPFault {
			at := chance.Int64N(20_000) + 1
			switch chance.IntN(16) { // called one at a time
			case 0:
				return faultproxy.SlowDown()
			case 1:
				return faultproxy.HTTPFault{CutRequest: -1}
			case 2:
				return faultproxy.HTTPFault{CutRequest: at}
			case 3:
				return faultproxy.HTTPFault{CutAnswer: at}
			case 4:
				return faultproxy.HTTPFault{LoseAnswer: true}
			case 5:
				return faultproxy.HTTPFault{CorruptRequest: at}
			case 6:
				return faultproxy.HTTPFault{CorruptAnswer: at}
			}
			return faultproxy.HTTPFault{}
		})
		_, stop := s.hire(worker.Config{Endpoints: e, ID: "w1", Policy: render.Policy{SegmentTarget: time.Second, MaxSegments: 3}})
		id := s.ask(s.put(file, "video/mp4"), "draft")
		s.check(id, "90")
		if proxy.Faults() < 5 {
			t.Errorf("only %d faults", proxy.Faults())
		}
		t.Logf("seed %d: %d faults", seed, proxy.Faults())
		stop()
	}
}

// While the store is away a worker hands back what it cannot do, takes no more,
// says so, and goes on by itself.
func TestWorkerPausesWhileTheStoreIsAway(t *testing.T) {
	s := newSite(t)
	proxy, e := s.proxy()
	log, _ := s.hire(worker.Config{Endpoints: e, ID: "w1", OpsListen: "127.0.0.1:0"})
	ready := func() int {
		_, address, _ := strings.Cut(log.await(t, "answers operators"), "address=")
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/readyz", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := res.Body.Close(); err != nil {
			t.Fatal(err)
		}
		return res.StatusCode
	}
	a := s.put(clip(t, 1, "320x240"), "video/mp4")
	if code := ready(); code != http.StatusOK {
		t.Errorf("ready: %d", code)
	}
	proxy.SetFault(func(int, *http.Request) faultproxy.HTTPFault { return faultproxy.SlowDown() })
	ids := []render.ID{s.ask(a, "draft"), s.ask(a, "draft"), s.ask(a, "draft")}
	log.await(t, "worker pauses without=object store")
	if code := ready(); code != http.StatusServiceUnavailable {
		t.Errorf("ready while the store is away: %d", code)
	}
	// It asks whether the store is back, and nothing else: what was taken before
	// has been handed back.
	if err := proxy.Await(t.Context(), proxy.Faults()+20); err != nil {
		t.Fatal(err)
	}
	if n := log.count("worker pauses"); n != 1 {
		t.Errorf("told %d times", n)
	}
	proxy.SetFault(func(int, *http.Request) faultproxy.HTTPFault { return faultproxy.HTTPFault{} })
	log.await(t, "worker goes on with=object store")
	handbacks := 0
	for _, id := range ids {
		handbacks += len(s.check(id, "30"))
	}
	// Two slots had taken one work each before the first knew.
	if handbacks < 1 || handbacks > 4 {
		t.Errorf("%d works were handed back", handbacks)
	}
	if code := ready(); code != http.StatusOK {
		t.Errorf("ready again: %d", code)
	}
}

// What took long to make is kept while the store takes nothing, rather than
// made again.
func TestResultIsKeptWhileTheStoreIsAway(t *testing.T) {
	s := newSite(t)
	proxy, e := s.proxy()
	log, _ := s.hire(worker.Config{Endpoints: e, ID: "w1"})
	a := s.put(clip(t, 1, "320x240"), "video/mp4")
	refused := map[string]int{}
	proxy.SetFault(func(_ int, r *http.Request) faultproxy.HTTPFault {
		kind := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		if faultproxy.Operation(r) != "put" || refused[kind] >= 5 || strings.HasPrefix(kind, "2-") {
			return faultproxy.HTTPFault{}
		}
		refused[kind]++
		return faultproxy.SlowDown()
	})
	id := s.ask(a, "draft")
	if handbacks := s.check(id, "30"); len(handbacks) > 0 {
		t.Errorf("handed back: %+v", handbacks)
	}
	if proxy.Faults() != 15 { // video, sound, and the whole
		t.Errorf("%d puts were refused: %v", proxy.Faults(), refused)
	}
	if log.count("worker pauses without=object store") == 0 {
		t.Error("the worker did not say that it pauses")
	}
}

// A worker that is set up wrongly says which setting it is, and harms no
// render.
func TestWorkerWithWrongSettings(t *testing.T) {
	s := newSite(t)
	_, stop := s.hire(worker.Config{Endpoints: s.share.Endpoints, ID: "w0"})
	a := s.put(clip(t, 1, "320x240"), "video/mp4")
	stop()
	for name, c := range map[string]struct {
		change func(*blob.Config)
		want   string
	}{
		"secret": {func(c *blob.Config) { c.SecretKey = "wrong" }, "s3-secret-key"},
		"key":    {func(c *blob.Config) { c.AccessKey = "wrong" }, "s3-access-key"},
		"bucket": {func(c *blob.Config) { c.Bucket = "no-such-bucket" }, "s3-bucket"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &site{line: &line{Farm: s.Farm, tenant: s.tenant, t: t}, share: s.share, stores: s.stores}
			wrong := s.share.Endpoints
			c.change(&wrong.S3)
			wrong.S3.CreateBucket = false
			log, _ := s.hire(worker.Config{Endpoints: wrong, ID: "w1"})
			id := s.ask(a, "draft")
			if line := log.await(t, "worker pauses without=object store"); !strings.Contains(line, c.want) {
				t.Errorf("the log does not name %s: %s", c.want, line)
			}
			s.hire(worker.Config{Endpoints: s.share.Endpoints, ID: "w2"})
			if handbacks := s.check(id, "30"); len(handbacks) == 0 {
				t.Error("the wrong worker took nothing")
			}
		})
	}
}

// noisy makes a source that no encoder makes small.
func noisy(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "noise.mp4")
	run(t, "ffmpeg", "-v", "error", "-f", "lavfi", "-i", "color=gray:size=320x240:rate=30:duration=1", "-vf", "noise=alls=100:allf=t+u",
		"-c:v", "libx264", "-preset", "ultrafast", "-crf", "30", "-pix_fmt", "yuv420p", file)
	return file
}

// A disk that is full, or too small, is no fault of the render: another worker
// makes it, and no cut video is ever stored.
func TestFullScratch(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small file system; TestFileTooLong of the worker tests the same by a limit")
	}
	s := newSite(t)
	_, stop := s.hire(worker.Config{Endpoints: s.share.Endpoints, ID: "w0"})
	file := noisy(t)
	a := s.put(file, "video/mp4")
	stop()
	// What the segment is expected to need beside its source; the real thing
	// needs several times as much.
	expected := 30 * 960 * 720 / 50
	for name, c := range map[string]struct {
		size int64 // of the file system
		free int64 // that the worker wants
		says string
	}{
		"fills up":          {a.Object.Size + int64(expected) + 200<<10, 1, "stage ended without a result error=render_failed: A worker"},
		"no room for this":  {a.Object.Size, 1, "stage ended without a result error=render_failed: A worker"},
		"no room for a job": {1 << 20, 1 << 30, "scratch-free"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &site{line: &line{Farm: s.Farm, tenant: s.tenant, t: t}, share: s.share, stores: s.stores}
			dir := t.TempDir()
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", c.size)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := syscall.Unmount(dir, 0); err != nil {
					t.Error(err)
				}
			})
			log, stop := s.hire(worker.Config{Endpoints: s.share.Endpoints, ID: "w1", Slots: 1, ScratchDir: dir, ScratchFree: c.free})
			id := s.ask(a, "high")
			log.await(t, c.says)
			log.await(t, "worker pauses without=scratch space")
			jobs, err := filepath.Glob(filepath.Join(dir, "*", "job-*", "*"))
			if err != nil || len(jobs) > 0 {
				t.Errorf("files are left: %q, %v", jobs, err)
			}
			stop()
			s.hire(worker.Config{Endpoints: s.share.Endpoints, ID: "w2"})
			for _, h := range s.check(id, "30") {
				if !strings.Contains(h.Reason, "scratch: not enough space") && h.Reason != "the worker stops" {
					t.Errorf("handed back because of %s", h.Reason)
				}
			}
		})
	}
}

// The gateway says that the store is away, keeps nothing of an upload that it
// did not take, and never ends a body early as if that were all.
func TestGatewayBeforeAFailingStore(t *testing.T) {
	s := newSite(t)
	proxy, e := s.proxy()
	base, _ := startGateway(t, embeddedtest.Farm{Endpoints: e})
	body := bytes.Repeat([]byte("0123456789abcdef"), 50_000) // 800 KB
	post := func() (int, http.Header, map[string]any) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/v1/assets", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := errors.Join(json.NewDecoder(res.Body).Decode(&v), res.Body.Close()); err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, res.Header, v
	}
	for name, f := range map[string]faultproxy.HTTPFault{
		"slow down":   faultproxy.SlowDown(),
		"unreachable": {CutRequest: -1},
		"cut":         {CutRequest: 300_000},
		"denied":      {Status: http.StatusForbidden, Body: "<Error><Code>AccessDenied</Code></Error>"},
	} {
		proxy.SetFault(func(int, *http.Request) faultproxy.HTTPFault { return f })
		status, header, v := post()
		if status != http.StatusServiceUnavailable || v["code"] != "unavailable" || v["temporary"] != true || v["retry_after_ms"] == nil || header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %v %v", name, status, header, v)
		}
		if text := fmt.Sprint(v); strings.Contains(text, "s3-") || strings.Contains(text, "127.0.0.1") {
			t.Errorf("%s: a client is told %s", name, text)
		}
	}
	for info, err := range s.stores.Blobs.List(t.Context(), "") {
		t.Errorf("%s is left, %v", info.Key, err)
	}

	// A finished render, of which the video is served through the proxy.
	proxy.SetFault(func(int, *http.Request) faultproxy.HTTPFault { return faultproxy.HTTPFault{} })
	_, stop := s.hire(worker.Config{Endpoints: s.share.Endpoints, ID: "w1"})
	v, _, err := s.Submit(t.Context(), render.LocalTenant, farm.Submission{Request: render.Request{
		SourceAssetURI: s.putAs(render.LocalTenant, noisy(t)).ID.URI(), OutputFormat: "mp4", Resolution: "720p"}})
	if err != nil {
		t.Fatal(err)
	}
	s.tenant = render.LocalTenant
	size := s.until(v.Record.ID, render.StateSucceeded).Record.Output.Object.Size
	stop()
	fetch := func(headers ...string) (int, int64, []byte, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/v1/renders/"+string(v.Record.ID)+"/video", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, 0, nil, err
		}
		defer func() { _ = res.Body.Close() }()
		data, err := io.ReadAll(res.Body)
		return res.StatusCode, res.ContentLength, data, err
	}
	status, _, whole, err := fetch()
	if status != http.StatusOK || err != nil || int64(len(whole)) != size || size < 400_000 {
		t.Fatalf("%d, %d of %d bytes, %v", status, len(whole), size, err)
	}
	for name, rng := range map[string]string{"whole": "", "range": "bytes=1000-350000"} {
		want := whole
		var headers []string
		if rng != "" {
			want, headers = whole[1000:350_001], []string{"Range", rng}
		}
		cuts := 0
		proxy.SetFault(func(int, *http.Request) faultproxy.HTTPFault {
			if cuts++; cuts > 3 {
				return faultproxy.HTTPFault{}
			}
			return faultproxy.HTTPFault{CutAnswer: 60_000}
		})
		if _, n, got, err := fetch(headers...); err != nil || n != int64(len(want)) || !bytes.Equal(got, want) || cuts < 4 {
			t.Errorf("%s, cut %d times: %d of %d bytes, or others, %v", name, cuts, len(got), len(want), err)
		}
		first := true
		proxy.SetFault(func(int, *http.Request) faultproxy.HTTPFault {
			if first {
				first = false
				return faultproxy.HTTPFault{CutAnswer: 60_000}
			}
			return faultproxy.SlowDown()
		})
		if _, n, got, err := fetch(headers...); !errors.Is(err, io.ErrUnexpectedEOF) || n != int64(len(want)) || len(got) >= len(want) || !bytes.HasPrefix(want, got) {
			t.Errorf("%s, cut for good: %d of %d bytes end with %v", name, len(got), n, err)
		}
	}
}

// putAs uploads a file of another tenant.
func (s *site) putAs(tenant render.Tenant, file string) *render.Asset {
	other := *s.line
	other.tenant = tenant
	return other.put(file, "video/mp4")
}
