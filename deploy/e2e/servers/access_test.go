package servers_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/vidforge/vidforge/deploy/e2e/servers"
	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/progress"
)

// atNATS are endpoints of which only NATS is there: the others are not asked
// for anything until somebody needs them.
func atNATS(url string, a farm.NATSAccess) farm.Endpoints {
	return farm.Endpoints{
		NATSURL: url, NATS: a, RedisURL: "redis://127.0.0.1:1",
		S3: blob.Config{Endpoint: "http://127.0.0.1:1", Bucket: "none", PathStyle: true, AccessKey: "a", SecretKey: "s"},
	}
}

// wantRefused checks that a process does not get in, and that what it says does
// not tell the secret.
func wantRefused(t *testing.T, what string, e farm.Endpoints) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	b, err := farm.Dial(ctx, e, farm.DialOptions{})
	if err == nil {
		t.Errorf("%s: let in", what)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		return
	}
	if said := strings.ToLower(err.Error()); !strings.Contains(said, "authorization violation") && !strings.Contains(said, "certificate") {
		t.Errorf("%s: the error does not say why: %v", what, err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("%s: the error tells the secret: %v", what, err)
	}
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	rewrite(t, path, text)
	return path
}

// rewrite replaces a file as a mounted secret is replaced: at one moment.
func rewrite(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

func TestNATSCredentials(t *testing.T) {
	t.Parallel()
	user, seed := nkey(t, nkeys.CreateUser)
	_, otherSeed := nkey(t, nkeys.CreateUser)
	operator, creds := decentral(t)
	_, otherCreds := decentral(t)
	for name, c := range map[string]struct {
		config   string
		url      string // user information in the URL
		good     farm.NATSAccess
		bad      farm.NATSAccess
		otherURL string
	}{
		"user": {
			config: `authorization { users: [{ user: u, password: "secret" }] }`,
			good:   farm.NATSAccess{User: "u", Password: "secret"},
			bad:    farm.NATSAccess{User: "u", Password: "another secret"},
		},
		"password file": {
			config: `authorization { users: [{ user: u, password: "secret" }] }`,
			good:   farm.NATSAccess{User: "u", PasswordFile: file(t, "secret\n")},
			bad:    farm.NATSAccess{User: "u", PasswordFile: file(t, "another secret")},
		},
		"user in the URL": {
			config: `authorization { users: [{ user: u, password: "secret" }] }`,
			url:    "u:secret@", otherURL: "u:another-secret@",
		},
		"token": {
			config: `authorization { token: "secret" }`,
			good:   farm.NATSAccess{Token: "secret"},
			bad:    farm.NATSAccess{TokenFile: file(t, "another secret")},
		},
		"nkey": {
			config: fmt.Sprintf(`authorization { users: [{ nkey: %s }] }`, user),
			good:   farm.NATSAccess{NKeyFile: file(t, seed)},
			bad:    farm.NATSAccess{NKeyFile: file(t, otherSeed)},
		},
		"creds": {
			config: operator,
			good:   farm.NATSAccess{CredsFile: file(t, creds)},
			bad:    farm.NATSAccess{CredsFile: file(t, otherCreds)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := servers.StartNATS(t, servers.NATSOptions{Config: c.config})
			with := func(user string) string { return strings.Replace(s.URL, "://", "://"+user, 1) }
			b := servers.Dial(t, atNATS(with(c.url), c.good), farm.DialOptions{})
			if _, err := b.Ledger.Secret(t.Context(), "some"); err != nil {
				t.Error(err)
			}
			wantRefused(t, "a stranger", atNATS(s.URL, farm.NATSAccess{}))
			wantRefused(t, "another", atNATS(with(c.otherURL), c.bad))
		})
	}
}

// nkey makes a key pair.
func nkey(t *testing.T, create func() (nkeys.KeyPair, error)) (public, seed string) {
	t.Helper()
	pair, err := create()
	if err != nil {
		t.Fatal(err)
	}
	if public, err = pair.PublicKey(); err != nil {
		t.Fatal(err)
	}
	b, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	return public, string(b)
}

// decentral makes an operator, an account that may use JetStream and a user: the
// server's configuration, and the user's credentials file.
func decentral(t *testing.T) (config, creds string) {
	t.Helper()
	operator, err := nkeys.CreateOperator()
	if err != nil {
		t.Fatal(err)
	}
	encode := func(c interface {
		Encode(pair nkeys.KeyPair) (string, error)
	}, by nkeys.KeyPair) string {
		token, err := c.Encode(by)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	operatorKey, err := operator.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	systemKey, _ := nkey(t, nkeys.CreateAccount)
	accountKey, accountSeed := nkey(t, nkeys.CreateAccount)
	account, err := nkeys.FromSeed([]byte(accountSeed))
	if err != nil {
		t.Fatal(err)
	}
	farmAccount := jwt.NewAccountClaims(accountKey)
	farmAccount.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	operatorClaims := jwt.NewOperatorClaims(operatorKey)
	operatorClaims.SystemAccount = systemKey
	userKey, userSeed := nkey(t, nkeys.CreateUser)
	b, err := jwt.FormatUserConfig(encode(jwt.NewUserClaims(userKey), account), []byte(userSeed))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload { %s: %s, %s: %s }\n",
		encode(operatorClaims, operator), systemKey,
		systemKey, encode(jwt.NewAccountClaims(systemKey), operator),
		accountKey, encode(farmAccount, operator)), string(b)
}

func TestNATSAccessRefuses(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]farm.Endpoints{
		"two ways":          atNATS("nats://127.0.0.1:1", farm.NATSAccess{User: "u", Password: "p", Token: "t"}),
		"URL and token":     atNATS("nats://u:p@127.0.0.1:1", farm.NATSAccess{Token: "t"}),
		"no user":           atNATS("nats://127.0.0.1:1", farm.NATSAccess{Password: "p"}),
		"password twice":    atNATS("nats://127.0.0.1:1", farm.NATSAccess{User: "u", Password: "p", PasswordFile: "f"}),
		"token twice":       atNATS("nats://127.0.0.1:1", farm.NATSAccess{Token: "t", TokenFile: "f"}),
		"key alone":         atNATS("nats://127.0.0.1:1", farm.NATSAccess{KeyFile: "f"}),
		"no such file":      atNATS("nats://127.0.0.1:1", farm.NATSAccess{CAFile: "/does/not/exist"}),
		"no such creds":     atNATS("nats://127.0.0.1:1", farm.NATSAccess{CredsFile: "/does/not/exist"}),
		"no such token":     atNATS("nats://127.0.0.1:1", farm.NATSAccess{TokenFile: "/does/not/exist"}),
		"no such password":  atNATS("nats://127.0.0.1:1", farm.NATSAccess{User: "u", PasswordFile: "/does/not/exist"}),
		"authority of text": atNATS("nats://127.0.0.1:1", farm.NATSAccess{CAFile: file(t, base64.StdEncoding.EncodeToString([]byte("x")))}),
	} {
		b, err := farm.Dial(t.Context(), e, farm.DialOptions{}) // without waiting for a server
		if err == nil {
			t.Errorf("%s: taken", name)
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// secured are the three servers with TLS, client certificates where they can
// be, and credentials.
type secured struct {
	ca        *servers.CA
	redis     *servers.Redis
	s3        *servers.S3
	endpoints farm.Endpoints
}

const (
	natsUsers = `authorization { users: [{ user: farm, password: "%s" }] }`
	redisUser = "user farm on >%s ~* &* +@all"
)

// secure starts Redis and S3; NATS, alone or a cluster, is the caller's.
func secure(t *testing.T) *secured {
	t.Helper()
	s := &secured{ca: servers.NewCA(t)}
	s.redis = servers.StartRedis(t, servers.RedisOptions{
		TLS: &servers.TLS{CA: s.ca, ClientCerts: true}, ACL: []string{"user default off", fmt.Sprintf(redisUser, "secret")},
	})
	s.s3 = servers.StartS3(t, servers.S3Options{TLS: &servers.TLS{CA: s.ca}})
	cert, key := s.ca.Issue(t, "farm")
	s.endpoints = farm.Endpoints{
		NATS:     farm.NATSAccess{CAFile: s.ca.File, CertFile: cert, KeyFile: key, User: "farm", PasswordFile: file(t, "secret")},
		RedisURL: s.redis.URL,
		Redis:    progress.Access{CAFile: s.ca.File, CertFile: cert, KeyFile: key, User: "farm", PasswordFile: file(t, "secret")},
		S3:       s.s3.Config("farm"),
	}
	s.endpoints.S3.CAFile = s.ca.File
	return s
}

func (s *secured) nats() servers.NATSOptions {
	return servers.NATSOptions{TLS: &servers.TLS{CA: s.ca, ClientCerts: true}, Config: fmt.Sprintf(natsUsers, "secret")}
}
