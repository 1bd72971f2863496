package embedded_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/embedded"
	"github.com/vidforge/vidforge/deploy/embedded/embeddedtest"
	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/progress"
	"github.com/vidforge/vidforge/pkg/render"
)

// childDir tells the test binary to be a farm in that directory until it is
// killed.
const childDir = "VIDFORGE_TEST_EMBEDDED_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// child writes to the stores, says so, and waits for its end.
func child(dir string) error {
	ctx := context.Background()
	servers, err := embedded.Start(ctx, embedded.Options{Dir: dir})
	if err != nil {
		return err
	}
	stores, err := farm.Dial(ctx, servers.Endpoints(), farm.DialOptions{})
	if err != nil {
		return err
	}
	if err := write(ctx, stores); err != nil {
		return err
	}
	fmt.Println("written")
	select {}
}

const (
	keptObject = "kept/object"
	keptRender = render.ID("task_aaaaaaaaaaaaaaaaaaaaaaaaaa")
)

func keptBytes() []byte { return bytes.Repeat([]byte("0123456789"), 1<<20) } // two parts

func write(ctx context.Context, stores *farm.Backends) error {
	_, err := stores.Blobs.Put(ctx, keptObject, bytes.NewReader(keptBytes()), blob.PutOptions{Size: -1})
	if err != nil {
		return err
	}
	rec := &render.Record{ID: keptRender, Tenant: render.LocalTenant, State: render.StateQueued, Step: render.StepPlan}
	_, err = stores.Ledger.CreateRender(ctx, rec)
	return err
}

func check(t *testing.T, stores *farm.Backends) {
	t.Helper()
	o, err := stores.Blobs.Stat(t.Context(), keptObject)
	if err != nil {
		t.Fatal(err)
	}
	r, err := stores.Blobs.Get(t.Context(), keptObject, blob.GetOptions{ETag: o.ETag})
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, keptBytes()) {
		t.Errorf("object: %d bytes, or others, %v", len(got), err)
	}
	if _, err := stores.Ledger.GetRender(t.Context(), render.LocalTenant, keptRender); err != nil {
		t.Errorf("render: %v", err)
	}
	if err := stores.Progress.Ping(t.Context()); err != nil {
		t.Errorf("progress: %v", err)
	}
}

func start(t *testing.T, dir string) *embedded.Servers {
	t.Helper()
	s, err := embedded.Start(t.Context(), embedded.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func dial(t *testing.T, e farm.Endpoints) *farm.Backends {
	t.Helper()
	b, err := farm.Dial(t.Context(), e, farm.DialOptions{
		Name:     t.Name(),
		Progress: progress.Config{Deadline: 10 * time.Second}, // a slow machine is no failure
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func stop(t *testing.T, stores *farm.Backends, servers *embedded.Servers) {
	t.Helper()
	if err := errors.Join(stores.Close(), servers.Close(t.Context())); err != nil {
		t.Error(err)
	}
}

// The tests that start servers of their own are not parallel: there is one S3 a
// process.

func TestRestartFindsEverything(t *testing.T) {
	cwd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "new", "data")
	for _, sidecar := range []bool{false, true} {
		if sidecar { // what a file system without extended attributes gets
			dir = t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, "s3", "metadata"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		servers := start(t, dir)
		first := servers.Endpoints()
		stores := dial(t, first)
		if err := write(t.Context(), stores); err != nil {
			t.Fatal(err)
		}
		stop(t, stores, servers)

		servers = start(t, dir)
		stores = dial(t, servers.Endpoints())
		check(t, stores)
		if s3 := servers.Endpoints().S3; s3.AccessKey != first.S3.AccessKey || s3.SecretKey != first.S3.SecretKey {
			t.Error("other credentials")
		}
		stop(t, stores, servers)
		if entries, err := os.ReadDir(filepath.Join(dir, "s3", "metadata")); sidecar != (err == nil && len(entries) > 0) {
			t.Errorf("sidecar %v: %d entries, %v", sidecar, len(entries), err)
		}
	}
	if now, err := os.Getwd(); err != nil || now != cwd {
		t.Errorf("the working directory is %s, %v", now, err)
	}
}

func TestKilledServersLoseNothing(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadFull(out, make([]byte, len("written\n")))
	if err := errors.Join(err, cmd.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the child ended by itself")
	}
	servers := start(t, dir)
	stores := dial(t, servers.Endpoints())
	check(t, stores)
	stop(t, stores, servers)
}

func TestSecretsAreTheOwners(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	servers := start(t, dir)
	e := servers.Endpoints()
	if err := servers.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for path, want := range map[string]fs.FileMode{"": 0o700 | fs.ModeDir, "credentials.json": 0o600, "s3/buckets": 0o700 | fs.ModeDir} {
		if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Mode() != want {
			t.Errorf("%q: %v, %v, not %v", path, info, err, want)
		}
	}
	for _, url := range []string{e.NATSURL, e.RedisURL} {
		if !strings.Contains(url, "@127.0.0.1:") {
			t.Error("a server without a password, or not on loopback")
		}
	}
	if !strings.HasPrefix(e.S3.Endpoint, "http://127.0.0.1:") {
		t.Error(e.S3.Endpoint)
	}

	if err := os.WriteFile(filepath.Join(dir, "credentials.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.Start(t.Context(), embedded.Options{Dir: dir}); err == nil {
		t.Error("started with empty credentials")
	}
}

// Standard output may carry a protocol.
func TestNothingIsPrinted(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdout
	os.Stdout = write
	defer func() { os.Stdout = before }()
	for _, sidecar := range []bool{false, true} {
		dir := t.TempDir()
		if sidecar {
			if err := os.MkdirAll(filepath.Join(dir, "s3", "metadata"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		servers := start(t, dir)
		stores := dial(t, servers.Endpoints())
		_, err := stores.Blobs.Put(t.Context(), "key", strings.NewReader("x"), blob.PutOptions{Size: -1})
		if err != nil {
			t.Error(err)
		}
		stop(t, stores, servers)
	}
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(read); err != nil || len(got) > 0 {
		t.Errorf("printed %q, %v", got, err)
	}
}

func TestSecondStartLeavesTheFirstAlone(t *testing.T) {
	servers := start(t, t.TempDir())
	stores := dial(t, servers.Endpoints())
	if _, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir()}); err == nil {
		t.Error("two S3 in one process")
	}
	if err := write(t.Context(), stores); err != nil {
		t.Error(err)
	}
	check(t, stores)
	stop(t, stores, servers)
}

func TestTestsDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	one, two := embeddedtest.Servers(t), embeddedtest.Servers(t)
	if err := write(t.Context(), one.Dial(t)); err != nil {
		t.Fatal(err)
	}
	check(t, one.Dial(t)) // as another process of the same farm
	other := two.Dial(t)
	if _, err := other.Blobs.Stat(t.Context(), keptObject); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("object of another: %v", err)
	}
	if _, err := other.Ledger.GetRender(t.Context(), render.LocalTenant, keptRender); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("render of another: %v", err)
	}
}
