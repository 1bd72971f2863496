package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/vidforge/vidforge/pkg/buildinfo"

	"github.com/vidforge/vidforge/deploy/vidforge/internal/client"
	"github.com/vidforge/vidforge/deploy/vidforge/internal/local"
	"github.com/vidforge/vidforge/worker"
)

func (a *app) doctor() *cobra.Command {
	var (
		conn   connection
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check what this machine has for rendering",
		Long: `Check what this machine has for rendering: ffmpeg, each encoder by trying it,
those of graphics devices too, fonts by drawing with them, the space for data, and the server that --server
names or that runs in the data directory.

` + exitCodes,
		Args: cobra.NoArgs,
		RunE: a.run(func(cmd *cobra.Command, _ []string) error {
			checks, err := conn.examine(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				err = a.printJSON(map[string]any{"version": buildinfo.Version(), "checks": checks})
			} else {
				err = a.printChecks(checks)
			}
			return errors.Join(err, verdict(checks))
		}),
	}
	conn.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (c *connection) examine(ctx context.Context) ([]worker.Check, error) {
	dir, err := filepath.Abs(cmp.Or(c.dataDir, defaultDataDir()))
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	checks, err := worker.Doctor(ctx, existing(dir), "")
	if err != nil {
		return nil, err
	}
	server := c.server
	if server == "" {
		farm, ok := local.Running(dir)
		if !ok {
			return append(checks, worker.Check{Name: "server", OK: true, Detail: "none is named and none runs in " + dir}), nil
		}
		server = farm.URL
		checks = append(checks, stores(ctx, farm.OpsURL))
	}
	check := worker.Check{Name: "server", Needed: true, Detail: server + " speaks MCP with tasks", Fix: "start it, or name another with --server"}
	cl, err := c.dial(server)
	if err != nil {
		return nil, err
	}
	defer func() { _ = cl.Close() }() // it only asked
	if _, err := cl.Connect(ctx); err != nil {
		check.Detail = printable(explain(err))
	} else {
		check.OK, check.Fix = true, ""
	}
	return append(checks, check), nil
}

// stores asks a farm on this machine for what it stands on.
func stores(ctx context.Context, opsURL string) worker.Check {
	check := worker.Check{Name: "stores", Needed: true, OK: true, Detail: "the farm at " + opsURL + " reaches its stores"}
	if err := client.Ready(ctx, opsURL); err != nil {
		check.OK, check.Detail, check.Fix = false, printable(err.Error()), "look at the log of 'vidforge up'"
	}
	return check
}

// existing is the nearest folder above path, or path itself, that exists: where
// the data directory will be made.
func existing(path string) string {
	for !isDir(path) && path != filepath.Dir(path) {
		path = filepath.Dir(path)
	}
	return path
}

// verdict is errMissing unless all that is needed is there.
func verdict(checks []worker.Check) error {
	for _, c := range checks {
		if c.Needed && !c.OK {
			return errMissing
		}
	}
	return nil
}

func (a *app) printChecks(checks []worker.Check) error {
	w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	for _, c := range checks {
		state := "ok"
		switch {
		case !c.OK && c.Needed:
			state = "MISSING"
		case !c.OK:
			state = "warning"
		}
		detail := c.Detail
		if c.Fix != "" {
			detail += ": " + c.Fix
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", state, c.Name, printable(detail)) // Flush tells
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}
