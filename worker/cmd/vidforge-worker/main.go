// Command vidforge-worker does the work of a render farm with ffmpeg.
package main

import (
	"context"
	"flag"
	"os"
	"time"

	"github.com/vidforge/vidforge/pkg/process"
	"github.com/vidforge/vidforge/pkg/settings"
	"github.com/vidforge/vidforge/worker"
)

func main() {
	var c worker.Config
	os.Exit(process.Main(process.Program{
		Name:  "vidforge-worker",
		Flags: func(fs *flag.FlagSet) { flags(fs, &c) },
		Run: func(ctx context.Context, env process.Env) error {
			c.Version, c.Registry, c.Logger = env.Version, env.Registry, env.Logger
			return worker.Run(ctx, c)
		},
	}))
}

func flags(fs *flag.FlagSet, c *worker.Config) {
	fs.StringVar(&c.ID, "id", "", "`name` of the worker (default: the host's name and a random part)")
	fs.StringVar(&c.OpsListen, "ops-listen", "127.0.0.1:8082", "`address` of /healthz, /readyz and /metrics; empty: none")
	fs.IntVar(&c.Slots, "slots", 2, "encoding stages at once")
	fs.IntVar(&c.PreviewSlots, "preview-slots", 1, "short stages (probe, preview, plan) at once beside them")
	fs.StringVar(&c.Devices, "devices", "auto", "graphics `devices` that encode: auto, none, or a list such as nvidia:0,dri:/dev/dri/renderD128")
	fs.StringVar(&c.ScratchDir, "scratch-dir", "", "`directory` for the files of running jobs (default: the system's)")
	fs.Int64Var(&c.ScratchFree, "scratch-free", 512<<20, "`bytes` that must be free there for the worker to take work")
	fs.DurationVar(&c.Grace, "grace", 25*time.Second, "how long running stages may go on after SIGTERM before they are handed back")
	settings.Endpoints(fs, &c.Endpoints)
	settings.Tuning(fs, &c.Tuning)
}
