package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/vidforge/vidforge/deploy/vidforge/internal/client"
	"github.com/vidforge/vidforge/deploy/vidforge/internal/local"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker"
)

// TestWrongCalls checks that nothing is begun for a call that is wrong.
func TestWrongCalls(t *testing.T) {
	t.Parallel()
	id := fakeTask
	tests := []struct {
		name string
		args []string // IN, OUT and DIR stand for paths
		want int
		says string
	}{
		{"no command shows help", nil, ExitOK, ""},
		{"unknown command", []string{"rendr"}, ExitUsage, "unknown command"},
		{"unknown flag", []string{"render", "IN", "-o", "OUT", "--loud"}, ExitUsage, "--loud"},
		{"no file", []string{"render", "-o", "OUT"}, ExitUsage, "arg"},
		{"no output", []string{"render", "IN"}, ExitUsage, "output"},
		{"missing file", []string{"render", "DIR/none.mov", "-o", "OUT"}, ExitUsage, "none.mov"},
		{"folder as file", []string{"render", "DIR", "-o", "OUT"}, ExitUsage, "not a regular file"},
		{"missing folder of the output", []string{"render", "IN", "-o", "DIR/none/out.mp4"}, ExitUsage, "none"},
		{"output exists", []string{"render", "IN", "-o", "DIR/there.mp4"}, ExitUsage, "--force"},
		{"two watermarks", []string{"render", "IN", "-o", "OUT", "--watermark-text", "x", "--watermark-image", "IN", "--approve"}, ExitUsage, "watermark-image"},
		{"missing logo", []string{"render", "IN", "-o", "OUT", "--watermark-image", "DIR/none.png", "--approve"}, ExitUsage, "none.png"},
		{"position of nothing", []string{"render", "IN", "-o", "OUT", "--position", "center"}, ExitUsage, "--watermark-text"},
		{"opacity of nothing", []string{"render", "IN", "-o", "OUT", "--opacity", "1"}, ExitUsage, "--watermark-text"},
		{"preview of nothing", []string{"render", "IN", "-o", "OUT", "--preview-out", "DIR/p.png"}, ExitUsage, "--watermark-text"},
		{"preview without approval", []string{"render", "IN", "-o", "OUT", "--watermark-text", "x", "--no-approval", "--preview-out", "DIR/p.png"}, ExitUsage, "--no-approval"},
		{"approve and no approval", []string{"render", "IN", "-o", "OUT", "--watermark-text", "x", "--no-approval", "--approve"}, ExitUsage, "no-approval"},
		{"nobody to ask", []string{"render", "IN", "-o", "OUT", "--watermark-text", "x"}, ExitUnapproved, "--approve"},
		{"server that is no URL", []string{"render", "IN", "-o", "OUT", "--server", "localhost:8080"}, ExitUsage, "http://host:port"},
		{"negative workers", []string{"render", "IN", "-o", "OUT", "--workers", "-1"}, ExitUsage, "--workers"},
		{"negative workers of up", []string{"up", "--data-dir", "DIR/data", "--workers", "-1"}, ExitUsage, "--workers"},
		{"wrong log level", []string{"up", "--data-dir", "DIR/data", "--log-level", "loud"}, ExitUsage, "--log-level"},
		{"status of no id", []string{"status", "task_*"}, ExitUsage, "render id"},
		{"cancel of two", []string{"cancel", id, id}, ExitUsage, "arg"},
		{"no farm there", []string{"status", id, "--data-dir", "DIR"}, ExitUsage, "vidforge up"},
		{"nobody listens", []string{"status", id, "--server", "http://127.0.0.1:1"}, ExitUnreachable, "not reachable"},
		{"cancel, nobody listens", []string{"cancel", id, "--server", "http://127.0.0.1:1"}, ExitUnreachable, "not reachable"},
		{"sweep of no farm", []string{"sweep", "--data-dir", "DIR/none"}, ExitError, "no farm"},
		{"sweep of two farms", []string{"sweep", "--data-dir", "DIR", "--nats-url", "nats://127.0.0.1:1"}, ExitUsage, "nats-url"},
		{"sweep of everything", []string{"sweep", "--data-dir", "DIR", "--orphan-age", "0s"}, ExitUsage, "--orphan-age"},
		{"roles of no server", []string{"roles"}, ExitUsage, "format"},
		{"roles of an unknown server", []string{"roles", "--format", "mysql"}, ExitUsage, "nats, redis or s3"},
		{"role with a name that is configuration", []string{"roles", "--format", "nats", "--worker", "x } }"}, ExitUsage, "user name"},
		{"delete no asset", []string{"assets", "rm", "a_>"}, ExitUsage, "no asset"},
		{"key without tenant", []string{"keys", "new", "--file", "DIR/keys.yaml"}, ExitUsage, "tenant"},
		{"key with unknown scope", []string{"keys", "new", "--file", "DIR/keys.yaml", "--tenant", "t", "--scope", "all"}, ExitUsage, "scope"},
		{"revoke an unknown key", []string{"keys", "revoke", "--file", "DIR/keys.yaml", "abcdefghij"}, ExitError, "no such key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			paths := strings.NewReplacer("IN", b.path("in.mov"), "OUT", b.path("out.mp4"), "DIR", b.dir)
			var args []string
			for _, a := range tt.args {
				args = append(args, paths.Replace(a))
			}
			if got := b.run(t.Context(), args...); got != tt.want {
				t.Errorf("exit code %d, want %d", got, tt.want)
			}
			if !strings.Contains(b.stderr.String(), tt.says) {
				t.Errorf("said %q, want %q in it", b.stderr.String(), tt.says)
			}
			b.noLeftovers(t)
		})
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for _, c := range render.Catalogue() {
		// Every code of the farm has a decided exit code; these have none of
		// their own.
		general := map[render.Code]bool{
			render.CodeAssetNotReady: true, render.CodeRenderQuotaExceeded: true, render.CodeRateLimited: true,
			render.CodeApprovalAlreadyRecorded: true, render.CodeApprovalNotPending: true, render.CodeMissingClientCapability: true,
			render.CodeResourceNotReady: true, render.CodeInternalError: true,
		}[c.Code]
		if got := exitCodeOf(c.Code); (got == ExitError) != general {
			t.Errorf("%s: exit code %d", c.Code, got)
		}
	}
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, ExitOK},
		{errors.New("x"), ExitError},
		{errMissing, ExitError},
		{usageError{errors.New("x")}, ExitUsage},
		{usageError{errUnapproved}, ExitUnapproved},
		{fmt.Errorf("x: %w", context.Canceled), ExitCancelled},
		{fmt.Errorf("x: %w", client.ErrUnreachable), ExitUnreachable},
		{errors.Join(errors.New("x"), &local.InUseError{}), ExitInUse},
		{fmt.Errorf("x: %w", render.Errorf(render.CodeWatermarkRejected, render.BlameCaller, "x")), ExitRejected},
	} {
		if got := ExitCode(tt.err); got != tt.want {
			t.Errorf("%v: exit code %d, want %d", tt.err, got, tt.want)
		}
		if !strings.Contains(exitCodes, fmt.Sprintf("\n  %2d  ", tt.want)) {
			t.Errorf("exit code %d is not documented", tt.want)
		}
	}
}

