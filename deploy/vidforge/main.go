// Command vidforge runs a whole render farm in one process, and is the command
// line of every farm: it renders, uploads, looks and cancels as an MCP client.
package main

import (
	"context"
	"os"

	"github.com/vidforge/vidforge/deploy/vidforge/internal/cli"
	"github.com/vidforge/vidforge/pkg/process"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := process.Interrupted(context.Background())
	defer stop()
	return cli.Main(ctx, os.Args[1:], cli.Standard())
}
