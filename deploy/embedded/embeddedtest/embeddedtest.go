// Package embeddedtest lends embedded servers to tests. The servers are shared
// by all tests of a process that run at the same time, since the S3 among them
// exists once per process; each test has names of its own on them.
//
// While the servers run, the working directory of the process is not the test
// package's: open testdata by absolute paths, made beforehand.
package embeddedtest

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/embedded"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/progress"
)

// Farm is one test's share of the servers.
type Farm struct {
	// Endpoints name a bucket and a prefix that only this test uses.
	Endpoints farm.Endpoints
}

// running is the process's servers: they cannot be anybody else's.
var running struct {
	sync.Mutex
	users   int
	dir     string
	servers *embedded.Servers
}

// Servers starts the servers, unless another test has them running, and stops
// them when the last test that asked for them has ended.
func Servers(t testing.TB) Farm {
	t.Helper()
	running.Lock()
	defer running.Unlock()
	if running.users == 0 {
		start(t)
	}
	running.users++
	t.Cleanup(func() { leave(t) })
	name := rand.Text()
	e := running.servers.Endpoints()
	e.S3.Bucket = "test-" + strings.ToLower(name)
	e.Prefix = name
	return Farm{Endpoints: e}
}

func start(t testing.TB) {
	t.Helper()
	dir, err := os.MkdirTemp("", "vidforge-test-") //nolint:usetesting // outlives the test that makes it
	if err != nil {
		t.Fatal(err)
	}
	servers, err := embedded.Start(t.Context(), embedded.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	running.dir, running.servers = dir, servers
}

func leave(t testing.TB) {
	t.Helper()
	running.Lock()
	defer running.Unlock()
	if running.users--; running.users > 0 {
		return
	}
	if err := running.servers.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(running.dir); err != nil {
		t.Error(err)
	}
}

// Dial opens the stores under the test's names until the test ends. Every call
// makes connections of its own to the same data, as another process would.
func (f Farm) Dial(t testing.TB) *farm.Backends {
	t.Helper()
	b, err := farm.Dial(t.Context(), f.Endpoints, farm.DialOptions{
		Name:     t.Name(),
		Progress: progress.Config{Deadline: 10 * time.Second}, // a slow machine is no failure
	})
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
