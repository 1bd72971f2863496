package embedded_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os/exec"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/embedded"
	"github.com/vidforge/vidforge/pkg/progress"
	"github.com/vidforge/vidforge/pkg/progress/progresstest"
)

// TestProgress runs the suite on the embedded Redis, and on redis-server and
// valkey-server where they are installed.
func TestProgress(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		progresstest.Run(t, func(t *testing.T) string {
			s, err := embedded.StartRedis(t.Context(), embedded.RedisOptions{Password: "secret"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Shutdown)
			return s.URL()
		})
	})
	for _, name := range []string{"redis-server", "valkey-server"} {
		binary, err := exec.LookPath(name)
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			progresstest.Run(t, func(t *testing.T) string { return serveRedis(t, binary) })
		})
	}
}

// serveRedis runs a server until the test ends.
func serveRedis(t *testing.T, binary string) string {
	t.Helper()
	for range 5 { // a free port may be taken by another before the server has it
		if url, ok := tryRedis(t, binary); ok {
			return url
		}
	}
	t.Fatalf("%s does not start", binary)
	return ""
}

func tryRedis(t *testing.T, binary string) (string, bool) {
	t.Helper()
	const password = "secret"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_, port, err := net.SplitHostPort(addr)
	if err := errors.Join(err, l.Close()); err != nil {
		t.Fatal(err)
	}
	ctx, kill := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, binary, "--bind", "127.0.0.1", "--port", port, "--requirepass", password, "--save", "", "--dir", t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // killed
	}()
	t.Cleanup(func() {
		kill()
		<-exited
	})
	u := url.URL{Scheme: "redis", User: url.UserPassword("", password), Host: addr}
	client, err := progress.Connect(u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}()
	for tick := time.Tick(5 * time.Millisecond); ; {
		if client.Ping(ctx).Err() == nil {
			return u.String(), true
		}
		select {
		case <-exited:
			return "", false
		case <-tick:
		}
	}
}
