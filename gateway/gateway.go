// Package gateway serves MCP clients and the HTTP API of a render farm: it
// takes uploads and render requests, tells how far they are, asks for
// decisions, and hands out the videos. It also runs its share of the farm's
// housekeeping. Any number of gateways may stand behind a load balancer.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vidforge/vidforge/pkg/buildinfo"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/gateway/internal/contract"
	"github.com/vidforge/vidforge/gateway/internal/httpapi"
	"github.com/vidforge/vidforge/gateway/internal/limits"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/ops"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

// Config of a gateway.
type Config struct {
	// Listen is the address for clients. Defaults to 127.0.0.1:8080; port 0
	// is any free one.
	Listen string
	// OpsListen is the address of /healthz, /readyz and /metrics. Defaults to
	// 127.0.0.1:8081.
	OpsListen string
	// PeerListen is the address for other gateways of the farm, which hand over
	// requests of sessions that live here. Empty: this one is alone.
	PeerListen string
	// PeerAddress is where other gateways reach PeerListen: a host, with or
	// without a port. Defaults to the bound address; required when that is every
	// address of the machine.
	PeerAddress string
	// PublicURL is where clients reach the gateway, such as
	// https://render.example.org. Defaults to http:// and the bound address.
	PublicURL string
	// Endpoints of the farm's stores. Required.
	Endpoints farm.Endpoints
	// Tuning is what the programs of a farm agree on.
	Tuning farm.Tuning
	// KeysFile holds the API keys; it is read again when it changes. Without it
	// and without OAuthIssuers everybody is one local tenant, which only a
	// loopback Listen allows.
	KeysFile string
	// OAuthIssuers are the authorization servers whose access tokens are taken,
	// with commas between them, each as https://issuer, or
	// https://issuer=https://keys where it has no metadata that tells of its
	// keys. Needs PublicURL unless Listen is a loopback address.
	OAuthIssuers string
	// OAuthTenantClaim names the tenant in a token. Defaults to "tenant".
	OAuthTenantClaim string
	// OAuthAlgorithms are those that tokens may be signed with, with commas
	// between them. Defaults to all asymmetric ones of JWA.
	OAuthAlgorithms string
	// OAuthLeeway is how far the clocks of issuers may be off, up to 10 minutes.
	// Defaults to 1 minute.
	OAuthLeeway time.Duration
	// Hardware says whether renders are encoded on graphics hardware: prefer (the
	// default), require or never; see render.Hardware.
	Hardware string
	// ApprovalPolicy says who decides on watermark previews of tenants that have
	// no policy of their own in KeysFile: "agent", the default, or "human", with
	// which only a person who signed in on the approval page does.
	ApprovalPolicy string
	// SignInIssuer is the OpenID provider at which people sign in to the approval
	// page, SignInClientID and SignInClientSecret what it knows the gateway by.
	// OAuthTenantClaim names the tenant in its ID tokens.
	SignInIssuer, SignInClientID, SignInClientSecret string
	// AllowedOrigins are the sites whose pages may use MCP and the HTTP API from
	// a browser, with commas between them, each as https://app.example.org.
	AllowedOrigins string
	// Version is shown to clients. Defaults to that of the build, else "dev".
	Version string
	// Registry holds what /metrics shows. Defaults to a new one.
	Registry *prometheus.Registry `json:"-"`

	// RequestRate is how many requests a second a tenant may send over time, to
	// all gateways together, and RequestBurst how many at once. Default to 200
	// and 4000 with KeysFile or OAuthIssuers, else to no
	// limit; negative is no limit.
	RequestRate  float64
	RequestBurst int
	// MaxOpenRequests and MaxSessions of a credential at this gateway: streams,
	// held calls, uploads and downloads count as open requests. Default to 2048
	// and 1024 with KeysFile or OAuthIssuers, else to no
	// limit; negative is no limit.
	MaxOpenRequests int
	MaxSessions     int
	// MaxConcurrent unfinished renders of a tenant. Defaults to 16.
	MaxConcurrent int
	// RenderMinutes of finished video that a tenant may make in one
	// RenderWindow, a day or a month in UTC. Default to no limit, and a month.
	RenderMinutes int
	RenderWindow  string
	// StorageBytes of uploads that a tenant may keep at once. Default to no
	// limit.
	StorageBytes int64
	// MaxAssetBytes of one upload. Defaults to 16 GiB.
	MaxAssetBytes int64
	// AssetRetention of an upload. Defaults to 7 days.
	AssetRetention time.Duration
	// PresignTTL is how long a presigned upload may begin, up to 7 days.
	// Defaults to 1 h.
	PresignTTL time.Duration
	// MaxPresignBytes of a presigned upload. Defaults to 5 GiB, the most that
	// S3 takes by one request.
	MaxPresignBytes int64
	// OrphanAge is how old what nobody needs must be before it is swept, at
	// least an hour. An upload may last half as long. Defaults to 24 h.
	OrphanAge time.Duration
	// SweepEvery is the time between two sweeps of the whole farm. Defaults to
	// 1 h.
	SweepEvery time.Duration
	// StallTimeout is how long a body or an answer may stand still. Defaults
	// to 1 minute.
	StallTimeout time.Duration
	// DrainDelay is how long a gateway that was asked to stop goes on as before
	// while /readyz says that it drains, so that load balancers look
	// elsewhere first.
	DrainDelay time.Duration
	// ShutdownTimeout bounds how long requests in flight may take when the
	// gateway stops. Defaults to 20 s.
	ShutdownTimeout time.Duration

	// Stdio serves the client on this process's standard streams as well, by
	// Bound.Stdio. Nil: there is none.
	Stdio *Stdio `json:"-"`

	// Ready is called once, when requests are taken.
	Ready func(Bound) `json:"-"`
	// Logger defaults to slog.Default().
	Logger *slog.Logger `json:"-"`
}

