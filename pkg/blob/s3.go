package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"

	"github.com/vidforge/vidforge/pkg/filename"
	"github.com/vidforge/vidforge/pkg/internal/tlsfiles"
	"github.com/vidforge/vidforge/pkg/render"
)

// S3 is a Store on S3-compatible storage.
//
// A Put is create-only by If-None-Match, on single puts and on the end of
// multipart uploads alike. Where a server ignores that header two writers of
// one key both succeed and the later one stays; that the farm's keys end in a
// random attempt id keeps it from happening. An upload whose answer got lost is
// told from a taken key by a random mark in the object's metadata.
type S3 struct {
	cfg    Config
	creds  *credentials.Credentials
	core   *minio.Core
	public *minio.Client
	// transport is this store's own, nil if the caller gave one.
	transport *http.Transport
	buffers   sync.Pool // of *[]byte, PartSize long
}

var _ Store = (*S3)(nil)

// Open makes a store. It does not connect, except to make the bucket if
// Config.CreateBucket says so: Ping tells whether the store answers.
func Open(ctx context.Context, cfg Config) (*S3, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &S3{cfg: cfg, creds: cfg.credentials()}
	var err error
	if s.cfg.Transport == nil {
		if s.transport, err = newTransport(cfg.CAFile); err != nil {
			return nil, err
		}
		s.cfg.Transport = otelhttp.NewTransport(s.transport)
	}
	if s.core, err = s.client(cfg.Endpoint); err != nil {
		return nil, err
	}
	public, err := s.client(cfg.PublicEndpoint)
	if err != nil {
		return nil, err
	}
	s.public = public.Client
	if cfg.CreateBucket {
		if err := s.createBucket(ctx); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

func newTransport(caFile string) (*http.Transport, error) {
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConns:        256,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true, // lengths and hashes are those of the stored bytes
	}
	if caFile == "" {
		return t, nil
	}
	files := tlsfiles.Files{CA: caFile}
	var err error
	if t.TLSClientConfig, err = files.Config(); err != nil { // for what goes through a proxy
		return nil, fmt.Errorf("blob: CAFile: %w", err)
	}
	t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, t.TLSHandshakeTimeout)
		defer cancel()
		return files.Dial(ctx, dialer, network, addr)
	}
	return t, nil
}

func (s *S3) client(endpoint string) (*minio.Core, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("blob: endpoint: %w", err)
	}
	lookup := minio.BucketLookupDNS
	if s.cfg.PathStyle {
		lookup = minio.BucketLookupPath
	}
	c, err := minio.NewCore(u.Host, &minio.Options{
		Creds:        s.creds,
		Secure:       u.Scheme == "https",
		Region:       s.cfg.Region, // given, so that it is never looked up
		BucketLookup: lookup,
		Transport:    hints{s.cfg.Transport},
		MaxRetries:   1, // S3.do tries again, with a limit for each try
		// Trailing checksums are not understood by every store.
		TrailingHeaders: false,
	})
	if err != nil {
		return nil, fmt.Errorf("blob: client for %s: %w", u.Host, err)
	}
	return c, nil
}

// Close closes idle connections. Calls that run are not disturbed.
func (s *S3) Close() {
	if s.transport != nil {
		s.transport.CloseIdleConnections()
	}
}

func (s *S3) createBucket(ctx context.Context) error {
	err := s.do(ctx, s.cfg.Timeout, func(ctx context.Context, _ *watchdog) error {
		exists, err := s.core.BucketExists(ctx, s.cfg.Bucket)
		if err != nil || exists {
			return err //nolint:wrapcheck // do wraps
		}
		err = s.core.MakeBucket(ctx, s.cfg.Bucket, minio.MakeBucketOptions{Region: s.cfg.Region})
		if minio.ToErrorResponse(err).Code == minio.BucketAlreadyOwnedByYou { // made by another at this moment
			return nil
		}
		return err //nolint:wrapcheck // do wraps
	})
	if err != nil {
		return fmt.Errorf("blob: create bucket %s: %w", s.cfg.Bucket, err)
	}
	return nil
}

// Ping implements Store.
func (s *S3) Ping(ctx context.Context) error {
	var exists bool
	err := s.do(ctx, s.cfg.Timeout, func(ctx context.Context, _ *watchdog) (err error) {
		exists, err = s.core.BucketExists(ctx, s.cfg.Bucket)
		return err //nolint:wrapcheck // do wraps
	})
	if err != nil {
		return fmt.Errorf("blob: ping: %w", err)
	}
	if !exists {
		return fmt.Errorf("blob: ping: %w", s.noBucket())
	}
	return nil
}

