package ops

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestServer(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	stages := prometheus.NewCounter(prometheus.CounterOpts{Name: "stages_total", Help: "Stages."})
	registry.MustRegister(stages)
	stages.Add(3)
	s, err := Start(t.Context(), Options{Listen: "127.0.0.1:0", Registry: registry, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addr()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	if code, body := get("/readyz"); code != 503 || body != "starting\n" {
		t.Errorf("before it is ready: %d %q", code, body)
	}
	if code, _ := get("/healthz"); code != 200 {
		t.Errorf("health before it is ready: %d", code)
	}
	s.NotReady("waits for NATS")
	if code, body := get("/readyz"); code != 503 || body != "waits for NATS\n" {
		t.Errorf("while it waits: %d %q", code, body)
	}
	var broken error
	s.Ready(func(ctx context.Context) error {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("a check without a deadline")
		}
		return broken
	})
	if code, body := get("/readyz"); code != 200 || body != "ok\n" {
		t.Errorf("ready: %d %q", code, body)
	}
	broken = errors.New("nats://user:secret@host is gone")
	if code, body := get("/readyz"); code != 503 || strings.Contains(body, "secret") {
		t.Errorf("a failing check: %d %q", code, body)
	}
	if code, body := get("/metrics"); code != 200 || !strings.Contains(body, "stages_total 3") || !strings.Contains(body, "go_goroutines") {
		t.Errorf("metrics: %d %q", code, body)
	}
	if _, err := Start(t.Context(), Options{Listen: s.Addr()}); err == nil {
		t.Error("two servers listen on one address")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