// Bound is where a gateway takes requests.
type Bound struct {
	// Listen and OpsListen are the addresses that it listens on.
	Listen, OpsListen string
	// SignInCode is what a person types in to sign in to the approval page. Empty
	// where there is no such sign-in: with the policy agent, with API keys or
	// OAuthIssuers, or with an OpenID provider.
	SignInCode string
	// Stdio handles MCP requests of the client on the standard streams (see
	// mcptask.ServeStdio) until Run is told to end. Nil without Config.Stdio.
	Stdio http.Handler
}

// readHeaderTimeout and idleTimeout bound what is not a request yet; requests
// themselves may last as long as bytes flow.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10
)

// Limits of a gateway that strangers reach: far beyond what a client does that
// polls as it is told.
const (
	defaultRequestRate  = 200.0
	defaultRequestBurst = 4000
	defaultOpenRequests = 2048
	defaultSessions     = 1024
)

func (c Config) withDefaults() Config {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:8080")
	c.OpsListen = cmp.Or(c.OpsListen, "127.0.0.1:8081")
	c.Version = cmp.Or(c.Version, buildinfo.Version())
	c.StallTimeout = cmp.Or(c.StallTimeout, time.Minute)
	c.ShutdownTimeout = cmp.Or(c.ShutdownTimeout, 20*time.Second)
	c.OAuthLeeway = cmp.Or(c.OAuthLeeway, time.Minute)
	if c.KeysFile != "" || c.OAuthIssuers != "" {
		c.RequestRate, c.RequestBurst = cmp.Or(c.RequestRate, defaultRequestRate), cmp.Or(c.RequestBurst, defaultRequestBurst)
		c.MaxOpenRequests, c.MaxSessions = cmp.Or(c.MaxOpenRequests, defaultOpenRequests), cmp.Or(c.MaxSessions, defaultSessions)
	}
	if c.RequestRate > 0 {
		c.RequestBurst = cmp.Or(c.RequestBurst, max(1, int(math.Ceil(c.RequestRate))))
	}
	c.Registry = cmp.Or(c.Registry, prometheus.NewRegistry())
	if c.Ready == nil {
		c.Ready = func(Bound) {}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("invalid Listen %q: %w", c.Listen, err)
	}
	if local := host != "" && auth.IsLoopback(host); !local && c.KeysFile == "" && c.OAuthIssuers == "" {
		return fmt.Errorf("refused Listen %q, which is not a loopback address: set KeysFile or OAuthIssuers, or anybody could render", c.Listen)
	} else if !local && c.OAuthIssuers != "" && c.PublicURL == "" {
		return errors.New("OAuthIssuers needs PublicURL: tokens are issued for the URL that clients use")
	}
	if c.PeerAddress != "" && c.PeerListen == "" {
		return errors.New("PeerAddress is set and PeerListen is not: other gateways would reach nothing")
	}
	if err := c.validateApproval(); err != nil {
		return err
	}
	if c.OrphanAge != 0 && c.OrphanAge < time.Hour || c.PresignTTL > 7*24*time.Hour || c.PresignTTL != 0 && c.PresignTTL < time.Second || c.MaxPresignBytes > 5<<30 {
		return errors.New("OrphanAge must be at least 1h, PresignTTL 1s to 168h, MaxPresignBytes at most 5 GiB")
	}
	if w := render.Window(c.RenderWindow); w != "" && w != render.WindowDay && w != render.WindowMonth {
		return fmt.Errorf("invalid RenderWindow %q: must be day or month", c.RenderWindow)
	}
	if _, err := render.ParseHardware(c.Hardware); err != nil {
		return fmt.Errorf("invalid Hardware: %w", err)
	}
	if c.MaxConcurrent < 0 || c.RenderMinutes < 0 || c.StorageBytes < 0 || c.MaxAssetBytes < 0 || c.MaxPresignBytes < 0 || c.SweepEvery < 0 || c.AssetRetention < 0 || c.StallTimeout < 0 || c.DrainDelay < 0 || c.ShutdownTimeout < 0 {
		return errors.New("limits and times cannot be negative")
	}
	return nil
}