func (s *S3) noBucket() error {
	return s.classify(minio.ErrorResponse{StatusCode: http.StatusNotFound, Code: minio.NoSuchBucket, Message: "The specified bucket does not exist", BucketName: s.cfg.Bucket}, false)
}

// Get implements Store. A body that breaks off is taken up again where it
// ended, pinned to the same object, a few times before it is an error.
func (s *S3) Get(ctx context.Context, key string, o GetOptions) (io.ReadCloser, error) {
	r := &reader{store: s, ctx: ctx, key: key, etag: o.ETag, offset: o.Offset, left: o.Length}
	if err := r.open(true); err != nil {
		return nil, fmt.Errorf("blob: get %s: %w", key, err)
	}
	return r, nil
}

// downloads is how often a download is made whose bytes are not the object's:
// what suffered on its way comes whole the next time, what suffered in the store
// does not.
const downloads = 3

// Download implements Store.
func (s *S3) Download(ctx context.Context, o render.Object, path string) (err error) {
	fail := func(err error) error { return fmt.Errorf("blob: download %s: %w", o.Key, err) }
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fail(fmt.Errorf("%w: %w", ErrFile, err))
	}
	defer func() {
		if cerr := f.Close(); err == nil && cerr != nil {
			err = fail(fmt.Errorf("%w: %w", ErrFile, cerr))
		}
		if err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	for range downloads {
		if err = s.downloadOnce(ctx, o, f); !errors.Is(err, ErrMismatch) {
			break
		}
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// downloadOnce writes an object over a file and compares it with its record.
func (s *S3) downloadOnce(ctx context.Context, o render.Object, f *os.File) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("%w: %w", ErrFile, err)
	}
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("%w: %w", ErrFile, err)
	}
	r, err := s.Get(ctx, o.Key, GetOptions{ETag: o.ETag})
	if err != nil {
		return err
	}
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(fileWriter{f}, hash), r)
	if err = errors.Join(err, r.Close()); err != nil {
		return err
	}
	if n != o.Size {
		return fmt.Errorf("%w: %d bytes, not %d", ErrMismatch, n, o.Size)
	}
	if sum := hex.EncodeToString(hash.Sum(nil)); o.SHA256 != "" && sum != o.SHA256 {
		return fmt.Errorf("%w: SHA-256 is %s, not %s", ErrMismatch, sum, o.SHA256)
	}
	return nil
}

// fileWriter marks a file's failures as such.
type fileWriter struct{ f *os.File }

// Write implements io.Writer.
func (w fileWriter) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	if err != nil {
		return n, fmt.Errorf("%w: %w", ErrFile, err)
	}
	return n, nil
}

// Stat implements Store.
func (s *S3) Stat(ctx context.Context, key string) (render.Object, error) {
	info, err := s.head(ctx, key)
	if errors.Is(err, ErrNotFound) {
		// The answer has no body that would tell a lost bucket from it.
		if perr := s.Ping(ctx); perr != nil {
			err = perr
		}
	}
	if err != nil {
		return render.Object{}, fmt.Errorf("blob: stat %s: %w", key, err)
	}
	return render.Object{Key: key, ETag: info.ETag, Size: info.Size}, nil
}

func (s *S3) head(ctx context.Context, key string) (minio.ObjectInfo, error) {
	var info minio.ObjectInfo
	if err := checkKey(key); err != nil {
		return info, err
	}
	err := s.do(ctx, s.cfg.Timeout, func(ctx context.Context, _ *watchdog) (err error) {
		info, err = s.core.StatObject(ctx, s.cfg.Bucket, key, minio.StatObjectOptions{})
		return err //nolint:wrapcheck // do wraps
	})
	return info, err
}

// maxDelete is the greatest number of keys in one request.
const maxDelete = 1000

