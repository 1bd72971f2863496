// Command vidforge-worker does the work of a render farm with ffmpeg.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/vidforge/vidforge/pkg/settings"
	"github.com/vidforge/vidforge/pkg/telemetry"
	"github.com/vidforge/vidforge/worker"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	var c worker.Config
	fs := flag.NewFlagSet("vidforge-worker", flag.ContinueOnError)
	fs.StringVar(&c.ID, "id", "", "`name` of the worker (default: the host's name and a random part)")
	fs.IntVar(&c.Slots, "slots", 2, "encoding stages at once")
	fs.IntVar(&c.PreviewSlots, "preview-slots", 1, "short stages (probe, preview, plan) at once beside them")
	fs.StringVar(&c.ScratchDir, "scratch-dir", "", "`directory` for the files of running jobs (default: the system's)")
	fs.DurationVar(&c.Grace, "grace", 25*time.Second, "how long running stages may go on after SIGTERM before they are handed back")
	settings.Endpoints(fs, &c.Endpoints)
	settings.Tuning(fs, &c.Tuning)
	show := fs.Bool("print-config", false, "print the settings in force and exit")
	switch err := settings.Load(fs, args, os.LookupEnv); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, "vidforge-worker:", err)
		return 2
	case *show:
		fmt.Print(settings.Print(fs))
		return 0
	}
	c.Logger = slog.New(slog.NewJSONHandler(os.Stderr, nil))
	shutdown, err := telemetry.Setup(ctx, "vidforge-worker", c.Version)
	if err != nil {
		c.Logger.Error("telemetry", "error", err)
		return 1
	}
	err = worker.Run(ctx, c)
	flush, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := errors.Join(err, shutdown(flush)); err != nil {
		c.Logger.Error("worker failed", "error", err)
		return 1
	}
	return 0
}
