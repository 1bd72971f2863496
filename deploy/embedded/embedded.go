// Package embedded runs the servers that a farm stands on inside this process:
// NATS with JetStream, a Redis and an S3. It is the only place that imports
// server code; the vidforge command and the tests use it.
//
// The servers listen on loopback only, with random credentials that are kept
// in the data directory. While the S3 runs, the process's working directory is
// the S3's own: see S3Server.
package embedded

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/farm"
)

// DefaultBucket is the bucket of an embedded farm.
const DefaultBucket = "vidforge"

// Options of the embedded servers.
type Options struct {
	// Dir keeps all data and the credentials: a start with the same directory
	// finds the same farm. At most one process may use it. Required.
	Dir string
	// Host to listen on. Defaults to 127.0.0.1.
	Host string
	// NATSPort, RedisPort and S3Port are the ports to listen on, 0 for any
	// free one.
	NATSPort, RedisPort, S3Port int
	// Logger defaults to one that discards.
	Logger *slog.Logger
}

// Servers are the running servers of an embedded farm.
type Servers struct {
	nats  *NATSServer
	redis *RedisServer
	s3    *S3Server
	creds credentials
}

// credentials of the servers, as kept in the data directory.
type credentials struct {
	S3AccessKey   string `json:"s3_access_key"`
	S3SecretKey   string `json:"s3_secret_key"`
	RedisPassword string `json:"redis_password"`
}

// Start starts all servers and waits until they answer. On failure nothing is
// left running.
func Start(ctx context.Context, o Options) (_ *Servers, err error) {
	o.Host = cmp.Or(o.Host, "127.0.0.1")
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Dir == "" {
		return nil, errors.New("embedded: Dir is required")
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, fmt.Errorf("embedded: data directory: %w", err)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded: data directory: %w", err)
	}
	creds, err := loadCredentials(filepath.Join(o.Dir, "credentials.json"))
	if err != nil {
		return nil, fmt.Errorf("embedded: credentials: %w", err)
	}
	s := &Servers{creds: creds}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close(context.WithoutCancel(ctx)))
		}
	}()
	s.nats, err = StartNATS(ctx, NATSOptions{Dir: filepath.Join(o.Dir, "nats"), Host: o.Host, Port: o.NATSPort, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	s.redis, err = StartRedis(ctx, RedisOptions{Host: o.Host, Port: o.RedisPort, Password: creds.RedisPassword})
	if err != nil {
		return nil, err
	}
	s.s3, err = StartS3(ctx, S3Options{
		Dir: filepath.Join(o.Dir, "s3"), Host: o.Host, Port: o.S3Port,
		AccessKey: creds.S3AccessKey, SecretKey: creds.S3SecretKey, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Endpoints tells how to reach the servers. They hold the credentials.
func (s *Servers) Endpoints() farm.Endpoints {
	return farm.Endpoints{
		NATSURL:  s.nats.URL(),
		RedisURL: s.redis.URL(),
		S3: blob.Config{
			Endpoint:     s.s3.URL(),
			Region:       s3Region,
			Bucket:       DefaultBucket,
			AccessKey:    s.creds.S3AccessKey,
			SecretKey:    s.creds.S3SecretKey,
			PathStyle:    true,
			CreateBucket: true,
		},
	}
}

// Close stops the servers, those that keep data last, and waits for them.
// Clients are closed before.
func (s *Servers) Close(ctx context.Context) error {
	var errs []error
	if s.redis != nil {
		s.redis.Shutdown()
	}
	if s.s3 != nil {
		errs = append(errs, s.s3.Shutdown(ctx))
	}
	if s.nats != nil {
		errs = append(errs, s.nats.Shutdown(ctx))
	}
	return errors.Join(errs...)
}

// loadCredentials reads the credentials or makes them at the first start.
func loadCredentials(path string) (credentials, error) {
	var c credentials
	b, err := os.ReadFile(path)
	switch {
	case err == nil:
		if err := json.Unmarshal(b, &c); err != nil {
			return c, fmt.Errorf("read %s: %w", path, err)
		}
		if c.S3AccessKey == "" || c.S3SecretKey == "" || c.RedisPassword == "" {
			return c, fmt.Errorf("read %s: a credential is missing", path)
		}
		return c, nil
	case !errors.Is(err, fs.ErrNotExist):
		return c, err //nolint:wrapcheck // names the path already
	}
	c = credentials{
		S3AccessKey:   "vidforge" + strings.ToLower(rand.Text()[:12]),
		S3SecretKey:   rand.Text() + rand.Text(),
		RedisPassword: rand.Text(),
	}
	if b, err = json.MarshalIndent(c, "", "  "); err != nil {
		return c, fmt.Errorf("encode: %w", err)
	}
	return c, writeSecret(path, b)
}

// writeSecret writes a file that only the owner may read, whole or not at all.
func writeSecret(path string, b []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".credentials-*") // 0600
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
