// Command vidforge runs a whole render farm in one process, and is the command
// line of every farm: it renders, uploads, looks and cancels as an MCP client.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/vidforge/vidforge/deploy/vidforge/internal/cli"
)

func main() { os.Exit(run()) }

func run() int {
	// The first signal ends the context and with it the command in order; the
	// second one finds no handler any more and ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return cli.Main(ctx, os.Args[1:], cli.Standard())
}
