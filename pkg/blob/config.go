package blob

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// Config of an S3-compatible store.
type Config struct {
	// Endpoint is the URL at which the farm reaches the store: scheme, host
	// and optional port, no path. Required.
	Endpoint string
	// PublicEndpoint is the URL at which clients reach the same store;
	// presigned URLs are signed for it, since the host is part of the
	// signature. Defaults to Endpoint.
	PublicEndpoint string
	// Region that requests are signed for; "auto" for stores that have none.
	// Defaults to "us-east-1".
	Region string
	// Bucket holds every object. Required.
	Bucket string
	// AccessKey and SecretKey sign requests; temporary ones come with a
	// SessionToken.
	AccessKey, SecretKey, SessionToken string
	// CredentialsFile holds keys in the format of the AWS SDKs (profile
	// AWS_PROFILE or "default"), and is read again when it changes. Neither this
	// nor AccessKey: what the AWS SDKs would use, see docs/storage.md.
	CredentialsFile string
	// CAFile holds the authorities in PEM that the store's certificate may come
	// from, instead of the system's. It is read again for each connection.
	CAFile string
	// PathStyle puts the bucket into the path rather than into the host name.
	PathStyle bool
	// CreateBucket lets Open make the bucket if it is not there.
	CreateBucket bool

	// PartSize in bytes of a multipart upload, and the most memory that one Put
	// holds, 5 MiB to 5 GiB. Raised where an upload of the announced or greatest
	// size would need more than 10,000 parts. Defaults to 16 MiB.
	PartSize int64
	// Parallel is how many parts of one multipart upload are on their way at
	// once. It counts for bodies that can be read anywhere, such as files, whose
	// parts need no memory; others go part by part. Defaults to 4.
	Parallel int
	// MaxCopy in bytes is the largest object that the store copies by one
	// request; larger ones are copied in parts of that size. Defaults to 5 GiB,
	// which is S3's limit.
	MaxCopy int64
	// Timeout is the longest silence of the store, in the middle of a body or
	// before an answer, after which a try is given up. Answers to copies and
	// to the end of a multipart upload, for which a store may move the whole
	// object, are waited for ten times as long. Defaults to 1 min.
	Timeout time.Duration
	// Attempts is how often a call is tried before its failure is reported as
	// ErrUnavailable. Defaults to 5.
	Attempts int
	// Backoff is the wait before the second try, changed at random by up to
	// half; it doubles from try to try up to twenty times itself. A store that
	// names a time to wait (Retry-After) is heeded, up to Timeout. Defaults to
	// 200 ms.
	Backoff time.Duration
	// Transport carries the requests. Defaults to a transport of its own.
	Transport http.RoundTripper
}

const (
	minPartSize = 5 << 20 // S3's least size of a part that is not the last
	maxPartSize = 5 << 30
	maxParts    = 10_000
)

func (c Config) withDefaults() Config {
	c.PublicEndpoint = cmp.Or(c.PublicEndpoint, c.Endpoint)
	c.Region = cmp.Or(c.Region, "us-east-1")
	c.PartSize = cmp.Or(c.PartSize, 16<<20)
	c.Parallel = cmp.Or(c.Parallel, 4)
	c.MaxCopy = cmp.Or(c.MaxCopy, maxPartSize)
	c.Timeout = cmp.Or(c.Timeout, time.Minute)
	c.Attempts = cmp.Or(c.Attempts, 5)
	c.Backoff = cmp.Or(c.Backoff, 200*time.Millisecond)
	return c
}

func (c Config) validate() error {
	for _, e := range []struct{ name, value string }{{"Endpoint", c.Endpoint}, {"PublicEndpoint", c.PublicEndpoint}} {
		u, err := url.Parse(e.value)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || (u.Path != "" && u.Path != "/") || u.RawQuery != "" {
			return fmt.Errorf("blob: %s must be http://host[:port] or https://host[:port]", e.name)
		}
		if c.PathStyle {
			continue
		}
		// The bucket becomes a part of the host name.
		if host := u.Hostname(); net.ParseIP(host) != nil {
			return fmt.Errorf("blob: %s is an address, so PathStyle (the setting s3-path-style) must be set: no bucket's name can stand before it", e.name)
		}
		if u.Scheme == "https" && strings.Contains(c.Bucket, ".") {
			return errors.New("blob: PathStyle (the setting s3-path-style) must be set for a bucket with dots in its name: no certificate covers it as a host")
		}
	}
	switch {
	case s3utils.CheckValidBucketNameStrict(c.Bucket) != nil:
		return fmt.Errorf("blob: Bucket: %w", s3utils.CheckValidBucketNameStrict(c.Bucket))
	case (c.AccessKey == "") != (c.SecretKey == ""):
		return errors.New("blob: AccessKey and SecretKey go together")
	case c.SessionToken != "" && c.AccessKey == "":
		return errors.New("blob: SessionToken belongs to an AccessKey")
	case c.CredentialsFile != "" && c.AccessKey != "":
		return errors.New("blob: AccessKey and CredentialsFile exclude each other")
	case c.PartSize < minPartSize || c.PartSize > maxPartSize:
		return fmt.Errorf("blob: PartSize must be %d to %d bytes", int64(minPartSize), int64(maxPartSize))
	case c.Parallel < 0:
		return errors.New("blob: Parallel must not be negative")
	case c.MaxCopy < minPartSize || c.MaxCopy > maxPartSize:
		return fmt.Errorf("blob: MaxCopy must be %d to %d bytes", int64(minPartSize), int64(maxPartSize))
	case c.Timeout < 0 || c.Backoff < 0 || c.Attempts < 0:
		return errors.New("blob: Timeout, Backoff and Attempts must not be negative")
	}
	return nil
}

// LogValue keeps the secret out of logs.
func (c Config) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("endpoint", c.Endpoint),
		slog.String("public_endpoint", c.PublicEndpoint),
		slog.String("region", c.Region),
		slog.String("bucket", c.Bucket),
		slog.String("access_key", c.AccessKey),
	)
}