// publicURL checks and cleans the URL that clients use.
func (c Config) publicURL(bound string) (*url.URL, error) {
	raw := strings.TrimRight(cmp.Or(c.PublicURL, "http://"+bound), "/")
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, fmt.Errorf("PublicURL: %w", err)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.RawQuery != "", u.Fragment != "":
		return nil, fmt.Errorf("PublicURL %q must be http://host or https://host", raw)
	}
	return u, nil
}

// authorize makes the gateway a resource server of its issuers.
func (c Config) authorize(a *auth.Authenticator, public *url.URL) error {
	a.Public = public
	issuers, err := auth.ParseIssuers(c.OAuthIssuers)
	if err != nil {
		return fmt.Errorf("OAuthIssuers: %w", err)
	}
	if len(issuers) == 0 {
		return nil
	}
	a.Tokens, err = auth.NewTokens(auth.TokensConfig{
		Issuers: issuers, TenantClaim: c.OAuthTenantClaim, Algorithms: auth.SplitList(c.OAuthAlgorithms),
		Leeway: c.OAuthLeeway, Logger: c.Logger,
	})
	if err != nil {
		return fmt.Errorf("access tokens: %w", err)
	}
	return nil
}

// facade is what a gateway needs of the farm.
type facade interface {
	contract.Farm
	httpapi.Farm
	Run(ctx context.Context) error
	Ready(ctx context.Context) error
	Limits() farm.Config
	LimitsOf(tenant render.Tenant) farm.Limits
	limits.Rates
}

var _ facade = (*farm.Farm)(nil)

// Run serves until ctx ends, then lets requests in flight finish. It returns
// nil after an orderly end.
func Run(ctx context.Context, c Config) error {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	operators, err := ops.Start(ctx, ops.Options{Listen: c.OpsListen, Registry: c.Registry, Logger: c.Logger})
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	if err = errors.Join(run(ctx, c, operators), operators.Close()); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	return nil
}

func run(ctx context.Context, c Config, operators *ops.Server) error {
	backends, err := farm.Dial(ctx, c.Endpoints, farm.DialOptions{
		Name: "vidforge-gateway", Tuning: c.Tuning, Logger: c.Logger,
		Waits: func(store string) { operators.NotReady("waits for " + store) },
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to end before it began
		}
		return fmt.Errorf("reach the stores: %w", err)
	}
	with, err := c.shared(ctx, backends.Ledger)
	metrics, merr := telemetry.NewMetrics()
	if err = errors.Join(err, merr); err == nil {
		var own func(render.Tenant, farm.Limits) farm.Limits
		if own, err = c.quotas(); err != nil {
			return errors.Join(err, backends.Close())
		}
		f := farm.New(backends.Stores, farm.Config{
			Hardware:   render.Hardware(c.Hardware),
			RenderTime: time.Duration(c.RenderMinutes) * time.Minute, RenderWindow: render.Window(c.RenderWindow), StorageBytes: c.StorageBytes, LimitsOf: own,
			MaxConcurrent: c.MaxConcurrent, MaxAssetBytes: c.MaxAssetBytes, AssetRetention: c.AssetRetention, PresignTTL: c.PresignTTL,
			MaxPresignBytes: c.MaxPresignBytes, OrphanAge: c.OrphanAge, SweepEvery: c.SweepEvery, Tuning: c.Tuning, Metrics: metrics, Logger: c.Logger,
		})
		err = serve(ctx, c, f, with, operators)
	}
	return errors.Join(err, backends.Close())
}

