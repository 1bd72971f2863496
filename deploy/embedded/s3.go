package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
	"github.com/versity/versitygw/s3api"
)

// s3Region is what requests to the embedded S3 are signed for.
const s3Region = "us-east-1"

const s3HealthPath = "/healthz"

// S3Options of an embedded S3.
type S3Options struct {
	// Dir holds the objects. Required, absolute.
	Dir string
	// Host to listen on. Defaults to 127.0.0.1.
	Host string
	// Port to listen on, 0 for any free one.
	Port int
	// AccessKey and SecretKey of the only account. Required.
	AccessKey, SecretKey string
	// Logger defaults to one that discards.
	Logger *slog.Logger
}

// S3Server is a running embedded S3: versitygw over a directory.
//
// Only one runs in a process at a time, and while it runs the working directory
// of the process is the server's own: it opens objects by relative paths. So
// whoever starts it makes every other path absolute first, and gives child
// processes a directory explicitly. Shutdown restores the working directory.
type S3Server struct {
	url    string
	cwd    string
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of the server, set before done is closed
	once   sync.Once
}

// s3Running guards the working directory, which is the process's and not ours
// alone: a second server would move it away from under the first.
var s3Running atomic.Bool //nolint:gochecknoglobals // as said

// StartS3 starts the S3 server and waits until it answers.
func StartS3(ctx context.Context, o S3Options) (*S3Server, error) {
	s, err := startS3(ctx, o)
	// Between finding a free port and listening on it, somebody else may have
	// taken it.
	for tries := 0; o.Port == 0 && tries < 3 && errors.Is(err, syscall.EADDRINUSE); tries++ {
		s, err = startS3(ctx, o)
	}
	if err != nil {
		return nil, fmt.Errorf("embedded: start s3: %w", err)
	}
	return s, nil
}

func startS3(ctx context.Context, o S3Options) (_ *S3Server, err error) {
	switch {
	case !filepath.IsAbs(o.Dir):
		return nil, errors.New("the directory must be absolute")
	case o.AccessKey == "" || o.SecretKey == "":
		return nil, errors.New("access and secret key are required")
	}
	if !s3Running.CompareAndSwap(false, true) {
		return nil, errors.New("an S3 runs in this process already")
	}
	defer func() {
		if err != nil {
			s3Running.Store(false)
		}
	}()
	root := filepath.Join(o.Dir, "buckets")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	store, sidecar, err := metadataStore(o.Dir, root)
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr(ctx, o.Host, o.Port)
	if err != nil {
		return nil, err
	}

	cwd, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("working directory: %w", err)
	}
	// PosixOpts.SideCarDir stays empty: it is only checked and printed to
	// standard output, which may be carrying a protocol.
	backend, err := posix.New(root, store, posix.PosixOpts{
		ValidateBucketNames: true,
		CopyObjectThreshold: 5 << 30, // S3's limit; the zero value refuses every copy
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", root, err), os.Chdir(cwd))
	}

	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &S3Server{url: "http://" + addr, cwd: cwd, cancel: cancel, done: make(chan struct{})}
	listening := make(chan struct{})
	go func() {
		defer close(s.done)
		s.err = embedgw.RunVersityGW(runCtx, backend, &embedgw.Config{
			RootUserAccess: o.AccessKey,
			RootUserSecret: o.SecretKey,
			// Given explicitly, since the default announces itself on standard
			// output.
			IAMService:        auth.NewIAMServiceSingle(auth.Account{Access: o.AccessKey, Secret: o.SecretKey, Role: auth.RoleAdmin}),
			Region:            s3Region,
			Ports:             []string{addr},
			MaxConnections:    4096,
			MaxRequests:       2048,
			MultipartMaxParts: 10_000,
			KeepAlive:         true,
			Quiet:             true,
			HealthPath:        s3HealthPath,
			S3Options: []s3api.Option{
				s3api.WithOnListen(func() { close(listening) }),
				s3api.WithMiddleware("/", durability{root: root, all: sidecar}.middleware),
			},
		})
	}()
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Shutdown(context.WithoutCancel(ctx)))
		}
	}()
	select {
	case <-listening:
	case <-s.done:
		return nil, fmt.Errorf("run: %w", s.err)
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the listener: %w", ctx.Err())
	}
	if err := s.healthy(ctx); err != nil {
		return nil, err
	}
	if o.Logger != nil {
		o.Logger.Debug("embedded S3 is up", "url", s.url, "dir", o.Dir, "sidecar", sidecar)
	}
	return s, nil
}

