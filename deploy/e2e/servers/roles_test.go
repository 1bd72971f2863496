package servers_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/e2e/servers"
	"github.com/vidforge/vidforge/pkg/blob"
)

// lifetime of the keys that the services below hand out.
const lifetime = time.Second

// keyring hands out accounts that end, and makes the S3 know only the newest.
// They come without session tokens, which this S3 takes from its own token
// service only.
type keyring struct {
	s3 *servers.S3

	mu     sync.Mutex
	issued int
}

func (k *keyring) issue(t *testing.T) (a servers.Account, ends string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.issued++
	a = servers.Account{Access: fmt.Sprintf("key%d", k.issued), Secret: fmt.Sprintf("secret%d", k.issued), Role: "admin"}
	k.s3.SetAccounts(t, a)
	return a, time.Now().Add(lifetime).UTC().Format(time.RFC3339Nano)
}

func (k *keyring) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.issued
}

// serve plays the services of the "AWS SDKs and Tools Reference Guide": a
// machine's metadata (IMDSv2), a container's endpoint, a token service.
func (k *keyring) serve(t *testing.T) string {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter) {
		a, ends := k.issue(t)
		if err := json.NewEncoder(w).Encode(map[string]any{
			"Code": "Success", "AccessKeyId": a.Access, "SecretAccessKey": a.Secret, "Expiration": ends,
		}); err != nil {
			t.Error(err)
		}
	}
	const session, role = "session", "/latest/meta-data/iam/security-credentials/"
	mux.HandleFunc("PUT /latest/api/token", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds") == "" {
			t.Error("the session has no length")
		}
		_, _ = fmt.Fprint(w, session)
	})
	mux.HandleFunc("GET "+role+"{name...}", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-Aws-Ec2-Metadata-Token") != session:
			w.WriteHeader(http.StatusUnauthorized)
		case r.PathValue("name") == "":
			_, _ = fmt.Fprintln(w, "farm-role")
		default:
			answer(w)
		}
	})
	mux.HandleFunc("GET /container", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "container token" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		answer(w)
	})
	mux.HandleFunc("POST /sts", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("Action") != "AssumeRoleWithWebIdentity" || r.FormValue("WebIdentityToken") != "pod token" || r.FormValue("RoleArn") != "arn:farm" {
			t.Errorf("asked for %v", r.Form)
			w.WriteHeader(http.StatusForbidden)
			return
		}
		a, ends := k.issue(t)
		_, _ = fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><Expiration>%s</Expiration>
</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, a.Access, a.Secret, ends)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// TestRoles: without keys in its settings, a farm uses what the machine, the
// container or the pod is given, and renews it before it ends.
func TestRoles(t *testing.T) { // sets variables: not beside others
	s := servers.StartS3(t, servers.S3Options{})
	tokenFile := file(t, "container token")
	for _, c := range []struct {
		name string
		env  map[string]string // URL stands for the service's
	}{
		{"machine", map[string]string{"AWS_EC2_METADATA_SERVICE_ENDPOINT": "URL"}},
		{"container", map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "URL/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "container token"}},
		{"pod identity", map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "URL/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": tokenFile}},
		{"web identity", map[string]string{"AWS_ENDPOINT_URL_STS": "URL/sts", "AWS_ROLE_ARN": "arn:farm", "AWS_WEB_IDENTITY_TOKEN_FILE": file(t, "pod token")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("HOME", t.TempDir())
			keys := &keyring{s3: s}
			url := keys.serve(t)
			for name, value := range c.env {
				t.Setenv(name, strings.Replace(value, "URL", url, 1))
			}
			cfg := s.Config("roles")
			cfg.AccessKey, cfg.SecretKey = "", ""
			store, err := blob.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			for n := 0; keys.count() < 3; n++ {
				object, err := store.Put(t.Context(), fmt.Sprintf("%s/%d", c.name, n), strings.NewReader("text"), blob.PutOptions{Size: 4})
				if err != nil {
					t.Fatalf("with keys %d: %v", keys.count(), err)
				}
				_, expires, err := store.PresignGet(t.Context(), object, blob.PresignOptions{TTL: time.Hour})
				if err != nil {
					t.Fatal(err)
				}
				if time.Until(expires) > lifetime {
					t.Fatalf("a URL that outlives its keys: %v", expires)
				}
				time.Sleep(50 * time.Millisecond) // the keys' age is what this is about
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Setenv("HOME", t.TempDir())
		t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
		cfg := s.Config("roles")
		cfg.AccessKey, cfg.SecretKey, cfg.CreateBucket, cfg.Attempts = "", "", false, 1
		store, err := blob.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		if err := store.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "s3-access-key") {
			t.Errorf("without any credentials: %v", err)
		}
	})
}

// TestBucketIsMissing: what a farm says that was given a bucket which is not
// there names the setting and the way out.
func TestBucketIsMissing(t *testing.T) {
	t.Parallel()
	cfg := servers.StartS3(t, servers.S3Options{}).Config("not-there")
	cfg.CreateBucket = false
	store, err := blob.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	err = store.Ping(t.Context())
	if err == nil {
		t.Fatal("the bucket is there")
	}
	for _, part := range []string{"not-there", "s3-bucket", "make it"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v: says nothing of %q", err, part)
		}
	}
}
