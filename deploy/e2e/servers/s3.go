package servers

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vidforge/vidforge/pkg/blob"
)

// S3Region is what requests to a started S3 are signed for.
const S3Region = "eu-test-1"

// Account of an S3.
type Account struct {
	Access string `json:"access"`
	Secret string `json:"secret"`
	// Role is user (what bucket policies allow), userplus (and make buckets) or
	// admin.
	Role string `json:"role"`
}

// S3Options of a server.
type S3Options struct {
	// Accounts beside the root account; see S3.SetAccounts.
	Accounts []Account
	// TLS for clients; nil for none. Client certificates are not asked for.
	TLS *TLS
	// Args are further arguments of the program, before its subcommand.
	Args []string
}

// S3 is a running versitygw over a directory. It verifies every signature.
type S3 struct {
	*Process
	// URL is http://127.0.0.1:port, or https://….
	URL string
	// Root is the account that owns the server.
	Root Account
}

// StartS3 starts a versitygw.
func StartS3(t testing.TB, o S3Options) *S3 {
	t.Helper()
	s := &S3{
		Process: &Process{Dir: t.TempDir(), name: "versitygw", path: tool(t, "versitygw")},
		Root:    Account{Access: rand.Text(), Secret: rand.Text(), Role: "admin"},
	}
	addr := fmt.Sprintf("127.0.0.1:%d", holdPort(t))
	s.URL = "http://" + addr
	s.env = []string{"ROOT_ACCESS_KEY=" + s.Root.Access, "ROOT_SECRET_KEY=" + s.Root.Secret}
	s.args = []string{
		"--port", addr, "--region", S3Region, "--health", "/health", "--keep-alive",
		"--iam-dir", s.folder(t, "iam"), "--iam-cache-disable",
	}
	if o.TLS != nil {
		s.URL = "https://" + addr
		cert, key := o.TLS.CA.Issue(t, "s3")
		s.args = append(s.args, "--cert", cert, "--key", key)
	}
	s.SetAccounts(t, o.Accounts...)
	s.args = append(append(s.args, o.Args...), "posix")
	root := s.folder(t, "buckets")
	if err := syscall.Setxattr(root, "user.probe", []byte("1"), 0); err != nil {
		s.args = append(s.args, "--sidecar", s.folder(t, "metadata")) // for file systems without attributes
	}
	s.args = append(s.args, root)
	s.tls = o.TLS
	s.ready = func(ctx context.Context, config *tls.Config) error {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
		defer client.CloseIdleConnections()
		return httpOK(ctx, client, s.URL+"/health")
	}
	s.start(t)
	s.wait(t)
	return s
}

func (s *S3) folder(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(s.Dir, name)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// SetAccounts replaces the accounts beside the root account; the running server
// obeys at once.
func (s *S3) SetAccounts(t testing.TB, accounts ...Account) {
	t.Helper()
	byKey := map[string]Account{}
	for _, a := range accounts {
		byKey[a.Access] = a
	}
	b, err := json.Marshal(map[string]any{"accessAccounts": byKey})
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, filepath.Join("iam", "users.json"), string(b))
}

// Config reaches a bucket with the root account; the first to open it makes it.
func (s *S3) Config(bucket string) blob.Config {
	return blob.Config{
		Endpoint: s.URL, Region: S3Region, Bucket: bucket, PathStyle: true, CreateBucket: true,
		AccessKey: s.Root.Access, SecretKey: s.Root.Secret,
	}
}