func TestFlagsFromTheEnvironment(t *testing.T) {
	t.Parallel()
	env := map[string]string{"VIDFORGE_DATA_DIR": "/env", "VIDFORGE_API_KEY": "s3cret", "VIDFORGE_WORKERS": "3"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	flags := func() *pflag.FlagSet {
		a := &app{}
		cmd := a.render()
		return cmd.Flags()
	}
	t.Run("set", func(t *testing.T) {
		t.Parallel()
		f := flags()
		if err := fromEnvironment(f, lookup); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"data-dir": "/env", "api-key": "s3cret", "workers": "3"} {
			if got := f.Lookup(name).Value.String(); got != want {
				t.Errorf("--%s is %q, want %q", name, got, want)
			}
		}
	})
	t.Run("flags come first", func(t *testing.T) {
		t.Parallel()
		f := flags()
		if err := f.Parse([]string{"--data-dir", "/flag", "--api-key-file", "/key"}); err != nil {
			t.Fatal(err)
		}
		if err := fromEnvironment(f, lookup); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"data-dir": "/flag", "api-key": ""} {
			if got := f.Lookup(name).Value.String(); got != want {
				t.Errorf("--%s is %q, want %q", name, got, want)
			}
		}
	})
	t.Run("a wrong value is named, not shown", func(t *testing.T) {
		t.Parallel()
		err := fromEnvironment(flags(), func(name string) (string, bool) { return "s3cret", name == "VIDFORGE_WORKERS" })
		if err == nil || !strings.Contains(err.Error(), "VIDFORGE_WORKERS") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("error %v", err)
		}
	})
}

func TestVerdictOfDoctor(t *testing.T) {
	t.Parallel()
	var out output
	a := &app{Streams: Streams{Out: &out}}
	fine := []worker.Check{{Name: "ffmpeg", Needed: true, OK: true}, {Name: "zscale", Fix: "install it"}}
	if err := verdict(fine); err != nil {
		t.Errorf("what is not needed counts: %v", err)
	}
	bad := slices.Concat(fine, []worker.Check{{Name: "server", Needed: true, Detail: "it is\x1b[2J away"}})
	if err := verdict(bad); ExitCode(err) != ExitError {
		t.Errorf("verdict %v", err)
	}
	if err := a.printChecks(bad); err != nil {
		t.Fatal(err)
	}
	want := "ok       ffmpeg  \nwarning  zscale  : install it\nMISSING  server  it is[2J away\n"
	if got := out.String(); got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	file := b.path("keys.yaml")
	if code := b.run(t.Context(), "keys", "new", "--file", file, "--tenant", "acme", "--scope", "render:write", "--scope", "asset:read", "--lifetime", "24h"); code != ExitOK {
		t.Fatal(b.stderr.String())
	}
	secret := strings.TrimSpace(b.stdout.String())
	content, err := os.ReadFile(file)
	if err != nil || secret == "" || strings.Contains(string(content), secret) {
		t.Fatalf("the file holds the key, or none was printed: %v", err)
	}
	b.stdout = output{}
	if code := b.run(t.Context(), "keys", "ls", "--file", file); code != ExitOK {
		t.Fatal(b.stderr.String())
	}
	if got := b.stdout.String(); !strings.Contains(got, "acme") || !strings.Contains(got, "render:write,asset:read") || strings.Contains(got, secret) {
		t.Errorf("listed %q", got)
	}
	b.stdout = output{}
	if code := b.run(t.Context(), "keys", "revoke", "--file", file, secret); code != ExitOK {
		t.Fatal(b.stderr.String())
	}
	if code := b.run(t.Context(), "keys", "ls", "--file", file, "--json"); code != ExitOK || strings.TrimSpace(b.stdout.String()) != "[]" {
		t.Errorf("exit code %d, listed %q", code, b.stdout.String())
	}
}