// shared reads what the gateways of a farm have in common.
func (c Config) shared(ctx context.Context, led ledger.Ledger) (with shared, err error) {
	if with.formKey, err = led.Secret(ctx, "approval-form"); err == nil {
		with.sessionKey, err = led.Secret(ctx, "session")
	}
	if err == nil {
		with.signInKey, err = led.Secret(ctx, "sign-in")
	}
	if c.PeerListen != "" {
		with.registry = led
	}
	return with, err
}

// serve is Run over an open farm.
func serve(ctx context.Context, c Config, f facade, with shared, operators *ops.Server) (err error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s, err := newServer(c, f, with, l.Addr().String())
	if err != nil {
		return errors.Join(err, l.Close())
	}
	// Contexts of requests outlive ctx: what is in flight is to finish.
	base, endBase := context.WithCancel(context.WithoutCancel(ctx))
	defer endBase()
	main := httpServer(base, c.Logger, s.handler)
	peers, err := s.openPeers(ctx, base)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	ended := make(chan error, 3)
	go func() { ended <- served("clients", main.Serve(l)) }()
	farmCtx, stopFarm := context.WithCancel(base)
	go func() {
		err := f.Run(farmCtx)
		if farmCtx.Err() != nil {
			err = nil
		}
		ended <- err
	}()
	operators.Ready(f.Ready)
	bound := Bound{Listen: l.Addr().String(), OpsListen: operators.Addr(), SignInCode: s.signInCode}
	if s.stdio != nil {
		bound.Stdio = s.stdio.handler(s)
	}
	c.Ready(bound)
	c.Logger.InfoContext(ctx, "gateway listens", "address", l.Addr().String(), "public_url", s.publicURL, "fingerprint", s.contract.Fingerprint())

	left := 2
	if peers != nil {
		left++
		go func() { ended <- peers.serve() }()
	}
	select {
	case <-ctx.Done():
	case err = <-ended:
		left--
		if err == nil {
			err = errors.New("a part of the gateway ended by itself")
		}
	}
	operators.NotReady("draining")
	if err == nil && c.DrainDelay > 0 {
		c.Logger.InfoContext(ctx, "drains", "delay", c.DrainDelay.String())
		err = s.linger(ended, &left)
	}
	err = errors.Join(err, s.drain(base, c, main, peers))
	stopFarm()
	for range left {
		err = errors.Join(err, <-ended)
	}
	return err
}

// linger serves on for the drain delay, or until a part ends by itself.
func (s *server) linger(ended <-chan error, left *int) error {
	t := time.NewTimer(s.cfg.DrainDelay)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case err := <-ended:
		*left--
		return err
	}
}

// drain stops accepting, ends streams and waits for requests in flight.
func (s *server) drain(base context.Context, c Config, main *http.Server, peers *peers) error {
	ctx, cancel := context.WithTimeout(base, c.ShutdownTimeout)
	defer cancel()
	// From here on the sessions are unknown, so that nobody is sent here any
	// more; what is in flight of them is answered before the contracts close.
	s.sessions.Close()
	servers := []*http.Server{main}
	if peers != nil {
		servers = append(servers, peers.srv)
	}
	down := make(chan error, len(servers))
	for _, srv := range servers {
		go func() {
			err := srv.Shutdown(ctx)
			if err != nil {
				// Whoever is not done by now is cut off.
				c.Logger.Warn("requests were cut off", "error", err)
				err = srv.Close()
			}
			down <- err
		}()
	}
	err := s.closeEndpoints()
	if s.stdio != nil {
		err = errors.Join(err, s.stdio.close())
	}
	for range servers {
		err = errors.Join(err, <-down)
	}
	return err
}

func served(what string, err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve %s: %w", what, err)
}

func httpServer(base context.Context, log *slog.Logger, h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
