// Command vidforge-gateway serves MCP clients and the HTTP API of a render farm.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/vidforge/vidforge/gateway"
	"github.com/vidforge/vidforge/pkg/settings"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

// gcPercent trades memory for speed: the JSON decoder of the MCP SDK allocates
// 32 KiB a call, which at the default of 100 is three quarters of all work.
// GOGC and GOMEMLIMIT are obeyed when they are set.
const gcPercent = 400

// flushTimeout bounds how long the last spans may take on their way.
const flushTimeout = 5 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "vidforge-gateway:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	var c gateway.Config
	fs := flag.NewFlagSet("vidforge-gateway", flag.ContinueOnError)
	flags(fs, &c)
	show := fs.Bool("print-config", false, "print the settings in force and exit")
	if err := settings.Load(fs, args, os.LookupEnv); err != nil || *show {
		if err == nil {
			fmt.Print(settings.Print(fs))
		}
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	var err error
	if c.Logger, err = telemetry.NewLogger(os.Stderr, "json", slog.LevelInfo); err != nil {
		return fmt.Errorf("make the log: %w", err)
	}
	shutdown, err := telemetry.Setup(ctx, "vidforge-gateway", c.Version)
	if err != nil {
		return fmt.Errorf("set up telemetry: %w", err)
	}
	err = gateway.Run(ctx, c)
	flush, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	return errors.Join(err, shutdown(flush))
}

func flags(fs *flag.FlagSet, c *gateway.Config) {
	fs.StringVar(&c.Listen, "listen", "127.0.0.1:8080", "`address` for clients")
	fs.StringVar(&c.OpsListen, "ops-listen", "127.0.0.1:8081", "`address` of /healthz, /readyz and /metrics")
	fs.StringVar(&c.PublicURL, "public-url", "", "`URL` at which clients reach the gateway (default: http:// and the address)")
	fs.StringVar(&c.KeysFile, "keys-file", "", "`file` with API keys; empty only on a loopback address")
	fs.IntVar(&c.MaxConcurrent, "max-concurrent", 0, "unfinished renders of a tenant (default 16)")
	fs.DurationVar(&c.StallTimeout, "stall-timeout", 0, "how long a body or an answer may stand still (default 1m)")
	fs.Int64Var(&c.MaxAssetBytes, "max-asset-bytes", 0, "largest upload in bytes (default 16 GiB)")
	fs.DurationVar(&c.AssetRetention, "asset-retention", 0, "how long an upload is kept (default 168h)")
	fs.DurationVar(&c.ShutdownTimeout, "shutdown-timeout", 0, "how long requests may take at the end (default 20s)")
	settings.Endpoints(fs, &c.Endpoints)
	settings.Tuning(fs, &c.Tuning)
}
