package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/vidforge/vidforge/deploy/vidforge/internal/local"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/settings"
)

func (a *app) sweep() *cobra.Command {
	var (
		o         farm.SweepOptions
		dataDir   string
		endpoints farm.Endpoints
		orphanAge time.Duration
		asJSON    bool
	)
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Delete what no render and no asset needs any more",
		Long: `Delete from the object store what no render and no asset needs any more: what
killed attempts left, the bytes of deleted and expired assets and renders, and
uploads that nobody finished. A running farm does this by itself once an hour;
this command is to look (--dry-run), or to go on after a sweep has stopped.

A sweep stops, and says so in the log, when

- the ledger is not the one that the bucket belongs to: it was made anew or
  restored from a copy, or the bucket is another. What looks unneeded may then be
  all that is left. --confirm-epoch takes them for a pair from now on;
- it would delete more than a fifth of everything. --allow-many allows it.

Look with --dry-run before either. The farm is the one in --data-dir, running or
not, or that of the servers which --nats-url, --s3-endpoint and their like name.

` + exitCodes,
		Args: cobra.NoArgs,
		RunE: a.run(func(cmd *cobra.Command, _ []string) error {
			log, err := a.logger(slog.LevelError)
			if err != nil {
				return err
			}
			if orphanAge <= 0 {
				return usageError{errors.New("--orphan-age must be positive")}
			}
			release := func() error { return nil }
			if !cmd.Flags().Changed("nats-url") {
				dir, err := filepath.Abs(cmp.Or(dataDir, defaultDataDir()))
				if err != nil {
					return fmt.Errorf("data directory: %w", err)
				}
				if endpoints, release, err = local.Stores(cmd.Context(), dir, log); err != nil {
					return err
				}
			}
			if o.DryRun && !asJSON {
				o.Found = func(i farm.SweepItem) { err = errors.Join(err, a.printf("%s\t%d\t%s", i.Class, i.Size, i.Key)) }
			}
			report, serr := a.runSweep(cmd.Context(), endpoints, orphanAge, o, log)
			if err = errors.Join(serr, err, release()); err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(report)
			}
			return a.showSweep(report)
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&o.DryRun, "dry-run", false, "list what would be deleted (class, bytes, key), and delete nothing")
	f.BoolVar(&o.ConfirmEpoch, "confirm-epoch", false, "take ledger and bucket for a pair")
	f.BoolVar(&o.AllowMany, "allow-many", false, "delete more than a fifth of everything")
	f.DurationVar(&orphanAge, "orphan-age", 24*time.Hour, "how old an object must be; never less than what the farm's gateways have")
	f.BoolVar(&asJSON, "json", false, "print the counts as JSON")
	f.StringVar(&dataDir, "data-dir", "", "data directory of a farm on this machine (default for 'up' "+defaultDataDir()+")")
	servers := flag.NewFlagSet("servers", flag.ContinueOnError)
	settings.Endpoints(servers, &endpoints)
	f.AddGoFlagSet(servers)
	cmd.MarkFlagsMutuallyExclusive("data-dir", "nats-url")
	return cmd
}

func (a *app) runSweep(ctx context.Context, e farm.Endpoints, age time.Duration, o farm.SweepOptions, log *slog.Logger) (farm.SweepReport, error) {
	backends, err := farm.Dial(ctx, e, farm.DialOptions{Name: "vidforge-sweep", Logger: log})
	if err != nil {
		return farm.SweepReport{}, fmt.Errorf("reach the stores: %w", err)
	}
	report, err := farm.New(backends.Stores, farm.Config{OrphanAge: age, Logger: log}).Sweep(ctx, o)
	if err = errors.Join(err, backends.Close()); err != nil {
		return report, err
	}
	return report, nil
}

func (a *app) showSweep(r farm.SweepReport) error {
	w := tabwriter.NewWriter(a.Err, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "CLASS\tFOUND\tBYTES\tDELETED") // Flush tells
	for _, class := range farm.SweepClasses() {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", class, r.Found[class].Count, r.Found[class].Bytes, r.Deleted[class].Count)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}