// Delete implements Store.
func (s *S3) Delete(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return fmt.Errorf("blob: delete: %w", err)
		}
	}
	for batch := range slices.Chunk(keys, maxDelete) {
		err := s.do(ctx, s.cfg.Timeout, func(ctx context.Context, w *watchdog) error {
			results, err := s.core.RemoveObjectsWithIter(ctx, s.cfg.Bucket, func(yield func(minio.ObjectInfo) bool) {
				for _, key := range batch {
					if !yield(minio.ObjectInfo{Key: key}) {
						return
					}
				}
			}, minio.RemoveObjectsOptions{})
			if err != nil {
				return err //nolint:wrapcheck // do wraps
			}
			var failed error
			for r := range results {
				w.touch()
				if r.Err != nil && failed == nil && minio.ToErrorResponse(r.Err).Code != minio.NoSuchKey {
					failed = fmt.Errorf("%s: %w", r.ObjectName, r.Err)
				}
			}
			return failed
		})
		if err != nil {
			return fmt.Errorf("blob: delete: %w", err)
		}
	}
	return nil
}

// List implements Store.
func (s *S3) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if err := checkPrefix(prefix); err != nil {
			yield(Info{}, fmt.Errorf("blob: list: %w", err))
			return
		}
		var last string
		var stopped, moved bool
		for {
			moved = false
			err := s.do(ctx, s.cfg.Timeout, func(ctx context.Context, w *watchdog) error {
				for o := range s.core.ListObjectsIter(ctx, s.cfg.Bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true, StartAfter: last}) {
					if o.Err != nil {
						return o.Err
					}
					w.pause() // the consumer's time is not the store's
					last, moved = o.Key, true
					if stopped = !yield(Info{Key: o.Key, Size: o.Size, Modified: o.LastModified}, nil); stopped {
						return nil
					}
					w.touch()
				}
				return ctx.Err() // the iterator ends silently
			})
			if err != nil && moved && ctx.Err() == nil && errors.Is(err, ErrUnavailable) {
				continue // it got further: the tries count anew
			}
			if err != nil && !stopped {
				yield(Info{}, fmt.Errorf("blob: list %s: %w", prefix, err))
			}
			return
		}
	}
}

// Presigned URLs live 1 second to 7 days: signature version 4 allows no more.
const maxPresign = 7 * 24 * time.Hour

// PresignGet implements Store.
func (s *S3) PresignGet(ctx context.Context, o render.Object, p PresignOptions) (string, time.Time, error) {
	query := url.Values{}
	if p.ContentType != "" {
		query.Set("response-content-type", p.ContentType)
	}
	if p.Filename != "" {
		query.Set("response-content-disposition", filename.Disposition("attachment", p.Filename))
	}
	return s.presign(ctx, http.MethodGet, o.Key, p.TTL, query, nil)
}

// PresignPut implements Store. The client must send the returned header, which
// is part of the signature; the store takes single puts of up to 5 GiB.
func (s *S3) PresignPut(ctx context.Context, key string, p PresignOptions) (string, http.Header, time.Time, error) {
	if p.Size < 0 || p.Size > maxPartSize {
		return "", nil, time.Time{}, fmt.Errorf("blob: presign %s: %w", key, ErrTooLarge)
	}
	header := http.Header{"Content-Length": {strconv.FormatInt(p.Size, 10)}}
	if p.ContentType != "" {
		header.Set("Content-Type", p.ContentType)
	}
	u, expires, err := s.presign(ctx, http.MethodPut, key, p.TTL, nil, header)
	return u, header, expires, err
}

func (s *S3) presign(ctx context.Context, method, key string, ttl time.Duration, query url.Values, header http.Header) (string, time.Time, error) {
	if ttl < time.Second || ttl > maxPresign {
		return "", time.Time{}, fmt.Errorf("blob: presign %s: TTL must be 1 second to 7 days", key)
	}
	if err := checkKey(key); err != nil {
		return "", time.Time{}, fmt.Errorf("blob: presign: %w", err)
	}
	u, err := s.public.PresignHeader(ctx, method, s.cfg.Bucket, key, ttl, query, header)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("blob: presign %s: %w", key, err)
	}
	signed, err := time.Parse("20060102T150405Z", u.Query().Get("X-Amz-Date"))
	if err != nil {
		return "", time.Time{}, fmt.Errorf("blob: presign %s: date of signature: %w", key, err)
	}
	expires := signed.Add(ttl.Truncate(time.Second))
	creds, err := s.creds.GetWithContext(s.public.CredContext())
	if err != nil {
		return "", time.Time{}, fmt.Errorf("blob: presign %s: %w", key, err)
	}
	if end := creds.Expiration; !end.IsZero() && end.Before(expires) {
		expires = end // a signature dies with what it was made with
	}
	return u.String(), expires, nil
}
