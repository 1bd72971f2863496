package progress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/vidforge/vidforge/pkg/internal/secretfile"
	"github.com/vidforge/vidforge/pkg/internal/tlsfiles"
)

// Endpoint is a Redis and how to authenticate there.
type Endpoint struct {
	// URL is redis://[user:password@]host:port[/db], or rediss:// for TLS. With
	// ?addr=host:port for each further node it is a cluster; with
	// ?master_name=name the hosts are Sentinels.
	URL string
	Access
}

// Access says how a process proves to Redis who it is, and whom it trusts.
// Every file is read again for each connection, so that one that is replaced
// counts from the next on.
type Access struct {
	// CAFile holds the authorities in PEM that a server's certificate may come
	// from, instead of the system's.
	CAFile string
	// CertFile and KeyFile are the client's certificate and key in PEM.
	CertFile, KeyFile string
	// User and its Password, or the file with it. Without a user it is the
	// password of "default".
	User, Password, PasswordFile string
}

func (e Endpoint) validate(u *url.URL) error {
	switch {
	case u.Scheme != "redis" && u.Scheme != "rediss":
		return errors.New("the URL must begin with redis:// or rediss://")
	case u.Scheme == "redis" && (e.CAFile != "" || e.CertFile != ""):
		return errors.New("certificates are for URLs that begin with rediss://")
	case u.User != nil && (e.User != "" || e.Password != "" || e.PasswordFile != ""):
		return errors.New("credentials are given both in the URL and beside it")
	case e.Password != "" && e.PasswordFile != "":
		return errors.New("the password is given both as it is and as a file")
	case e.User != "" && e.Password == "" && e.PasswordFile == "":
		return errors.New("User is set without a password") //nolint:staticcheck // a field's name
	}
	return nil
}

// Connect is Endpoint.Connect for a URL that says all.
func Connect(rawURL string) (redis.UniversalClient, error) { return Endpoint{URL: rawURL}.Connect() }

// Connect makes a client for a board; it dials with the first call.
func (e Endpoint) Connect() (redis.UniversalClient, error) {
	quiet()
	u, err := url.Parse(e.URL)
	if err != nil {
		return nil, errors.New("progress: the Redis URL is malformed") // err would quote the password
	}
	if err := e.validate(u); err != nil {
		return nil, fmt.Errorf("progress: Redis: %w", err)
	}
	query := u.Query()
	addrs, master := query["addr"], query.Get("master_name")
	query.Del("addr")
	query.Del("master_name")
	u.RawQuery = query.Encode()
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, fmt.Errorf("progress: Redis URL: %w", err)
	}
	all := &redis.UniversalOptions{
		Addrs:      append([]string{o.Addr}, addrs...),
		MasterName: master,
		Username:   cmp.Or(e.User, o.Username),
		Password:   cmp.Or(e.Password, o.Password),
		DB:         o.DB,

		ContextTimeoutEnabled: true, // without it a deadline ends no read
		// One retry covers a pooled connection that the server closed; more
		// would not fit into the deadline.
		MaxRetries:    1,
		DialerRetries: 1,
		DialTimeout:   dialTimeout,
		// Samples are small and connections many.
		ReadBufferSize:   4 << 10,
		WriteBufferSize:  4 << 10,
		PipelinePoolSize: -1,
		// Nothing that only newer servers know.
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if o.TLSConfig != nil {
		if o.TLSConfig.InsecureSkipVerify {
			return nil, errors.New("progress: Redis: certificates are always verified; give the authority's file")
		}
		files := tlsfiles.Files{CA: e.CAFile, Cert: e.CertFile, Key: e.KeyFile}
		if _, err := files.Config(); err != nil {
			return nil, fmt.Errorf("progress: Redis: %w", err)
		}
		dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 5 * time.Minute}
		all.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return files.Dial(ctx, dialer, network, addr)
		}
	}
	if e.PasswordFile != "" {
		if _, err := secretfile.Read(e.PasswordFile); err != nil {
			return nil, fmt.Errorf("progress: Redis: %w", err)
		}
		all.CredentialsProviderContext = func(context.Context) (string, string, error) {
			password, err := secretfile.Read(e.PasswordFile)
			return e.User, password, err
		}
	}
	return redis.NewUniversalClient(all), nil
}

// dialTimeout bounds how long a connection may take to be made.
const dialTimeout = time.Second

// quiet keeps the client library from writing to standard error on its own, for
// every failed dial of an outage. What it has to say comes back as errors.
//
//nolint:gochecknoglobals // the library's logger is global
var quiet = sync.OnceFunc(func() { redis.SetLogger(discard{}) })

type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}
