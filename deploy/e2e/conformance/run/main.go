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

// The suite itself skips this one: its harness has no subscriptions/listen.
const skippedBySuite = "tasks-status-notifications"

// part is a part of the suite, with what the pinned suite has of it. Change the
// numbers together with the pin, never to make a run pass.
type part struct {
	name string
	args []string
	all  tally
	// tasks are those of all that concern the extension.
	tasks tally
}

func parts() []part {
	return []part{
		{name: "requirements of 2026-07-28", args: []string{"--requirements", "2026-07-28"}, all: passing(50, 197), tasks: passing(10, 44)},
		// Tasks of 2025-11-25 were experimental; the suite has none of them.
		{name: "active suite of 2025-11-25", args: []string{"--suite", "active", "--spec-version", "2025-11-25"}, all: passing(31, 73)},
	}
}

func passing(scenarios, checks int) tally { return tally{scenarios, checks, checks} }

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
	for _, p := range parts() {
		err = errors.Join(err, p.run(ctx, dir, url, verbose))
	}
	return errors.Join(err, runClient(ctx, dir, url))
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

// run holds the server against this part of the suite.
func (p part) run(ctx context.Context, dir, url string, verbose bool) error {
	out, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return fmt.Errorf("make a folder for results: %w", err)
	}
	defer func() { _ = os.RemoveAll(out) }()
	args := append([]string{"node_modules/@modelcontextprotocol/conformance/dist/index.js", "server", "--url", url, "--output-dir", out}, p.args...)
	log, suiteErr := npm.Node(ctx, dir, args...).CombinedOutput()
	got, err := readResults(out)
	if err != nil {
		return errors.Join(suiteErr, err)
	}
	if verbose {
		for _, s := range got.scenarios {
			fmt.Println("  " + s)
		}
	}
	fmt.Printf("suite, %s: %d scenarios, %d of %d checks passed\n", p.name, got.all.scenarios, got.all.passed, got.all.checks)
	if p.tasks.scenarios > 0 {
		fmt.Printf("suite, tasks: %d scenarios, %d of %d checks passed, %s skipped by the suite\n",
			got.tasks.scenarios, got.tasks.passed, got.tasks.checks, skippedBySuite)
	}
	switch {
	case len(got.failures) > 0:
		return fmt.Errorf("failed checks of the %s:\n%s", p.name, strings.Join(got.failures, "\n"))
	case got.all != p.all, got.tasks != p.tasks:
		return fmt.Errorf("the %s has %d scenarios with %d checks, of tasks %d with %d\n%s",
			p.name, p.all.scenarios, p.all.checks, p.tasks.scenarios, p.tasks.checks, bytes.TrimSpace(log))
	case suiteErr != nil:
		return fmt.Errorf("suite, %s: %w\n%s", p.name, suiteErr, bytes.TrimSpace(log))
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
