package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/vidforge/vidforge/pkg/buildinfo"

	"github.com/vidforge/vidforge/deploy/vidforge/internal/local"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

func (a *app) up() *cobra.Command {
	var (
		o       local.Options
		dataDir string
	)
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a farm in this process",
		Long: `Run a whole farm in this process: the gateway, a worker, and the servers that
they stand on, all below one data directory. Start it again with the same
directory, after a crash too, and it goes on where it was.

The first SIGINT or SIGTERM stops it in order: running stages are handed back
and continue at the next start. The second one ends it at once.

` + exitCodes,
		Args: cobra.NoArgs,
		RunE: a.run(func(cmd *cobra.Command, _ []string) (err error) {
			if o.Slots < 0 {
				return usageError{errors.New("--workers is negative")}
			}
			if o.DataDir, err = filepath.Abs(cmp.Or(dataDir, defaultDataDir())); err != nil {
				return fmt.Errorf("data directory: %w", err)
			}
			if o.KeysFile != "" {
				if o.KeysFile, err = filepath.Abs(o.KeysFile); err != nil {
					return fmt.Errorf("keys file: %w", err)
				}
			}
			if o.Logger, err = a.logger(slog.LevelInfo); err != nil {
				return err
			}
			o.Version = buildinfo.Version()
			return a.runFarm(cmd.Context(), o)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.Listen, "listen", "127.0.0.1:8080", "address of the MCP endpoint and the HTTP API")
	f.StringVar(&o.OpsListen, "ops-listen", "127.0.0.1:8081", "address of health and metrics")
	f.StringVar(&o.PublicURL, "public-url", "", "URL at which clients reach --listen (default that address)")
	f.StringVar(&dataDir, "data-dir", "", "directory of everything the farm keeps (default "+defaultDataDir()+")")
	f.StringVar(&o.KeysFile, "keys-file", "", "file of API keys; none are asked for without it, which only a loopback address allows")
	f.StringVar(&o.ApprovalPolicy, "approval-policy", "agent", "who decides on watermark previews: agent, or human for only a person who signs in on the approval page with the code printed here")
	f.StringVar(&o.Devices, "devices", "auto", "graphics devices that encode: auto, none, or a list such as nvidia:0,dri:/dev/dri/renderD128")
	f.IntVar(&o.Slots, "workers", 0, "encoding stages that run at once (default 2: ffmpeg uses all cores by itself)")
	return cmd
}

// gcPercent trades memory for speed: the JSON decoder of the MCP SDK allocates
// 32 KiB a call, which at the default of 100 is three quarters of all work.
const gcPercent = 400

// telemetryTimeout bounds how long the last spans may take on their way.
const telemetryTimeout = 5 * time.Second

// runFarm runs a farm until ctx ends or a part of it fails.
func (a *app) runFarm(ctx context.Context, o local.Options) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	shutdown, err := telemetry.Setup(ctx, "vidforge", o.Version)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), telemetryTimeout)
		defer cancel()
		err = errors.Join(err, shutdown(ctx))
	}()
	farm, err := local.Start(ctx, o)
	if err != nil {
		return err
	}
	url := cmp.Or(o.PublicURL, farm.URL)
	err = a.printf(`MCP endpoint  %s/mcp
HTTP API      %s/v1
Health        %s/readyz
Data          %s

Paste into the configuration of an MCP client:

%s
`, url, url, farm.OpsURL, o.DataDir, clientConfig(url, o.KeysFile != ""))
	if err == nil && farm.SignInCode != "" {
		err = a.printf("\nTo sign in on the approval page: %s", farm.SignInCode)
	}
	if err != nil {
		return errors.Join(err, farm.Close())
	}
	select {
	case <-ctx.Done():
		o.Logger.InfoContext(ctx, "stopping; a second signal ends at once")
	case <-farm.Failed():
	}
	return farm.Close()
}

// clientConfig is what most MCP hosts take.
func clientConfig(url string, keys bool) string {
	headers := ""
	if keys {
		headers = `,
      "headers": { "Authorization": "Bearer <API key>" }`
	}
	return fmt.Sprintf(`{
  "mcpServers": {
    "vidforge": {
      "type": "http",
      "url": "%s/mcp"%s
    }
  }
}`, url, headers)
}
