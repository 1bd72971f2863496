package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"

	"github.com/alicebob/miniredis/v2"
)

// RedisOptions of an embedded Redis.
type RedisOptions struct {
	// Host to listen on. Defaults to 127.0.0.1.
	Host string
	// Port to listen on, 0 for any free one.
	Port int
	// Password that clients must send. Required: every user of a machine can
	// reach its loopback addresses.
	Password string
}

// RedisServer is a running embedded Redis. It keeps everything in memory and
// forgets it when it stops, which the farm allows for what is kept there.
type RedisServer struct {
	server *miniredis.Miniredis
	url    string
}

// StartRedis starts a Redis in this process.
func StartRedis(_ context.Context, o RedisOptions) (*RedisServer, error) {
	if o.Password == "" {
		return nil, errors.New("embedded: redis: Password is required")
	}
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true) // keys expire by the clock; without it they never do
	m.RequireAuth(o.Password)
	if err := m.StartAddr(listenAddr(o.Host, o.Port)); err != nil {
		return nil, fmt.Errorf("embedded: start redis: %w", err)
	}
	u := url.URL{Scheme: "redis", User: url.UserPassword("", o.Password), Host: m.Addr()}
	return &RedisServer{server: m, url: u.String()}, nil
}

// URL is the server's URL with the password in it.
func (r *RedisServer) URL() string { return r.url }

// Shutdown stops the server and waits for its connections to end.
func (r *RedisServer) Shutdown() { r.server.Close() }

func listenAddr(host string, port int) string {
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}
