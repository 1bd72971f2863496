// Package process is the frame of a server program: settings, signals, log,
// telemetry, and the commands that every one of them has.
//
//	PROGRAM [--flags]               runs
//	PROGRAM config print [--flags]  shows the settings in force, secrets masked
//	PROGRAM version
//
// The first SIGTERM or interrupt ends the program in order, the second at once.
package process

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vidforge/vidforge/pkg/buildinfo"
	"github.com/vidforge/vidforge/pkg/settings"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

// flushTimeout bounds how long the last spans and metrics may take on their
// way.
const flushTimeout = 5 * time.Second

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

// Program is a server program.
type Program struct {
	// Name is that of the command and of the service in telemetry.
	Name string
	// Flags adds the program's settings.
	Flags func(*flag.FlagSet)
	// Run does the work until ctx ends. Metrics registered with the registry
	// are served by who serves it.
	Run func(ctx context.Context, env Env) error
}

// Env is what a program gets of its frame.
type Env struct {
	Version  string
	Logger   *slog.Logger
	Registry *prometheus.Registry
}

// OS is the operating system as a program sees it.
type OS struct {
	Args           []string // without the program's name
	Environ        []string
	Stdout, Stderr io.Writer
}

// Main runs the program as this process and returns its exit code.
func Main(p Program) int {
	return p.Start(context.Background(), OS{os.Args[1:], os.Environ(), os.Stdout, os.Stderr})
}

// Start runs the program and returns its exit code.
func (p Program) Start(ctx context.Context, o OS) int {
	ctx, stop := Interrupted(ctx)
	defer stop()

	command, args := command(o.Args)
	fs := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	fs.SetOutput(o.Stderr)
	format := fs.String("log-format", "json", "`format` of the log: json or text")
	level := new(slog.LevelVar)
	fs.TextVar(level, "log-level", level, "least `level` that is logged: debug, info, warn or error")
	p.Flags(fs)
	fs.Usage = func() { p.usage(fs) }

	switch command {
	case "version":
		return p.finish(o, write(o.Stdout, p.Name+" "+buildinfo.Version()+"\n"))
	case "", "config print":
	default:
		return p.refuse(o, fmt.Errorf("unknown command %q", command))
	}
	unknown, err := settings.Load(fs, args, o.Environ)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return p.refuse(o, err)
	}
	if command == "config print" {
		return p.finish(o, write(o.Stdout, settings.Print(fs)))
	}
	log, err := telemetry.NewLogger(o.Stderr, *format, level)
	if err != nil {
		return p.refuse(o, fmt.Errorf("log-format: %w", err))
	}
	for _, name := range unknown {
		log.Warn("a variable of the environment names no setting", "variable", name)
	}
	return p.finish(o, p.run(ctx, log))
}

// command cuts the command off the arguments.
func command(args []string) (name string, rest []string) {
	n := 0
	for n < len(args) && n < 2 && !strings.HasPrefix(args[n], "-") {
		n++
	}
	return strings.Join(args[:n], " "), args[n:]
}

func (p Program) usage(fs *flag.FlagSet) {
	fmt.Fprintf(fs.Output(), "Usage: %s [flags]\n       %s config print [flags]\n       %s version\n\n"+
		"Every flag can also be given in the YAML file that --config names, and as a\nvariable: --log-level as %s, or as the content of the file\nthat %s_FILE names.\n\nFlags:\n",
		p.Name, p.Name, p.Name, settings.EnvName("log-level"), settings.EnvName("log-level"))
	fs.PrintDefaults()
}

func (p Program) run(ctx context.Context, log *slog.Logger) error {
	slog.SetDefault(log)
	env := Env{Version: buildinfo.Version(), Logger: log, Registry: prometheus.NewRegistry()}
	shutdown, err := telemetry.Setup(ctx, p.Name, env.Version, telemetry.Scrape(env.Registry))
	if err != nil {
		return fmt.Errorf("set up telemetry: %w", err)
	}
	log.InfoContext(ctx, "starts", "program", p.Name, "version", env.Version)
	err = p.Run(ctx, env)
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	return errors.Join(err, shutdown(flush))
}

func (p Program) finish(o OS, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(o.Stderr, "%s: %v\n", p.Name, err)
	return exitFailed
}

func (p Program) refuse(o OS, err error) int {
	fmt.Fprintf(o.Stderr, "%s: %v\nSee %s --help.\n", p.Name, err, p.Name)
	return exitUsage
}

func write(w io.Writer, text string) error {
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
