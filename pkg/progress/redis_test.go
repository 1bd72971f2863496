package progress

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/sony/gobreaker/v2"

	"github.com/vidforge/vidforge/pkg/render"
)

// A hanging Redis costs the deadline for a few calls, and nothing afterwards
// but one call a cooldown.
func TestWhatAHangingRedisCosts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var dials int
		var ends []net.Conn
		client := redis.NewClient(&redis.Options{
			ContextTimeoutEnabled: true, MaxRetries: 1, DialerRetries: 1, PipelinePoolSize: -1, DisableIdentity: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				dials++
				near, far := net.Pipe()
				ends = append(ends, far)
				go func() { _, _ = io.Copy(io.Discard, far) }() // takes everything, answers nothing
				return near, nil
			},
		})
		b, err := Open(t.Context(), client, Config{Deadline: 250 * time.Millisecond, Failures: 3, Cooldown: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		id := render.NewID()
		calls := map[string]func(){
			"report": func() {
				_ = b.Report(t.Context(), render.Sample{Work: render.Work{Tenant: "t", Task: id, Generation: 1, Stage: render.StageSegment}})
			},
			"live":    func() { b.Live(t.Context(), id) },
			"beat":    func() { _ = b.Beat(t.Context(), Worker{ID: "w"}) },
			"workers": func() { _, _ = b.Workers(t.Context()) },
			"allow":   func() { b.Allow(t.Context(), "t", "call", 1, 1, 1) },
			"ping":    func() { _ = b.Ping(t.Context()) },
		}
		cost := func(call func()) time.Duration {
			start := time.Now()
			call()
			return time.Since(start)
		}
		for range 3 {
			if d := cost(calls["report"]); d != 250*time.Millisecond {
				t.Errorf("report took %s", d)
			}
		}
		for range 3 {
			if b.breaker.State() != gobreaker.StateOpen {
				t.Fatal("the breaker is not open")
			}
			before := dials
			for name, call := range calls {
				if d := cost(call); d != 0 {
					t.Errorf("%s took %s while the breaker is open", name, d)
				}
			}
			if dials != before {
				t.Errorf("%d dials while the breaker is open", dials-before)
			}
			time.Sleep(2*time.Second + time.Millisecond)
			for name, call := range calls { // one of them tries
				if d := cost(call); d != 0 && d != 250*time.Millisecond {
					t.Errorf("%s took %s", name, d)
				}
			}
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		for _, c := range ends {
			_ = c.Close()
		}
	})
}

// A caller that leaves says nothing about Redis.
func TestCallersThatLeaveOpenNoBreaker(t *testing.T) {
	t.Parallel()
	client, err := Connect("redis://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	b, err := Open(t.Context(), client, Config{Failures: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		if err := b.Ping(gone); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	}
	if s := b.breaker.State(); s != gobreaker.StateClosed {
		t.Errorf("the breaker is %s", s)
	}
	if err := b.Ping(t.Context()); err == nil || b.breaker.State() != gobreaker.StateOpen {
		t.Errorf("error %v, breaker %s", err, b.breaker.State())
	}
}

func TestConnect(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://:pw@host:6379/2":                              "client",
		"rediss://user:pw@host:6379":                           "client",
		"redis://host:6379?addr=b:6379&addr=c:6379":            "cluster",
		"redis://host:26379?master_name=farm&addr=other:26379": "client",
		"unix:///run/redis.sock":                               "",
		"http://host:1":                                        "",
		"redis://:sec%zzret@host":                              "",
		"redis://host:6379/notanumber":                         "",
		"redis://host:6379?no_such_option=1":                   "",
	} {
		c, err := Connect(url)
		if want == "" {
			if err == nil {
				t.Errorf("%s: accepted", url)
			} else if strings.Contains(err.Error(), "sec") {
				t.Errorf("the error tells the password: %v", err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		var got string
		switch c := c.(type) {
		case *redis.Client:
			got = "client"
			if o := c.Options(); !o.ContextTimeoutEnabled {
				t.Errorf("%s: options %+v", url, o)
			}
		case *redis.ClusterClient:
			got = "cluster"
			if o := c.Options(); !o.ContextTimeoutEnabled || len(o.Addrs) != 3 {
				t.Errorf("%s: options %+v", url, o)
			}
		}
		if got != want {
			t.Errorf("%s: %T", url, c)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestConnectRefuses(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]Endpoint{
		"credentials twice":      {URL: "redis://:pw@host:1", Access: Access{Password: "pw"}},
		"password twice":         {URL: "redis://host:1", Access: Access{Password: "pw", PasswordFile: "file"}},
		"user without password":  {URL: "redis://host:1", Access: Access{User: "user"}},
		"no password file":       {URL: "redis://host:1", Access: Access{PasswordFile: "/does/not/exist"}},
		"authority without TLS":  {URL: "redis://host:1", Access: Access{CAFile: "file"}},
		"no authority file":      {URL: "rediss://host:1", Access: Access{CAFile: "/does/not/exist"}},
		"key without":            {URL: "rediss://host:1", Access: Access{KeyFile: "file"}},
		"unverified certificate": {URL: "rediss://host:1?skip_verify=true"},
	} {
		if c, err := e.Connect(); err == nil {
			t.Errorf("%s: taken", name)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	deaf := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	good, err := Connect("redis://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(deaf.Close(), good.Close()); err != nil {
			t.Error(err)
		}
	})
	if _, err := Open(t.Context(), deaf, Config{}); err == nil {
		t.Error("a client that does not obey deadlines was taken")
	}
	if _, err := Open(t.Context(), good, Config{Deadline: -1}); err == nil {
		t.Error("a negative deadline was taken")
	}
}
