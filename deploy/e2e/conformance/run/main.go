// Command run holds the fixture server against the official MCP conformance
// suite and the official TypeScript client, both pinned by package-lock.json.
// It fails on any check that did not pass, and on any that is missing. It needs
// npm and, where it cannot fetch one for the platform, Node 22.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/vidforge/vidforge/deploy/e2e/conformance/fixture"
	"github.com/vidforge/vidforge/deploy/e2e/conformance/npm"
)

const (
	// What the pinned suite has. Change them together with the pin, never to
	// make a run pass.
	wantScenarios, wantChecks         = 50, 197
	wantTaskScenarios, wantTaskChecks = 10, 44
	// The suite itself skips this one: its harness has no subscriptions/listen.
	skippedBySuite = "tasks-status-notifications"

	revision = "2026-07-28"
)

func main() {
	dir := flag.String("dir", "deploy/e2e/conformance", "folder of package.json")
	verbose := flag.Bool("v", false, "list every scenario")
	flag.Parse()
	if err := run(*dir, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(dir string, verbose bool) (err error) {
	ctx, stopSignals := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stopSignals()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	if err := npm.Install(ctx, dir); err != nil {
		return err
	}
	url, stop, err := serve(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	return errors.Join(runSuite(ctx, dir, url, verbose), runClient(ctx, dir, url))
}

// serve runs the fixture on a free loopback port.
func serve(ctx context.Context) (url string, stop func() error, err error) {
	f, err := fixture.New()
	if err != nil {
		return "", nil, fmt.Errorf("start fixture: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("listen: %w", err), f.Close())
	}
	srv := &http.Server{Handler: f, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	return fmt.Sprintf("http://%s/mcp", l.Addr()), func() error {
		err := errors.Join(f.Close(), srv.Close())
		if e := <-served; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
		return err
	}, nil
}

func runSuite(ctx context.Context, dir, url string, verbose bool) error {
	out, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return fmt.Errorf("make a folder for results: %w", err)
	}
	defer func() { _ = os.RemoveAll(out) }()
	log, suiteErr := npm.Node(ctx, dir, "node_modules/@modelcontextprotocol/conformance/dist/index.js",
		"server", "--url", url, "--requirements", revision, "--output-dir", out).CombinedOutput()
	got, err := readResults(out)
	if err != nil {
		return errors.Join(suiteErr, err)
	}
	if verbose {
		for _, s := range got.scenarios {
			fmt.Println("  " + s)
		}
	}
	fmt.Printf("suite, requirements of %s: %d scenarios, %d of %d checks passed\n", revision, got.all.scenarios, got.all.passed, got.all.checks)
	fmt.Printf("suite, tasks: %d scenarios, %d of %d checks passed, %s skipped by the suite\n",
		got.tasks.scenarios, got.tasks.passed, got.tasks.checks, skippedBySuite)
	switch {
	case len(got.failures) > 0:
		return fmt.Errorf("failed checks:\n%s", strings.Join(got.failures, "\n"))
	case got.all != (tally{wantScenarios, wantChecks, wantChecks}), got.tasks != (tally{wantTaskScenarios, wantTaskChecks, wantTaskChecks}):
		return fmt.Errorf("want %d scenarios with %d checks, of tasks %d with %d\n%s",
			wantScenarios, wantChecks, wantTaskScenarios, wantTaskChecks, bytes.TrimSpace(log))
	case suiteErr != nil:
		return fmt.Errorf("suite: %w\n%s", suiteErr, bytes.TrimSpace(log))
	}
	return nil
}

type tally struct{ scenarios, checks, passed int }

type results struct {
	all, tasks tally
	scenarios  []string
	failures   []string
}

// readResults reads the folder per scenario that the suite leaves.
func readResults(dir string) (results, error) {
	var r results
	files, err := filepath.Glob(filepath.Join(dir, "*", "checks.json"))
	if err != nil {
		return r, fmt.Errorf("find results: %w", err)
	}
	slices.Sort(files)
	name := regexp.MustCompile(`^server-(.+)-\d{4}-\d{2}-\d{2}T`)
	for _, f := range files {
		m := name.FindStringSubmatch(filepath.Base(filepath.Dir(f)))
		if m == nil {
			return r, fmt.Errorf("unexpected result %s", f)
		}
		b, err := os.ReadFile(f)
		if err != nil {
			return r, fmt.Errorf("read results: %w", err)
		}
		var checks []struct {
			ID           string `json:"id"`
			Status       string `json:"status"`
			ErrorMessage string `json:"errorMessage"`
		}
		if err := json.Unmarshal(b, &checks); err != nil {
			return r, fmt.Errorf("read results of %s: %w", m[1], err)
		}
		t := tally{scenarios: 1}
		for _, c := range checks {
			if c.Status == "SKIPPED" && m[1] == skippedBySuite {
				continue
			}
			t.checks++
			if c.Status == "SUCCESS" {
				t.passed++
			} else {
				r.failures = append(r.failures, fmt.Sprintf("  %s: %s %s %s", m[1], c.Status, c.ID, c.ErrorMessage))
			}
		}
		r.scenarios = append(r.scenarios, fmt.Sprintf("%s: %d of %d", m[1], t.passed, t.checks))
		r.all = r.all.plus(t)
		if strings.HasPrefix(m[1], "tasks-") {
			r.tasks = r.tasks.plus(t)
		}
	}
	return r, nil
}

func (t tally) plus(u tally) tally {
	return tally{t.scenarios + u.scenarios, t.checks + u.checks, t.passed + u.passed}
}

func runClient(ctx context.Context, dir, url string) error {
	out, err := npm.Node(ctx, dir, "client.mjs", url).CombinedOutput()
	fmt.Printf("%s\n", bytes.TrimRight(out, "\n"))
	if err != nil {
		return fmt.Errorf("TypeScript client: %w", err)
	}
	return nil
}
