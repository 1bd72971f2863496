package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/vidforge/vidforge/pkg/apikey"
)

func (a *app) keys() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Mint, list and revoke API keys",
		Long: `Mint, list and revoke the API keys in a keys file. The file holds hashes only; a
gateway that uses it notices changes by itself.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(a.keysNew(), a.keysList(), a.keysRevoke())
	return cmd
}

func fileFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "file", "", "the keys file")
	if err := cmd.MarkFlagRequired("file"); err != nil {
		panic(err) // the flag was defined a line above
	}
}

func (a *app) keysNew() *cobra.Command {
	var (
		file, tenant, name string
		scopes             []string
		lifetime           time.Duration
	)
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Mint a key and add it to the file",
		Long: `Mint a key and add its hash to the file. The key itself is printed once, on
standard output, and stored nowhere.`,
		Args: cobra.NoArgs,
		RunE: a.run(func(*cobra.Command, []string) error {
			now := time.Now()
			secret, entry, err := apikey.New(tenant, name, scopes, now)
			if err != nil {
				return usageError{err}
			}
			if lifetime != 0 {
				if lifetime < 0 {
					return usageError{fmt.Errorf("--lifetime %s is negative", lifetime)}
				}
				entry.Expires = now.Add(lifetime).UTC().Truncate(time.Second)
			}
			if err := apikey.Add(file, entry); err != nil {
				return fmt.Errorf("add the key: %w", err)
			}
			a.sayf("Key %s of tenant %s with %s. It is not shown again:", entry.ID, tenant, strings.Join(entry.Scopes, ", "))
			return a.printf("%s", secret)
		}),
	}
	fileFlag(cmd, &file)
	f := cmd.Flags()
	f.StringVar(&tenant, "tenant", "", "tenant that owns what is made with the key")
	f.StringVar(&name, "name", "", "whose key it is, for logs and decisions")
	f.StringSliceVar(&scopes, "scope", nil, "scope of the key, repeatable: "+strings.Join(apikey.Scopes(), ", ")+" (default all)")
	f.DurationVar(&lifetime, "lifetime", 0, "how long the key is valid, such as 720h (default for ever)")
	if err := cmd.MarkFlagRequired("tenant"); err != nil {
		panic(err) // defined above
	}
	return cmd
}

func (a *app) keysList() *cobra.Command {
	var (
		file   string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the keys of a file",
		Args:  cobra.NoArgs,
		RunE: a.run(func(*cobra.Command, []string) error {
			f, err := apikey.Load(file)
			if err != nil {
				return err
			}
			if asJSON {
				return a.printKeysJSON(f)
			}
			w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(w, "ID\tTENANT\tNAME\tSCOPES\tCREATED\tEXPIRES") // Flush tells
			for _, k := range f.Keys {
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, printable(k.Tenant), printable(k.Name),
					strings.Join(k.Scopes, ","), k.Created.Format(time.RFC3339), expiry(k))
			}
			if err := w.Flush(); err != nil {
				return fmt.Errorf("write the output: %w", err)
			}
			return nil
		}),
	}
	fileFlag(cmd, &file)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func expiry(k apikey.Entry) string {
	switch {
	case k.Expires.IsZero():
		return "never"
	case k.Expired(time.Now()):
		return "expired"
	default:
		return k.Expires.Format(time.RFC3339)
	}
}

// printKeysJSON leaves the hashes out: nobody needs them.
func (a *app) printKeysJSON(f apikey.File) error {
	type key struct {
		ID      string    `json:"id"`
		Tenant  string    `json:"tenant"`
		Name    string    `json:"name,omitempty"`
		Scopes  []string  `json:"scopes"`
		Created time.Time `json:"created"`
		Expires time.Time `json:"expires,omitzero"`
	}
	out := []key{}
	for _, k := range f.Keys {
		out = append(out, key{k.ID, k.Tenant, k.Name, k.Scopes, k.Created, k.Expires})
	}
	return a.printJSON(out)
}

func (a *app) keysRevoke() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "revoke KEY-ID",
		Short: "Remove a key from the file",
		Args:  cobra.ExactArgs(1),
		RunE: a.run(func(_ *cobra.Command, args []string) error {
			id := args[0]
			if public, ok := apikey.ParseID(id); ok {
				id = public // the whole key was given
			}
			if err := apikey.Revoke(file, id); err != nil {
				return err
			}
			a.sayf("Key %s is revoked.", id)
			return nil
		}),
	}
	fileFlag(cmd, &file)
	return cmd
}
