// Package cli is the command line of vidforge: one file per command.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/adrg/xdg"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/vidforge/vidforge/deploy/vidforge/internal/client"
	"github.com/vidforge/vidforge/deploy/vidforge/internal/local"
	"github.com/vidforge/vidforge/pkg/buildinfo"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

// Streams are where a command reads and writes.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	// Interactive: a person sits at In and may be asked.
	Interactive bool
	// Bars: Err is a terminal on which a line may be redrawn.
	Bars bool
}

// Standard are the streams of this process.
func Standard() Streams {
	return Streams{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Interactive: term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd())),
		Bars:        term.IsTerminal(int(os.Stderr.Fd())),
	}
}

// Main runs a command line and returns its exit code. Errors are on s.Err.
func Main(ctx context.Context, args []string, s Streams) int {
	a := &app{Streams: s}
	root := a.root() //nolint:contextcheck // cobra hands it to the commands
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !a.running {
		err = usageError{err}
	}
	code := ExitCode(err)
	switch {
	case err == nil, errors.Is(err, errMissing):
	case code == ExitUsage && !a.running:
		a.sayf("vidforge: %s\nRun '%s --help' for usage.", err, cmd.CommandPath())
	default:
		a.sayf("vidforge: %s", printable(explain(err)))
	}
	return code
}

// explain words an error for a person.
func explain(err error) string {
	if errors.Is(err, context.Canceled) {
		return "cancelled"
	}
	farm, ok := errors.AsType[*render.Error](err)
	if !ok {
		return err.Error()
	}
	s := fmt.Sprintf("%s (%s)", farm.Message, farm.Code)
	if d := farm.Details; d != nil && d.Reason != "" && d.Reason != farm.Message {
		s += ": " + d.Reason
	}
	return s
}

// app is one run of the command line.
type app struct {
	Streams
	// running is set when a command's own work begins: every error before is
	// one of usage.
	running  bool
	logLevel string
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "vidforge",
		Short: "A video render farm that AI agents use through MCP",
		Long: `vidforge is a video render farm that AI agents use through MCP.

'vidforge up' runs a farm in this process; 'vidforge render' renders a file on a
farm, or on one of its own for the time of the command.

Every flag can be given by the environment as well: --data-dir by
VIDFORGE_DATA_DIR and so on. Flags come first.

` + exitCodes,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return fromEnvironment(cmd.Flags(), os.LookupEnv)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.PersistentFlags().StringVar(&a.logLevel, "log-level", "", "debug, info, warn or error (default info for up, warn for mcp, error otherwise)")
	root.AddCommand(a.up(), a.mcp(), a.render(), a.status(), a.cancel(), a.assets(), a.keys(), a.roles(), a.sweep(), a.doctor(), a.version())
	return root
}

// run makes a command's RunE: from here on errors are no longer of usage.
func (a *app) run(do func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.running = true
		return do(cmd, args)
	}
}

// fromEnvironment sets every flag from VIDFORGE_<FLAG> that was not given and
// that no given flag excludes.
func fromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	excluded := map[string]bool{}
	flags.Visit(func(f *pflag.Flag) {
		for _, group := range f.Annotations[exclusiveGroups] {
			for name := range strings.FieldsSeq(group) {
				excluded[name] = true
			}
		}
	})
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		name := "VIDFORGE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := lookup(name)
		if !ok || f.Changed || excluded[f.Name] || f.Name == "help" {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			// Not the value: it may be a secret.
			errs = append(errs, fmt.Errorf("%s is no valid value for --%s", name, f.Name))
		}
	})
	return errors.Join(errs...)
}

// exclusiveGroups is where cobra's MarkFlagsMutuallyExclusive notes the groups
// of a flag, each as names with spaces between them.
const exclusiveGroups = "cobra_annotation_mutually_exclusive"

// sayf prints a line for people.
func (a *app) sayf(format string, args ...any) {
	_, _ = fmt.Fprintf(a.Err, format+"\n", args...) // nowhere left to say that it failed
}

// printf prints a line of the command's own output.
func (a *app) printf(format string, args ...any) error {
	if _, err := fmt.Fprintf(a.Out, format+"\n", args...); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// printable drops what could steer a terminal from text that came from
// elsewhere.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, s)
}

// logger logs to the error stream from --log-level on.
func (a *app) logger(def slog.Level) (*slog.Logger, error) {
	level := def
	if a.logLevel != "" {
		if err := level.UnmarshalText([]byte(a.logLevel)); err != nil {
			return nil, usageError{fmt.Errorf("--log-level: %q is none of debug, info, warn, error", a.logLevel)}
		}
	}
	return telemetry.NewLogger(a.Err, "text", level)
}

// connection are the flags of commands that talk to a server.
type connection struct {
	server, apiKey, apiKeyFile, dataDir string
}

func (c *connection) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.server, "server", "", "URL of the server")
	f.StringVar(&c.apiKey, "api-key", "", "API key; better in VIDFORGE_API_KEY, where no process list shows it")
	f.StringVar(&c.apiKeyFile, "api-key-file", "", "file that holds the API key")
	f.StringVar(&c.dataDir, "data-dir", "", "data directory of a farm on this machine (default for 'up' "+defaultDataDir()+")")
	cmd.MarkFlagsMutuallyExclusive("api-key", "api-key-file")
}

// client connects to --server, or to the farm that runs in the data directory.
func (c *connection) client() (*client.Client, error) {
	server := c.server
	if server == "" {
		dir, err := filepath.Abs(cmp.Or(c.dataDir, defaultDataDir()))
		if err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		farm, ok := local.Running(dir)
		if !ok {
			return nil, usageError{fmt.Errorf("no farm runs in %s: name one with --server, or start one with 'vidforge up'", dir)}
		}
		server = farm.URL
	}
	return c.dial(server)
}

func (c *connection) dial(server string) (*client.Client, error) {
	key := c.apiKey
	if c.apiKeyFile != "" {
		b, err := os.ReadFile(c.apiKeyFile)
		if err != nil {
			return nil, fmt.Errorf("read the API key: %w", err)
		}
		key = strings.TrimSpace(string(b))
	}
	cl, err := client.New(client.Options{Server: server, APIKey: key, Version: buildinfo.Version()})
	if err != nil {
		return nil, usageError{err}
	}
	return cl, nil
}

// defaultDataDir is where 'vidforge up' keeps its farm.
func defaultDataDir() string { return filepath.Join(xdg.DataHome, "vidforge") }
