package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/vidforge/vidforge/deploy/vidforge/internal/client"
	"github.com/vidforge/vidforge/pkg/render"
)

func (a *app) status() *cobra.Command {
	var (
		conn          connection
		asJSON, watch bool
	)
	cmd := &cobra.Command{
		Use:   "status ID",
		Short: "Show a render",
		Long: `Show a render as it is now.

With --watch, follow it to its end; the exit code then tells the outcome, and
--json prints a line of JSON at each change.

` + exitCodes,
		Args: renderID,
		RunE: a.run(func(cmd *cobra.Command, args []string) error {
			c, err := conn.client()
			if err != nil {
				return err
			}
			defer a.close(c)
			id := render.ID(args[0])
			if watch {
				return a.watch(cmd.Context(), c, id, asJSON)
			}
			s, err := c.RenderStatus(cmd.Context(), id)
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(s.Raw)
			}
			return a.printStatus(s)
		}),
	}
	conn.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the server's JSON")
	cmd.Flags().BoolVar(&watch, "watch", false, "follow the render to its end")
	return cmd
}

// watch shows a render until it is over and returns what it ended with.
func (a *app) watch(ctx context.Context, c *client.Client, id render.ID, asJSON bool) error {
	d := a.display()
	defer d.end()
	last := ""
	for {
		s, err := c.WaitStatus(ctx, id, d.retrying, client.FollowOptions{})
		if err != nil {
			return err
		}
		switch {
		case asJSON && string(s.Raw) != last:
			last = string(s.Raw)
			if err := json.NewEncoder(a.Out).Encode(s.Raw); err != nil {
				return fmt.Errorf("write the output: %w", err)
			}
		case !asJSON && !s.Terminal:
			d.rendering(s.StatusMessage, s)
		}
		if s.Terminal {
			d.end()
			if !asJSON {
				if err := a.printStatus(s); err != nil {
					return err
				}
			}
			return s.Err()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("watch: %w", ctx.Err())
		case <-time.After(s.PollAfter()):
		}
	}
}

func (a *app) printStatus(s *client.Status) error {
	w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(w, name+"\t"+format+"\n", args...) // Flush tells
	}
	row("render", "%s", s.RenderID)
	row("state", "%s", s.State)
	row("message", "%s", printable(s.StatusMessage))
	if s.ApprovalURL != "" && !s.Terminal {
		row("approval", "%s", printable(s.ApprovalURL))
	}
	if s.VideoURI != "" {
		row("video", "%s", printable(s.VideoURI))
		row("size", "%d bytes", s.SizeBytes)
		row("sha256", "%s", printable(s.SHA256))
	}
	if s.DownloadURL != "" {
		row("download", "%s", printable(s.DownloadURL))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}
