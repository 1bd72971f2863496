package progress

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Connect makes a client for a board; it dials with the first call. The URL is
// redis://[user:password@]host:port[/db], or rediss:// for TLS. With
// ?addr=host:port for each further node it is a cluster; with
// ?master_name=name the hosts are Sentinels.
func Connect(rawURL string) (redis.UniversalClient, error) {
	quiet()
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errors.New("progress: the Redis URL is malformed") // err would quote the password
	}
	if u.Scheme != "redis" && u.Scheme != "rediss" {
		return nil, errors.New("progress: the Redis URL must begin with redis:// or rediss://")
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
	return redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs:      append([]string{o.Addr}, addrs...),
		MasterName: master,
		Username:   o.Username,
		Password:   o.Password,
		DB:         o.DB,
		TLSConfig:  o.TLSConfig,

		ContextTimeoutEnabled: true, // without it a deadline ends no read
		// One retry covers a pooled connection that the server closed; more
		// would not fit into the deadline.
		MaxRetries:    1,
		DialerRetries: 1,
		DialTimeout:   time.Second,
		// Samples are small and connections many.
		ReadBufferSize:   4 << 10,
		WriteBufferSize:  4 << 10,
		PipelinePoolSize: -1,
		// Nothing that only newer servers know.
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}), nil
}

// quiet keeps the client library from writing to standard error on its own, for
// every failed dial of an outage. What it has to say comes back as errors.
//
//nolint:gochecknoglobals // the library's logger is global
var quiet = sync.OnceFunc(func() { redis.SetLogger(discard{}) })

type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}
