package servers

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/farm"
)

// Servers are one of each.
type Servers struct {
	NATS  *NATS
	Redis *Redis
	S3    *S3
}

// Start starts a nats-server, a redis-server and a versitygw, for the test and
// its subtests.
func Start(t testing.TB) *Servers {
	t.Helper()
	return &Servers{NATS: StartNATS(t, NATSOptions{}), Redis: StartRedis(t, RedisOptions{}), S3: StartS3(t, S3Options{})}
}

// Endpoints are the servers with a prefix and a bucket that nobody else uses.
func (s *Servers) Endpoints() farm.Endpoints {
	name := rand.Text()
	return farm.Endpoints{
		NATSURL:  s.NATS.URL,
		RedisURL: s.Redis.URL,
		S3:       s.S3.Config("test-" + strings.ToLower(name)),
		Prefix:   name,
	}
}

// Dial opens the stores until the test ends. Every call makes connections of
// its own, as another process would.
func Dial(t testing.TB, e farm.Endpoints, o farm.DialOptions) *farm.Backends {
	t.Helper()
	if o.Name == "" {
		o.Name = t.Name()
	}
	// A slow machine is no failure.
	o.Ledger.Timeout = cmp.Or(o.Ledger.Timeout, 20*time.Second)
	o.Progress.Deadline = cmp.Or(o.Progress.Deadline, 10*time.Second)
	b, err := farm.Dial(t.Context(), e, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func httpOK(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("ask for health: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("ask for health: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("ask for health: %s", resp.Status)
	}
	return nil
}

func getJSON(t testing.TB, url string, v any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		t.Fatalf("read %s: %v", url, err)
	}
}
