package farm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/vidforge/vidforge/pkg/internal/secretfile"
)

// NATSAccess says how a process proves to NATS who it is, and whom it trusts.
// Every file is read again for each connection, so that one that is replaced
// counts from the next on.
type NATSAccess struct {
	// CAFile holds the authorities in PEM that a server's certificate may come
	// from, instead of the system's. With it, or with CertFile, a server
	// without TLS is refused.
	CAFile string
	// CertFile and KeyFile are the client's certificate and key in PEM.
	CertFile, KeyFile string

	// Inbox begins the subjects of the answers that this process gets. Give
	// each user of NATS one of its own, and the right to no other. Defaults to
	// _INBOX.
	Inbox string
	// API begins the requests to JetStream. It differs from $JS.API where this
	// process's account imports the JetStream of another.
	API string

	// At most one of the next four is set; or the URL holds user and password,
	// or a token.

	// CredsFile holds a JWT and its seed, as nsc writes them.
	CredsFile string
	// NKeyFile holds the seed of an nkey. The key that it belongs to is fixed
	// when the process starts.
	NKeyFile string
	// User and its Password, or the file with it.
	User, Password, PasswordFile string
	// Token, or the file with it.
	Token, TokenFile string
}

// options are for nats.Connect.
func (a NATSAccess) options(rawURL string, log *slog.Logger) ([]nats.Option, error) {
	if err := a.validate(rawURL); err != nil {
		return nil, err
	}
	var o []nats.Option
	if a.Inbox != "" {
		o = append(o, nats.CustomInboxPrefix(a.Inbox))
	}
	if a.CAFile != "" {
		o = append(o, nats.RootCAs(a.CAFile))
	}
	if a.CertFile != "" {
		o = append(o, nats.ClientCert(a.CertFile, a.KeyFile))
	}
	switch {
	case a.CredsFile != "":
		if _, err := secretfile.Read(a.CredsFile); err != nil { // else it would be found out by trying for ever
			return nil, fmt.Errorf("CredsFile: %w", err)
		}
		o = append(o, nats.UserCredentials(a.CredsFile))
	case a.NKeyFile != "":
		key, err := nats.NkeyOptionFromSeed(a.NKeyFile)
		if err != nil {
			return nil, fmt.Errorf("NKeyFile: %w", err)
		}
		o = append(o, key)
	case a.User != "":
		password, err := reread(a.Password, a.PasswordFile, log)
		if err != nil {
			return nil, fmt.Errorf("PasswordFile: %w", err)
		}
		o = append(o, nats.UserInfoHandler(func() (string, string) { return a.User, password() }))
	case a.Token != "" || a.TokenFile != "":
		token, err := reread(a.Token, a.TokenFile, log)
		if err != nil {
			return nil, fmt.Errorf("TokenFile: %w", err)
		}
		o = append(o, nats.TokenHandler(token))
	}
	return o, nil
}

func (a NATSAccess) validate(rawURL string) error {
	ways := 0
	for _, set := range []bool{a.CredsFile != "", a.NKeyFile != "", a.User != "", a.Token != "" || a.TokenFile != "", hasCredentials(rawURL)} {
		if set {
			ways++
		}
	}
	switch {
	case ways > 1:
		return errors.New("more than one of CredsFile, NKeyFile, User, Token and credentials in the URL is set")
	case (a.CertFile == "") != (a.KeyFile == ""):
		return errors.New("CertFile and KeyFile go together")
	case a.User == "" && (a.Password != "" || a.PasswordFile != ""):
		return errors.New("Password is set without User") //nolint:staticcheck // a field's name
	case a.Password != "" && a.PasswordFile != "", a.Token != "" && a.TokenFile != "":
		return errors.New("a secret is given both as it is and as a file")
	}
	return nil
}

func hasCredentials(rawURL string) bool {
	for part := range strings.SplitSeq(rawURL, ",") {
		if u, err := url.Parse(strings.TrimSpace(part)); err == nil && u.User != nil {
			return true
		}
	}
	return false
}

// reread returns a function that gives the value, or what the file holds when
// it is called. While the file cannot be read, what it held before is used.
func reread(value, file string, log *slog.Logger) (func() string, error) {
	if file == "" {
		return func() string { return value }, nil
	}
	value, err := secretfile.Read(file)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		now, err := secretfile.Read(file)
		if err != nil {
			log.Warn("keep the secret that was read before", "error", err)
			return value
		}
		value = now
		return value
	}, nil
}

func dialNATS(ctx context.Context, e Endpoints, name string, log *slog.Logger, wait waitLog) (*nats.Conn, error) {
	options, err := e.NATS.options(e.NATSURL, log)
	if err != nil {
		return nil, fmt.Errorf("farm: access to NATS: %w", err)
	}
	connected := make(chan struct{}, 1)
	var last lastError
	nc, err := nats.Connect(e.NATSURL, append(options,
		nats.Name(name),
		nats.Timeout(5*time.Second),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), // credentials may be changed under a running farm
		nats.ReconnectWait(250*time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, time.Second),
		nats.PingInterval(20*time.Second),
		nats.ConnectHandler(func(*nats.Conn) { connected <- struct{}{} }), // once
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("nats connection lost", "error", err)
			}
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { last.set(err) }),
		nats.ReconnectHandler(func(nc *nats.Conn) { log.Info("nats connected again", "server", nc.ConnectedServerName()) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { log.Warn("nats error", "error", err) }),
	)...)
	if err != nil {
		return nil, fmt.Errorf("farm: connect to NATS: %w", err)
	}
	err = wait.during(ctx, "NATS", last.get, func() error {
		select {
		case <-connected:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("farm: connect to NATS: %w", errors.Join(ctx.Err(), last.get()))
		}
	})
	if err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}
