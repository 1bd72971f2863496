// Command vidforge-gateway serves MCP clients and the HTTP API of a render farm.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/vidforge/vidforge/gateway"
	"github.com/vidforge/vidforge/pkg/process"
	"github.com/vidforge/vidforge/pkg/settings"
)

// gcPercent trades memory for speed: the JSON decoder of the MCP SDK allocates
// 32 KiB a call, which at the default of 100 is three quarters of all work.
const gcPercent = 400

// memoryRatio is the part of the container's memory that the heap may grow to
// before the collector works harder.
const memoryRatio = 0.9

func main() {
	var c gateway.Config
	os.Exit(process.Main(process.Program{
		Name:  "vidforge-gateway",
		Flags: func(fs *flag.FlagSet) { flags(fs, &c) },
		Run: func(ctx context.Context, env process.Env) error {
			tune(env)
			c.Version, c.Registry, c.Logger = env.Version, env.Registry, env.Logger
			c.Ready = func(b gateway.Bound) {
				if b.SignInCode != "" { // not in the log, which others may read
					_, _ = fmt.Fprintf(os.Stderr, "To sign in on the approval page: %s\n", b.SignInCode) // nowhere else to say it
				}
			}
			return gateway.Run(ctx, c)
		},
	}))
}

// tune sets the garbage collector, unless GOGC and GOMEMLIMIT do.
func tune(env process.Env) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	_, err := memlimit.Set(memlimit.WithRatio(memoryRatio))
	if err != nil && !errors.Is(err, memlimit.ErrNoLimit) && !errors.Is(err, memlimit.ErrNoCgroup) {
		env.Logger.Warn("no limit of memory is set", "error", err)
	}
}

func flags(fs *flag.FlagSet, c *gateway.Config) {
	fs.StringVar(&c.Listen, "listen", "127.0.0.1:8080", "`address` for clients")
	fs.StringVar(&c.OpsListen, "ops-listen", "127.0.0.1:8081", "`address` of /healthz, /readyz and /metrics")
	fs.StringVar(&c.PeerListen, "peer-listen", "", "`address` for the farm's other gateways, which hand over requests of sessions that live here; empty: there are none")
	fs.StringVar(&c.PeerAddress, "peer-address", "", "`host` and perhaps port at which other gateways reach peer-listen (default: the bound address)")
	fs.StringVar(&c.PublicURL, "public-url", "", "`URL` at which clients reach the gateway (default: http:// and the address)")
	fs.StringVar(&c.KeysFile, "keys-file", "", "`file` with API keys; without it and without oauth-issuers only on a loopback address")
	fs.StringVar(&c.OAuthIssuers, "oauth-issuers", "", "`URLs` of the authorization servers whose access tokens are taken, with commas between them; as issuer=URL of its keys where it has no metadata")
	fs.StringVar(&c.OAuthTenantClaim, "oauth-tenant-claim", "tenant", "`claim` of a token that names the tenant")
	fs.StringVar(&c.OAuthAlgorithms, "oauth-algorithms", "", "`names` of the algorithms that tokens may be signed with, with commas between them (default: ES, PS and RS with 256, 384, 512, and EdDSA)")
	fs.DurationVar(&c.OAuthLeeway, "oauth-leeway", 0, "how far the clocks of authorization servers may be off, up to 10m (default 1m)")
	fs.StringVar(&c.ApprovalPolicy, "approval-policy", "agent", "`who` decides on watermark previews: agent, or human for only a person who signed in on the approval page")
	fs.StringVar(&c.SignInIssuer, "sign-in-issuer", "", "`URL` of the OpenID provider at which people sign in to the approval page")
	fs.StringVar(&c.SignInClientID, "sign-in-client-id", "", "`name` of the gateway at sign-in-issuer")
	fs.StringVar(&c.SignInClientSecret, "sign-in-client-secret", "", "secret of the gateway at sign-in-issuer; none for a public client")
	fs.StringVar(&c.AllowedOrigins, "allowed-origins", "", "`origins` whose pages may use MCP and the HTTP API from a browser, with commas between them, as https://app.example.org")
	fs.Float64Var(&c.RequestRate, "request-rate", 0, "requests a second of a tenant, at all gateways together; negative: no limit (default 200 with keys-file or oauth-issuers, else no limit)")
	fs.IntVar(&c.RequestBurst, "request-burst", 0, "requests of a tenant at once; negative: no limit (default 4000 with keys-file or oauth-issuers, else one second's)")
	fs.IntVar(&c.MaxOpenRequests, "max-open-requests", 0, "open requests and streams of a credential at this gateway; negative: no limit (default 2048 with keys-file or oauth-issuers, else no limit)")
	fs.IntVar(&c.MaxSessions, "max-sessions", 0, "sessions of a credential at this gateway; negative: no limit (default 1024 with keys-file or oauth-issuers, else no limit)")
	fs.IntVar(&c.MaxConcurrent, "max-concurrent", 0, "unfinished renders of a tenant (default 16)")
	fs.IntVar(&c.RenderMinutes, "render-minutes", 0, "minutes of finished video that a tenant may make in a render-window (default: no limit)")
	fs.StringVar(&c.RenderWindow, "render-window", "month", "when render-minutes begin anew, in UTC: `day` or month")
	fs.StringVar(&c.Hardware, "hardware", "prefer", "whether graphics `devices` encode: prefer, require or never")
	fs.DurationVar(&c.StallTimeout, "stall-timeout", 0, "how long a body or an answer may stand still (default 1m)")
	fs.Int64Var(&c.StorageBytes, "storage-bytes", 0, "bytes of uploads that a tenant may keep at once (default: no limit)")
	fs.Int64Var(&c.MaxAssetBytes, "max-asset-bytes", 0, "largest upload in bytes (default 16 GiB)")
	fs.DurationVar(&c.AssetRetention, "asset-retention", 0, "how long an upload is kept (default 168h)")
	fs.DurationVar(&c.PresignTTL, "presign-ttl", 0, "how long a presigned upload may begin (default 1h)")
	fs.Int64Var(&c.MaxPresignBytes, "max-presign-bytes", 0, "largest presigned upload in bytes (default 5 GiB, the most that S3 takes by one request)")
	fs.DurationVar(&c.OrphanAge, "orphan-age", 0, "how old what nobody needs must be before it is swept; an upload may last half as long (default 24h)")
	fs.DurationVar(&c.SweepEvery, "sweep-every", 0, "time between two sweeps (default 1h)")
	fs.DurationVar(&c.DrainDelay, "drain-delay", 0, "how long to go on as before after SIGTERM while /readyz says draining, so that load balancers look elsewhere")
	fs.DurationVar(&c.ShutdownTimeout, "shutdown-timeout", 0, "how long requests may take at the end (default 20s)")
	settings.Endpoints(fs, &c.Endpoints)
	settings.Tuning(fs, &c.Tuning)
}
