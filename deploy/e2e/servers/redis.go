package servers

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// RedisOptions of a server.
type RedisOptions struct {
	// ACL are the lines of the ACL file, "user name on >password …". Without
	// them the user "default" may do everything, with a random password.
	ACL []string
	// Config is added to the configuration file.
	Config string
	// TLS for clients; nil for none.
	TLS *TLS
}

// Redis is a running redis-server that keeps its data on disk.
type Redis struct {
	*Process
	// Addr is host:port.
	Addr string
	// URL is redis://…, or rediss://…, with the credentials of "default" unless
	// RedisOptions.ACL names others.
	URL string
}

// StartRedis starts the host's redis-server.
func StartRedis(t testing.TB, o RedisOptions) *Redis {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("%v: make test-deps installs it", err)
	}
	port := holdPort(t)
	r := &Redis{
		Process: &Process{Dir: t.TempDir(), name: "redis-server", path: path},
		Addr:    fmt.Sprintf("127.0.0.1:%d", port),
	}
	password := rand.Text()
	u := url.URL{Scheme: "redis", Host: r.Addr}
	if o.ACL == nil {
		o.ACL = []string{"user default on >" + password + " ~* &* +@all"}
		u.User = url.UserPassword("", password)
	}
	r.SetACL(t, o.ACL...)
	config := "bind 127.0.0.1\nappendonly yes\nsave \"\"\naclfile " + filepath.Join(r.Dir, "users.acl") + "\n"
	if o.TLS == nil {
		config += fmt.Sprintf("port %d\n", port)
	} else {
		u.Scheme = "rediss"
		cert, key := o.TLS.CA.Issue(t, "redis")
		clients := "no"
		if o.TLS.ClientCerts {
			clients = "yes"
		}
		config += fmt.Sprintf("port 0\ntls-port %d\ntls-cert-file %s\ntls-key-file %s\ntls-ca-cert-file %s\ntls-auth-clients %s\n",
			port, cert, key, o.TLS.CA.File, clients)
	}
	r.URL = u.String()
	r.args = []string{r.write(t, "redis.conf", config+o.Config)}
	r.tls = o.TLS
	r.ready = func(ctx context.Context, client *tls.Config) error { return pingRedis(ctx, r.Addr, client) }
	r.start(t)
	r.wait(t)
	return r
}

// SetACL replaces the lines of the ACL file, which count from the next start on.
func (r *Redis) SetACL(t testing.TB, lines ...string) {
	t.Helper()
	r.write(t, "users.acl", strings.Join(lines, "\n")+"\n")
}

// pingRedis wants any answer but that the data is still being loaded; what a
// stranger gets is that he must authenticate.
func pingRedis(ctx context.Context, addr string, config *tls.Config) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	if config != nil {
		config = config.Clone()
		config.ServerName = "127.0.0.1"
		conn = tls.Client(conn, config)
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return fmt.Errorf("set deadline: %w", err)
		}
	}
	if _, err := fmt.Fprint(conn, "PING\r\n"); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if strings.HasPrefix(answer, "-LOADING") {
		return fmt.Errorf("answers %q", answer)
	}
	return nil
}
