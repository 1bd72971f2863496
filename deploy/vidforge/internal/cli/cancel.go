package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/vidforge/vidforge/pkg/render"
)

func (a *app) cancel() *cobra.Command {
	var (
		conn   connection
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "cancel ID",
		Short: "Cancel a render",
		Long: `Cancel a render. Cancelling one that is finished is no error; the state that is
printed tells.

` + exitCodes,
		Args: renderID,
		RunE: a.run(func(cmd *cobra.Command, args []string) error {
			c, err := conn.client()
			if err != nil {
				return err
			}
			defer a.close(c)
			state, err := c.CancelRender(cmd.Context(), render.ID(args[0]))
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(map[string]string{"render_id": args[0], "state": state})
			}
			return a.printf("%s: %s", args[0], state)
		}),
	}
	conn.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// renderID accepts exactly one argument that is a render id.
func renderID(cmd *cobra.Command, args []string) error {
	if err := cobra.ExactArgs(1)(cmd, args); err != nil {
		return err
	}
	if _, ok := render.ParseID(args[0]); !ok {
		return fmt.Errorf("%q is no render id: it is task_ and 26 characters", args[0])
	}
	return nil
}

// close closes a connection whose work is done: a failure changes nothing.
func (a *app) close(c interface{ Close() error }) { _ = c.Close() }
