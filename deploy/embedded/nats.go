package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// natsReady is how long a NATS server may take to recover its streams.
const natsReady = 30 * time.Second

// NATSOptions of an embedded NATS server.
type NATSOptions struct {
	// Dir holds the JetStream file store.
	Dir string
	// Host defaults to 127.0.0.1.
	Host string
	// Port 0 takes a free one.
	Port int
	// Logger gets the server's log. Nil discards it.
	Logger *slog.Logger
}

// NATSServer is a NATS server with JetStream in this process.
type NATSServer struct {
	server *server.Server
	url    string
}

// StartNATS starts a server that syncs every write to disk before it is
// acknowledged (an embedded farm has no replica to recover from) and returns
// when it accepts connections. Only who knows its random token may connect.
func StartNATS(ctx context.Context, o NATSOptions) (*NATSServer, error) {
	if o.Dir == "" {
		return nil, errors.New("start NATS: no directory")
	}
	host, port := o.Host, o.Port
	if host == "" {
		host = "127.0.0.1"
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	token := rand.Text()
	s, err := server.NewServer(&server.Options{
		ServerName:    "vidforge",
		Host:          host,
		Port:          port,
		Authorization: token,
		JetStream:     true,
		StoreDir:      o.Dir,
		SyncAlways:    true,
		NoSigs:        true,
	})
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	fatal := make(chan error, 1)
	s.SetLoggerV2(natsLogger{log: log, fatal: fatal}, false, false, false)
	s.Start()
	n := &NATSServer{server: s}
	if err := n.waitReady(ctx, fatal); err != nil {
		return nil, errors.Join(err, n.Shutdown(context.WithoutCancel(ctx)))
	}
	addr, ok := s.Addr().(*net.TCPAddr)
	if !ok {
		return nil, errors.Join(fmt.Errorf("start NATS: listens on %v", s.Addr()), n.Shutdown(context.WithoutCancel(ctx)))
	}
	u := url.URL{Scheme: "nats", User: url.User(token), Host: net.JoinHostPort(host, strconv.Itoa(addr.Port))}
	n.url = u.String()
	return n, nil
}

func (n *NATSServer) waitReady(ctx context.Context, fatal <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, natsReady)
	defer cancel()
	for !n.server.ReadyForConnections(100 * time.Millisecond) {
		select {
		case err := <-fatal:
			return fmt.Errorf("start NATS: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("start NATS: %w", ctx.Err())
		default:
		}
	}
	if !n.server.JetStreamEnabled() {
		return errors.New("start NATS: JetStream is not enabled")
	}
	return nil
}

// URL is where to connect, with the token: a secret.
func (n *NATSServer) URL() string { return n.url }

// Shutdown stops the server and waits until its store is closed, or ctx ends.
func (n *NATSServer) Shutdown(ctx context.Context) error {
	done := make(chan struct{})
	go func() { // ends with the server, which nothing else can hasten
		defer close(done)
		n.server.Shutdown()
		n.server.WaitForShutdown()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop NATS: %w", ctx.Err())
	}
}

// natsLogger passes the server's log on. Its notices are about its start and
// stop and say nothing that the farm's own log does not. What it calls fatal
// would end the process in its own logger; here it ends StartNATS.
type natsLogger struct {
	log   *slog.Logger
	fatal chan<- error
}

var _ server.Logger = natsLogger{}

func (l natsLogger) Noticef(format string, v ...any) { l.pass(slog.LevelDebug, format, v) }
func (l natsLogger) Warnf(format string, v ...any)   { l.pass(slog.LevelWarn, format, v) }
func (l natsLogger) Errorf(format string, v ...any)  { l.pass(slog.LevelError, format, v) }
func (l natsLogger) Debugf(string, ...any)           {}
func (l natsLogger) Tracef(string, ...any)           {}

func (l natsLogger) pass(level slog.Level, format string, v []any) {
	l.log.Log(context.Background(), level, "nats", "says", fmt.Sprintf(format, v...))
}

func (l natsLogger) Fatalf(format string, v ...any) {
	err := fmt.Errorf(format, v...)
	l.log.Error("nats gives up", "error", err)
	select {
	case l.fatal <- err:
	default: // the first one is what StartNATS reports
	}
}
