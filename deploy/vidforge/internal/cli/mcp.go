package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"github.com/adrg/xdg"
	"github.com/spf13/cobra"

	"github.com/vidforge/vidforge/deploy/vidforge/internal/local"
	"github.com/vidforge/vidforge/gateway"
	"github.com/vidforge/vidforge/pkg/buildinfo"
	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

// Output modes of 'vidforge mcp'.
const (
	outputFiles     = "files"
	outputResources = "resources"
	outputBoth      = "both"
)

// mcpOptions are what the flags of 'vidforge mcp' say.
type mcpOptions struct {
	inputDir, outputDir, outputMode, dataDir string
	workers                                  int
}

func (a *app) mcp() *cobra.Command {
	var o mcpOptions
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve one MCP host on standard input and output, with a farm inside",
		Long: `Serve MCP on standard input and output, with a whole farm inside this process.
MCP hosts start it by themselves; one entry in their configuration is enough:

  "vidforge": { "command": "vidforge", "args": ["mcp"] }

The host may name video files below the input directory by their file:/// URI.
Finished videos are written below the output directory (files), come inside
results (resources: up to 8 MiB as bytes, larger ones as a link to this
process), or both.

The end of the input ends the process; what is unfinished goes on at the next
start. Processes that run at once have data directories of their own below
--data-dir. Logs are on standard error.

` + exitCodes,
		Args: cobra.NoArgs,
		RunE: a.run(func(cmd *cobra.Command, _ []string) error { return a.runMCP(cmd.Context(), o) }),
	}
	f := cmd.Flags()
	f.StringVar(&o.inputDir, "input-dir", "", "directory whose files may be named (default the working directory, unless that is /)")
	f.StringVar(&o.outputDir, "output-dir", "", "directory that takes videos (default vidforge-output in the working directory; "+filepath.Join(xdg.UserDirs.Videos, "vidforge")+" if that is /)")
	f.StringVar(&o.outputMode, "output-mode", outputFiles, "files, resources or both")
	f.StringVar(&o.dataDir, "data-dir", "", "directory of everything the farms keep (default "+defaultMCPDir()+")")
	f.IntVar(&o.workers, "workers", 0, "encoding stages that run at once (default 2: ffmpeg uses all cores by itself)")
	return cmd
}

// defaultMCPDir is where 'vidforge mcp' keeps its farms.
func defaultMCPDir() string { return filepath.Join(xdg.DataHome, "vidforge-mcp") }

func (a *app) runMCP(ctx context.Context, o mcpOptions) (err error) {
	stdio, base, err := o.resolve()
	if err != nil {
		return err
	}
	log, err := a.logger(slog.LevelWarn)
	if err != nil {
		return err
	}
	out, err := a.claimOutput()
	if err != nil {
		return err
	}
	// A host that is gone is an error of a write, not the end of the process.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	if a.Interactive {
		a.sayf("This is for MCP hosts, which start it by themselves: see 'vidforge mcp --help'. Ctrl-C ends it.")
	}
	if stdio.InputDir == "" {
		log.WarnContext(ctx, "the working directory is the root of the file system, so no file may be named: set --input-dir")
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	version := buildinfo.Version()
	shutdown, err := telemetry.Setup(ctx, "vidforge", version)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), telemetryTimeout)
		defer cancel()
		err = errors.Join(err, shutdown(ctx))
	}()
	farm, err := startFree(ctx, base, local.Options{Stdio: stdio, Slots: o.workers, Version: version, Logger: log})
	if err != nil {
		return err
	}
	life, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-farm.Failed():
			cancel()
		case <-life.Done():
		}
	}()
	err = mcptask.ServeStdio(life, farm.Stdio, a.In, out, mcptask.StdioOptions{Logger: log})
	cancel()
	<-watched
	if err != nil {
		err = fmt.Errorf("serve the host: %w", err)
	}
	return errors.Join(err, farm.Close())
}

// resolve makes paths absolute before the farm leaves the working directory.
func (o mcpOptions) resolve() (*gateway.Stdio, string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return nil, "", fmt.Errorf("working directory: %w", err)
	}
	atRoot := wd == filepath.Dir(wd) // hosts start programs there that have no project
	stdio := &gateway.Stdio{InputDir: o.inputDir}
	if stdio.InputDir == "" && !atRoot {
		stdio.InputDir = wd
	}
	output := o.outputDir
	switch {
	case output != "":
	case atRoot:
		output = filepath.Join(xdg.UserDirs.Videos, "vidforge")
	default:
		output = "vidforge-output"
	}
	switch cmp.Or(o.outputMode, outputFiles) {
	case outputFiles:
		stdio.OutputDir = output
	case outputResources:
		stdio.Embed = true
	case outputBoth:
		stdio.OutputDir, stdio.Embed = output, true
	default:
		return nil, "", usageError{fmt.Errorf("--output-mode %q is none of files, resources, both", o.outputMode)}
	}
	if o.workers < 0 {
		return nil, "", usageError{errors.New("--workers is negative")}
	}
	base := cmp.Or(o.dataDir, defaultMCPDir())
	for _, path := range []*string{&stdio.InputDir, &stdio.OutputDir, &base} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return nil, "", fmt.Errorf("make %s absolute: %w", *path, err)
		}
	}
	return stdio, base, nil
}

// startTries is how often another process may be quicker to take a directory.
const startTries = 20

// startFree starts a farm in a directory of its own below base.
func startFree(ctx context.Context, base string, o local.Options) (*local.Farm, error) {
	o.Listen, o.OpsListen = "127.0.0.1:0", "127.0.0.1:0"
	for try := 1; ; try++ {
		dir, err := local.FreeDir(base)
		if err != nil {
			return nil, err
		}
		o.DataDir = dir
		farm, err := local.Start(ctx, o)
		if _, inUse := errors.AsType[*local.InUseError](err); !inUse || try == startTries {
			return farm, err
		}
	}
}

// claimOutput keeps the output for MCP alone. Whatever else in this process, or
// started by it, writes to standard output, writes to standard error from now on.
func (a *app) claimOutput() (io.Writer, error) {
	file, ok := a.Out.(*os.File)
	if !ok {
		return a.Out, nil
	}
	own, err := redirect(file, os.Stderr)
	if err != nil {
		return nil, fmt.Errorf("keep standard output for MCP: %w", err)
	}
	a.Out = os.Stderr
	return own, nil
}
