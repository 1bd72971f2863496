package process

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStart(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(file, []byte("colour: green\nno-such: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args, env      []string
		fail           error
		code           int
		ran            string // the colour that Run saw
		stdout, stderr string // parts of it
	}{
		"runs":             {args: []string{"--colour", "red"}, ran: "red", stderr: `"msg":"starts"`},
		"fails":            {fail: errors.New("no paint"), code: 1, ran: "blue", stderr: "painter: no paint"},
		"by environment":   {env: []string{"VIDFORGE_COLOUR=teal"}, ran: "teal"},
		"unknown variable": {env: []string{"VIDFORGE_COLUOR=teal"}, ran: "blue", stderr: "VIDFORGE_COLUOR"},
		"text log":         {args: []string{"--log-format", "text"}, ran: "blue", stderr: "msg=starts"},
		"less log":         {args: []string{"--log-level", "warn"}, ran: "blue"},
		"unknown format":   {args: []string{"--log-format", "xml"}, code: 2, stderr: "log-format"},
		"unknown level":    {args: []string{"--log-level", "loud"}, code: 2, stderr: "log-level"},
		"unknown flag":     {args: []string{"--shape", "x"}, code: 2, stderr: "shape"},
		"unknown key":      {args: []string{"--config", file}, code: 2, stderr: "there is no setting no-such"},
		"unknown command":  {args: []string{"paint"}, code: 2, stderr: `unknown command "paint"`},
		"config print":     {args: []string{"config", "print", "--colour", "red"}, stdout: "\ncolour: red\n"},
		"print masks":      {args: []string{"config", "print", "--paint-key", "hush"}, stdout: "# paint-key: (set, not shown)\n"},
		"version":          {args: []string{"version"}, stdout: "painter dev\n"},
		"help":             {args: []string{"--help"}, stderr: "VIDFORGE_LOG_LEVEL_FILE"},
	} {
		t.Run(name, func(t *testing.T) {
			var colour, ran string
			var stdout, stderr strings.Builder
			p := Program{
				Name: "painter",
				Flags: func(fs *flag.FlagSet) {
					fs.StringVar(&colour, "colour", "blue", "`colour` of the wall")
					fs.String("paint-key", "", "opens the shop")
				},
				Run: func(_ context.Context, env Env) error {
					ran = colour
					if env.Logger == nil || env.Registry == nil || env.Version == "" {
						t.Errorf("env %+v", env)
					}
					return c.fail
				},
			}
			code := p.Start(t.Context(), OS{c.args, c.env, &stdout, &stderr})
			if code != c.code || ran != c.ran {
				t.Errorf("code %d, ran with %q", code, ran)
			}
			if !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
				t.Errorf("stdout:\n%s\nstderr:\n%s", stdout.String(), stderr.String())
			}
			if strings.Contains(stdout.String()+stderr.String(), "hush") {
				t.Error("a secret was shown")
			}
			if name == "less log" && stderr.String() != "" {
				t.Errorf("logged %q", stderr.String())
			}
		})
	}
}
