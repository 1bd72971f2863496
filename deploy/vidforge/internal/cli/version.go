package cli

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/vidforge/vidforge/pkg/buildinfo"
)

func (a *app) version() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: a.run(func(*cobra.Command, []string) error {
			v := map[string]string{"version": buildinfo.Version(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH}
			if asJSON {
				return a.printJSON(v)
			}
			return a.printf("vidforge %s (%s, %s)", v["version"], v["go"], v["platform"])
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// printJSON prints one JSON value as the command's output.
func (a *app) printJSON(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the output: %w", err)
	}
	return a.printf("%s", b)
}
