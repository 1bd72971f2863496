package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vidforge/vidforge/pkg/access"
	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/progress"
)

func (a *app) roles() *cobra.Command {
	var (
		format, prefix, bucket string
		shards                 int
		gateways, workers      []string
	)
	cmd := &cobra.Command{
		Use:   "roles",
		Short: "Print what gateways and workers may do, as configuration of the servers",
		Long: `Print what gateways and workers may do in the servers of a farm, as a fragment of
the servers' own configuration, so that a worker that hostile media took over
can neither make renders nor decide, nor change what was uploaded.

  nats   two accounts for nats-server; passwords come from its environment, as
         NATS_PASSWORD_<USER>. Start a worker with --nats-api VIDFORGE.API, and
         every program with --nats-inbox _INBOX_<user>
  redis  lines of an ACL file, with passwords as ${REDIS_PASSWORD_<USER>} for
         envsubst
  s3     a bucket policy; users are principals: ARNs at AWS, else access keys`,
		Example: `  vidforge roles --format nats --worker worker-a --worker worker-b > vidforge.conf
  vidforge roles --format s3 --bucket videos --gateway arn:aws:iam::123456789012:role/gateway --worker arn:aws:iam::123456789012:role/worker`,
		Args: cobra.NoArgs,
		RunE: a.run(func(*cobra.Command, []string) error {
			var users []access.User
			for _, name := range gateways {
				users = append(users, access.User{Name: name, Role: access.Gateway})
			}
			for _, name := range workers {
				users = append(users, access.User{Name: name, Role: access.Worker})
			}
			var text string
			var err error
			switch format {
			case "nats":
				text, err = access.NATSConfig(prefix, func(r access.Role) access.NATS { return farm.NATSRights(prefix, shards, r) }, users)
			case "redis":
				text, err = access.RedisACL(func(r access.Role) []string { return progress.ACL(prefix, r) }, users)
			case "s3":
				text, err = access.S3Policy(func(r access.Role) []access.Statement { return blob.Access(bucket, r) }, users)
			default:
				err = fmt.Errorf("--format %q: must be nats, redis or s3", format)
			}
			if err != nil {
				return usageError{err}
			}
			return a.printf("%s", strings.TrimSuffix(text, "\n"))
		}),
	}
	f := cmd.Flags()
	f.StringVar(&format, "format", "", "nats, redis or s3")
	f.StringVar(&prefix, "prefix", "", "the farm's prefix in NATS and Redis")
	f.IntVar(&shards, "shards", 1, "the farm's number of shards")
	f.StringVar(&bucket, "bucket", "vidforge", "the farm's bucket")
	f.StringSliceVar(&gateways, "gateway", []string{"gateway"}, "user of gateways, repeatable")
	f.StringSliceVar(&workers, "worker", []string{"worker"}, "user of workers, repeatable; one each keeps their answers apart")
	if err := cmd.MarkFlagRequired("format"); err != nil {
		panic(err) // defined above
	}
	return cmd
}
