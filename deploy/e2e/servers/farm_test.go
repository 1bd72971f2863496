package servers_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/e2e/servers"
	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/progress"
	"github.com/vidforge/vidforge/pkg/render"
)

// use does something with each store.
func use(ctx context.Context, b *farm.Backends, name string) error {
	rec := render.New(render.NewID(), "tenant", render.Spec{}, render.SourceRef{}, nil, time.Now())
	if _, err := b.Ledger.CreateRender(ctx, rec); err != nil {
		return err
	}
	if _, err := b.Ledger.GetRender(ctx, "tenant", rec.ID); err != nil {
		return err
	}
	work := render.Work{Tenant: "tenant", Task: rec.ID, Generation: 1, Stage: render.StagePlan}
	if err := b.Jobs.Enqueue(ctx, jobs.Message{Work: work}); err != nil {
		return err
	}
	if err := b.Progress.Report(ctx, render.Sample{Work: work, Attempt: 1}); err != nil {
		return err
	}
	if _, err := b.Blobs.Put(ctx, name, strings.NewReader("text"), blob.PutOptions{Size: 4}); err != nil {
		return err
	}
	return nil
}

// TestSecuredCluster: a farm as it is installed: records over eight shards on
// three nodes, every server behind TLS and a password.
func TestSecuredCluster(t *testing.T) {
	t.Parallel()
	s := secure(t)
	c := servers.StartCluster(t, s.nats())
	e := s.endpoints
	e.NATSURL = c.URL
	b := servers.Dial(t, e, farm.DialOptions{Tuning: farm.Tuning{Shards: 8, Replicas: 3}})
	for n := range 16 {
		if err := use(t.Context(), b, strconv.Itoa(n)); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for _, err := range b.Ledger.Renders(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 16 {
		t.Errorf("%d records, want 16", n)
	}
	// Another process finds the farm as it is, without being told its size.
	if err := use(t.Context(), servers.Dial(t, e, farm.DialOptions{}), "other"); err != nil {
		t.Error(err)
	}
	t.Run("large object", func(t *testing.T) { largeObject(t, s, b) })

	stranger := e
	stranger.NATS.CAFile = servers.NewCA(t).File
	wantRefused(t, "a process that does not trust the server", stranger)
	stranger = e
	stranger.NATS.CertFile, stranger.NATS.KeyFile = servers.NewCA(t).Issue(t, "farm")
	wantRefused(t, "a process with a stranger's certificate", stranger)
	for name, access := range map[string]progress.Access{
		"no certificate": {CAFile: s.ca.File, User: "farm", Password: "secret"},
		"default user":   {CAFile: e.Redis.CAFile, CertFile: e.Redis.CertFile, KeyFile: e.Redis.KeyFile, Password: "secret"},
		"not trusted":    {CAFile: stranger.NATS.CertFile, CertFile: e.Redis.CertFile, KeyFile: e.Redis.KeyFile, User: "farm", Password: "secret"},
	} {
		client, err := progress.Endpoint{URL: e.RedisURL, Access: access}.Connect()
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Ping(t.Context()).Err(); err == nil {
			t.Errorf("redis, %s: let in", name)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}

// largeObject goes by parts over https, comes back, and is given to a client.
func largeObject(t *testing.T, s *secured, b *farm.Backends) {
	data := make([]byte, 40<<20)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	object, err := b.Blobs.Put(t.Context(), "large", bytes.NewReader(data), blob.PutOptions{Size: int64(len(data))})
	if err != nil {
		t.Fatal(err)
	}
	target, _, err := b.Blobs.PresignGet(t.Context(), object, blob.PresignOptions{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: s.ca.Config(t)}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get(target)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !bytes.Equal(got, data) {
		t.Errorf("%s, %d bytes of %d, %v", resp.Status, len(got), len(data), err)
	}
}

// TestRotation: everything that a farm proves itself with, and trusts, is
// replaced under a running process. It comes back by itself.
func TestRotation(t *testing.T) {
	t.Parallel()
	s := secure(t)
	n := servers.StartNATS(t, s.nats())
	e := s.endpoints
	e.NATSURL = n.URL
	keys := servers.Account{Access: "farmkey", Secret: "first-secret", Role: "admin"}
	s.s3.SetAccounts(t, keys)
	credentials := func(a servers.Account) string {
		return fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", a.Access, a.Secret)
	}
	e.S3.AccessKey, e.S3.SecretKey, e.S3.CredentialsFile = "", "", file(t, credentials(keys))
	b := servers.Dial(t, e, farm.DialOptions{})
	if err := use(t.Context(), b, "before"); err != nil {
		t.Fatal(err)
	}

	s.ca.Renew(t)
	rewrite(t, e.NATS.PasswordFile, "another")
	rewrite(t, e.Redis.PasswordFile, "another")
	keys.Secret = "second-secret"
	rewrite(t, e.S3.CredentialsFile, credentials(keys))
	s.s3.SetAccounts(t, keys)
	s.redis.SetACL(t, "user default off", fmt.Sprintf(redisUser, "another"))
	n.Write(t, fmt.Sprintf(natsUsers, "another"))
	for _, p := range []*servers.Process{n.Process, s.redis.Process, s.s3.Process} {
		p.Restart(t)
	}
	if err := use(t.Context(), b, "after"); err != nil {
		t.Error(err)
	}

	// Without a restart: the server throws its clients out.
	rewrite(t, e.NATS.PasswordFile, "third")
	n.SetConfig(t, fmt.Sprintf(natsUsers, "third"))
	if err := use(t.Context(), b, "at last"); err != nil {
		t.Error(err)
	}
}
