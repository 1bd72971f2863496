package blob

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

const (
	// metadataTimeout bounds one question to a metadata or token service.
	metadataTimeout = 5 * time.Second
	// renewPause is how long credentials that are still good are used after
	// their renewal failed, before it is tried again.
	renewPause = 10 * time.Second
)

// credentials are the source of what requests are signed with.
func (c Config) credentials() *credentials.Credentials {
	switch {
	case c.AccessKey != "":
		return credentials.NewStaticV4(c.AccessKey, c.SecretKey, c.SessionToken)
	case c.CredentialsFile != "":
		return credentials.New(&keeper{name: "file " + c.CredentialsFile, source: &watchedFile{path: c.CredentialsFile}})
	default:
		name, source := environment(os.Getenv)
		return credentials.New(&keeper{name: name, source: source})
	}
}

// environment finds the source that the AWS SDKs would, in their order: keys in
// variables, a web identity token (a pod's service account), the shared
// credentials file, the container's endpoint (ECS, EKS Pod Identity), the
// machine's metadata service (IMDSv2). It decides by what is set, not by what
// answers: a source that is down for a moment must not hand over to another, nor
// to unsigned requests. See the "AWS SDKs and Tools Reference Guide",
// "Standardized credential providers".
func environment(env func(string) string) (name string, p credentials.Provider) {
	role := &credentials.IAM{Client: &http.Client{Timeout: metadataTimeout, Transport: metadataTransport()}}
	switch {
	case cmp.Or(env("AWS_ACCESS_KEY_ID"), env("AWS_ACCESS_KEY")) != "":
		return "AWS_ACCESS_KEY_ID", &credentials.EnvAWS{}
	case env("AWS_WEB_IDENTITY_TOKEN_FILE") != "":
		role.Endpoint = cmp.Or(env("AWS_ENDPOINT_URL_STS"), env("AWS_ENDPOINT_URL"))
		return "web identity", role
	case sharedFile(env) != "":
		return "file " + sharedFile(env), &watchedFile{path: sharedFile(env)}
	case env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "" || env("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "":
		return "container role", role
	case strings.EqualFold(env("AWS_EC2_METADATA_DISABLED"), "true"):
		return "none", none{}
	default:
		role.Endpoint = strings.TrimSuffix(env("AWS_EC2_METADATA_SERVICE_ENDPOINT"), "/")
		return "the machine's role", role
	}
}

// sharedFile is the shared credentials file, if there is one.
func sharedFile(env func(string) string) string {
	if path := env("AWS_SHARED_CREDENTIALS_FILE"); path != "" {
		return path
	}
	if home := env("HOME"); home != "" {
		path := filepath.Join(home, ".aws", "credentials")
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// metadataTransport goes to addresses of this machine and its link directly.
func metadataTransport() http.RoundTripper {
	return &http.Transport{
		Proxy: func(r *http.Request) (*url.URL, error) {
			if a, err := netip.ParseAddr(r.URL.Hostname()); err == nil && (a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsPrivate()) {
				return nil, nil
			}
			return http.ProxyFromEnvironment(r)
		},
		DialContext:         (&net.Dialer{Timeout: metadataTimeout}).DialContext,
		TLSHandshakeTimeout: metadataTimeout,
		DisableKeepAlives:   true, // asked once in a while
	}
}

// none is a source without credentials.
type none struct{ credentials.Expiry }

func (n none) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return n.Retrieve()
}

func (none) Retrieve() (credentials.Value, error) {
	return credentials.Value{}, errors.New("there are none: set s3-access-key and s3-secret-key, or s3-credentials-file, or give the machine or pod a role")
}

func (none) IsExpired() bool { return true }

// watchedFile reads a credentials file in the format of the AWS SDKs, profile
// AWS_PROFILE or "default", again whenever it was changed.
type watchedFile struct {
	path string
	read fs.FileInfo
	// A profile may name a program or a session; their keys end.
	file credentials.FileAWSCredentials
	ends bool
}

// RetrieveWithCredContext implements credentials.Provider.
func (w *watchedFile) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	info, err := os.Stat(w.path)
	if err != nil {
		return credentials.Value{}, fmt.Errorf("read credentials: %w", err)
	}
	w.file = credentials.FileAWSCredentials{Filename: w.path}
	v, err := w.file.RetrieveWithCredContext(cc)
	if err != nil {
		return credentials.Value{}, fmt.Errorf("read credentials: %w", err)
	}
	w.read, w.ends = info, !v.Expiration.IsZero()
	return v, nil
}

// Retrieve implements credentials.Provider.
func (w *watchedFile) Retrieve() (credentials.Value, error) { return w.RetrieveWithCredContext(nil) }

// IsExpired implements credentials.Provider.
func (w *watchedFile) IsExpired() bool {
	if w.read == nil || w.ends && w.file.IsExpired() {
		return true
	}
	now, err := os.Stat(w.path)
	return err == nil && (!os.SameFile(now, w.read) || !now.ModTime().Equal(w.read.ModTime()) || now.Size() != w.read.Size())
}

// keeper uses what a source gave until it really ends, when the source, asked
// for more some time before, has a bad moment. Without any it fails: the
// client would send unsigned requests. Its user (credentials.Credentials) calls
// it from one goroutine at a time.
type keeper struct {
	name   string
	source credentials.Provider
	last   credentials.Value
	pause  time.Time // no renewal before
}

// RetrieveWithCredContext implements credentials.Provider.
func (k *keeper) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	v, err := k.source.RetrieveWithCredContext(cc)
	if err == nil && (v.AccessKeyID == "" || v.SecretAccessKey == "") {
		err = errors.New("no keys")
	}
	switch {
	case err == nil:
		k.last, k.pause = v, time.Time{}
		return v, nil
	case k.good():
		k.pause = time.Now().Add(renewPause)
		return k.last, nil
	}
	return credentials.Value{}, fmt.Errorf("credentials from %s: %w", k.name, err)
}

// good reports whether the last credentials still are.
func (k *keeper) good() bool {
	return k.last.AccessKeyID != "" && (k.last.Expiration.IsZero() || time.Now().Before(k.last.Expiration))
}

// Retrieve implements credentials.Provider.
func (k *keeper) Retrieve() (credentials.Value, error) { return k.RetrieveWithCredContext(nil) }

// IsExpired implements credentials.Provider.
func (k *keeper) IsExpired() bool {
	return !k.good() || time.Now().After(k.pause) && k.source.IsExpired()
}