// metadataStore chooses where object metadata lives: in extended attributes, or
// in files beside the objects where the file system has none. A directory that
// began with files stays with them.
func metadataStore(dir, root string) (store meta.MetadataStorer, sidecar bool, err error) {
	side := filepath.Join(dir, "metadata")
	if _, err := os.Stat(side); errors.Is(err, fs.ErrNotExist) {
		if hasXattrs(root) {
			return meta.XattrMeta{}, false, nil
		}
		if err := os.Mkdir(side, 0o700); err != nil {
			return nil, false, fmt.Errorf("make metadata directory: %w", err)
		}
	} else if err != nil {
		return nil, false, fmt.Errorf("look for metadata directory: %w", err)
	}
	s, err := meta.NewSideCar(side)
	if err != nil {
		return nil, false, fmt.Errorf("open metadata directory: %w", err)
	}
	return s, true, nil
}

// hasXattrs tries a real write: some file systems answer reads and refuse those.
func hasXattrs(dir string) bool {
	const name = "probe"
	var x meta.XattrMeta
	if err := x.StoreAttribute(nil, dir, "", name, []byte("1")); err != nil {
		return false
	}
	return x.DeleteAttribute(dir, "", name) == nil
}

// freeAddr is the address to listen on. The server does not tell which port it
// got, so a free one is found beforehand.
func freeAddr(ctx context.Context, host string, port int) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", listenAddr(host, port))
	if err != nil {
		return "", fmt.Errorf("find a port: %w", err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return "", fmt.Errorf("find a port: %w", err)
	}
	return addr, nil
}

func (s *S3Server) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+s3HealthPath, nil)
	if err != nil {
		return fmt.Errorf("ask for health: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask for health: %w", err)
	}
	if err := resp.Body.Close(); err != nil {
		return fmt.Errorf("ask for health: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("ask for health: %s", resp.Status)
	}
	return nil
}

// URL is where the server listens, http://host:port.
func (s *S3Server) URL() string { return s.url }

// Shutdown stops the server, waits for requests that run until ctx ends, and
// restores the working directory.
func (s *S3Server) Shutdown(ctx context.Context) error {
	s.cancel()
	select {
	case <-s.done:
	case <-ctx.Done():
		return fmt.Errorf("embedded: stop s3: %w", ctx.Err())
	}
	err := s.err
	s.once.Do(func() {
		err = errors.Join(err, os.Chdir(s.cwd))
		s3Running.Store(false)
	})
	if err != nil {
		return fmt.Errorf("embedded: stop s3: %w", err)
	}
	return nil
}

// durability puts an object on disk before its upload is acknowledged. The
// server itself never syncs: it survives a kill, not a power cut.
type durability struct {
	root string
	all  bool // metadata lives in other files: sync the file system
}

func (d durability) middleware(c fiber.Ctx) error {
	if err := c.Next(); err != nil {
		return err //nolint:wrapcheck // the server's own error, rendered by its handler
	}
	query := c.Request().URI().QueryArgs()
	put := c.Method() == fiber.MethodPut && !query.Has("partNumber")
	complete := c.Method() == fiber.MethodPost && query.Has("uploadId")
	if (!put && !complete) || c.Response().StatusCode() != fiber.StatusOK {
		return nil
	}
	path, err := url.PathUnescape(string(c.Request().URI().PathOriginal()))
	if err != nil {
		return fmt.Errorf("decode path: %w", err)
	}
	path = strings.Trim(path, "/")
	if !filepath.IsLocal(path) {
		return nil
	}
	return d.sync(path)
}

// sync flushes the object and every directory above it up to the root, any of
// which may be new.
func (d durability) sync(path string) error {
	for p := path; ; p = filepath.Dir(p) {
		f, err := os.Open(filepath.Join(d.root, p))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted in the meantime
		}
		if err != nil {
			return fmt.Errorf("sync object: %w", err)
		}
		if d.all {
			err = syncFS(f)
		} else {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("sync object: %w", err)
		}
		if d.all || p == "." {
			return nil
		}
	}
}
