package blob

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/vidforge/vidforge/pkg/render"
)

// Session tokens go with every request and into every URL.
func TestSessionToken(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("X-Amz-Security-Token") }))
	defer server.Close()
	s, err := Open(t.Context(), Config{Endpoint: server.URL, Bucket: "bucket", PathStyle: true, AccessKey: "a", SecretKey: "s", SessionToken: "t0ken"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if token := <-got; token != "t0ken" {
		t.Errorf("sent %q", token)
	}
	target, _, err := s.PresignGet(t.Context(), render.Object{Key: "k"}, PresignOptions{TTL: time.Minute})
	if err != nil || !strings.Contains(target, "X-Amz-Security-Token=t0ken") {
		t.Errorf("%s, %v", target, err)
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, ".aws"), 0o700); err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(home, ".aws", "credentials")
	if err := os.WriteFile(shared, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"AWS_ACCESS_KEY_ID": "a", "AWS_WEB_IDENTITY_TOKEN_FILE": "f", "HOME": home}, "AWS_ACCESS_KEY_ID"},
		{map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": "f", "HOME": home}, "web identity"},
		{map[string]string{"HOME": home, "AWS_CONTAINER_CREDENTIALS_FULL_URI": "u"}, "file " + shared},
		{map[string]string{"AWS_SHARED_CREDENTIALS_FILE": "/f", "HOME": home}, "file /f"},
		{map[string]string{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "u", "HOME": "/none"}, "container role"},
		{map[string]string{"AWS_EC2_METADATA_DISABLED": "TRUE"}, "none"},
		{nil, "the machine's role"},
	} {
		if got, _ := environment(func(name string) string { return c.env[name] }); got != c.want {
			t.Errorf("%v: %s, want %s", c.env, got, c.want)
		}
	}
}

// scripted is a source that answers as it is told.
type scripted struct {
	credentials.Expiry
	value credentials.Value
	err   error
	asked int
}

func (s *scripted) Retrieve() (credentials.Value, error) { return s.RetrieveWithCredContext(nil) }

func (s *scripted) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	s.asked++
	if s.err != nil {
		return credentials.Value{}, s.err
	}
	s.SetExpiration(s.value.Expiration, credentials.DefaultExpiryWindow)
	return s.value, nil
}

// A source that is down when keys are renewed, some time before their end, does
// no harm until then, and is not asked all the time.
func TestKeysAreUsedUntilTheirEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &scripted{}
		c := credentials.New(&keeper{name: "test", source: source})
		source.err = errors.New("down")
		if _, err := c.GetWithContext(nil); err == nil || !strings.Contains(err.Error(), "credentials from test: down") {
			t.Fatalf("without any: %v", err)
		}
		source.err, source.value = nil, credentials.Value{AccessKeyID: "a", SecretAccessKey: "s", Expiration: time.Now().Add(100 * time.Second)}
		if v, err := c.GetWithContext(nil); err != nil || v.AccessKeyID != "a" {
			t.Fatal(v, err)
		}
		source.err, source.asked = errors.New("down"), 0
		for range 18 { // until 90 s
			time.Sleep(5 * time.Second)
			if v, err := c.GetWithContext(nil); err != nil || v.AccessKeyID != "a" {
				t.Fatal(v, err)
			}
		}
		if source.asked == 0 || source.asked > 2 {
			t.Errorf("asked %d times in 10 s", source.asked)
		}
		time.Sleep(11 * time.Second)
		if v, err := c.GetWithContext(nil); err == nil {
			t.Errorf("got %v after the end", v)
		}
		source.err, source.value = nil, credentials.Value{AccessKeyID: "b", SecretAccessKey: "s", Expiration: time.Now().Add(100 * time.Second)}
		if v, err := c.GetWithContext(nil); err != nil || v.AccessKeyID != "b" {
			t.Fatal(v, err)
		}
		source.value = credentials.Value{} // what a client takes for leave to sign nothing
		time.Sleep(200 * time.Second)
		if v, err := c.GetWithContext(nil); err == nil {
			t.Errorf("got %v", v)
		}
	})
}

func TestConfigOfCredentials(t *testing.T) {
	t.Parallel()
	good := Config{Endpoint: "https://store.example", Bucket: "bucket", AccessKey: "a", SecretKey: "s"}
	for name, change := range map[string]func(*Config){
		"token alone":      func(c *Config) { c.AccessKey, c.SecretKey, c.SessionToken = "", "", "t" },
		"keys twice":       func(c *Config) { c.CredentialsFile = "f" },
		"secret alone":     func(c *Config) { c.AccessKey = "" },
		"no authority":     func(c *Config) { c.CAFile = "/does/not/exist" },
		"no bucket":        func(c *Config) { c.Bucket = "" },
		"bucket's name":    func(c *Config) { c.Bucket = "Bucket" },
		"bucket with dots": func(c *Config) { c.Bucket = "a.bucket" },
		"address":          func(c *Config) { c.Endpoint = "http://127.0.0.1:9000" },
		"public address":   func(c *Config) { c.PublicEndpoint = "http://[::1]:9000" },
	} {
		c := good
		change(&c)
		if s, err := Open(t.Context(), c); err == nil {
			s.Close()
			t.Errorf("%s: taken", name)
		}
	}
	good.Bucket, good.PathStyle = "a.bucket", true
	s, err := Open(t.Context(), good)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}
