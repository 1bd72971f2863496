package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/vidforge/vidforge/deploy/vidforge/internal/client"
	"github.com/vidforge/vidforge/pkg/render"
)

func (a *app) assets() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "assets",
		Short: "Upload, list and delete assets",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(a.assetsPut(), a.assetsList(), a.assetsRemove())
	return cmd
}

func (a *app) assetsPut() *cobra.Command {
	var (
		conn   connection
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "put FILE...",
		Short: "Upload files and print their asset URIs",
		Long:  "Upload files and print their asset URIs, one a line and in order.\n\n" + exitCodes,
		Args:  cobra.MinimumNArgs(1),
		RunE: a.run(func(cmd *cobra.Command, args []string) error {
			c, err := conn.client()
			if err != nil {
				return err
			}
			defer a.close(c)
			d := a.display()
			defer d.end()
			for _, file := range args {
				asset, err := d.upload(cmd.Context(), c, file)
				if err != nil {
					return err
				}
				if !asset.Renderable && asset.Reason != "" {
					a.sayf("%s cannot be rendered: %s", filepath.Base(file), printable(asset.Reason))
				}
				if asJSON {
					if err := a.printJSON(asset.Raw); err != nil {
						return err
					}
					continue
				}
				if err := a.printf("%s", asset.URI); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	conn.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the server's JSON, an object per file")
	return cmd
}

func (a *app) assetsList() *cobra.Command {
	var (
		conn   connection
		asJSON bool
	)
	const pageSize = 100
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List assets",
		Long:  "List the assets of the API key's tenant.\n\n" + exitCodes,
		Args:  cobra.NoArgs,
		RunE: a.run(func(cmd *cobra.Command, _ []string) error {
			c, err := conn.client()
			if err != nil {
				return err
			}
			defer a.close(c)
			all := []client.Asset{}
			for cursor := ""; ; {
				page, next, err := c.Assets(cmd.Context(), cursor, pageSize)
				if err != nil {
					return err
				}
				all = append(all, page...)
				if cursor = next; cursor == "" {
					break
				}
			}
			if asJSON {
				raw := []json.RawMessage{}
				for _, asset := range all {
					raw = append(raw, asset.Raw)
				}
				return a.printJSON(raw)
			}
			w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(w, "ASSET\tNAME\tTYPE\tBYTES\tSECONDS\tEXPIRES") // Flush tells
			for _, asset := range all {
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%.1f\t%s\n", asset.URI, printable(asset.Name), printable(asset.MIMEType),
					asset.SizeBytes, asset.DurationSeconds, printable(asset.ExpiresAt))
			}
			if err := w.Flush(); err != nil {
				return fmt.Errorf("write the output: %w", err)
			}
			return nil
		}),
	}
	conn.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) assetsRemove() *cobra.Command {
	var conn connection
	cmd := &cobra.Command{
		Use:   "rm ASSET...",
		Short: "Delete assets",
		Long:  "Delete assets, named by id (a_...) or URI (vidforge://assets/a_...). One that a\nrender still uses is kept.\n\n" + exitCodes,
		Args: func(cmd *cobra.Command, args []string) error {
			for _, arg := range args {
				if _, ok := assetID(arg); !ok {
					return fmt.Errorf("%q is no asset", arg)
				}
			}
			return cobra.MinimumNArgs(1)(cmd, args)
		},
		RunE: a.run(func(cmd *cobra.Command, args []string) error {
			c, err := conn.client()
			if err != nil {
				return err
			}
			defer a.close(c)
			for _, arg := range args {
				id, _ := assetID(arg)
				if err := c.DeleteAsset(cmd.Context(), id); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	conn.register(cmd)
	return cmd
}

func assetID(arg string) (render.AssetID, bool) {
	if id, ok := render.ParseAssetURI(arg); ok {
		return id, true
	}
	return render.ParseAssetID(arg)
}
