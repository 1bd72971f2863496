package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/vidforge/vidforge/deploy/embedded"
	"github.com/vidforge/vidforge/pkg/farm"
)

// endpointsPath is where a running farm tells the processes of its own user how
// its servers are reached, credentials included.
func endpointsPath(dir string) string { return filepath.Join(dir, "servers", "endpoints.json") }

func announceEndpoints(dir string, e farm.Endpoints) error {
	e.S3.Transport = nil // not to be written down
	b, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("write the endpoints: %w", err)
	}
	path := endpointsPath(dir)
	// A new file, so that nobody has it open who should not.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replace the endpoints: %w", err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return fmt.Errorf("write the endpoints: %w", err)
	}
	return nil
}

// Stores lends the stores of the farm in a data directory: of the one that runs
// there, or else by its servers, which run until release is called.
func Stores(ctx context.Context, dir string, log *slog.Logger) (e farm.Endpoints, release func() error, err error) {
	if _, ok := Running(dir); ok {
		b, err := os.ReadFile(endpointsPath(dir))
		if err == nil {
			err = json.Unmarshal(b, &e)
		}
		if err != nil {
			return e, nil, fmt.Errorf("read the endpoints of the running farm: %w", err)
		}
		return e, func() error { return nil }, nil
	}
	if _, err := os.Stat(filepath.Join(dir, "servers")); err != nil {
		return e, nil, fmt.Errorf("there is no farm in %s: %w", dir, err)
	}
	l, err := acquire(ctx, dir)
	if err != nil {
		return e, nil, err
	}
	if err := l.announce(Holder{PID: os.Getpid()}); err != nil {
		return e, nil, errors.Join(err, l.release())
	}
	servers, err := embedded.Start(ctx, embedded.Options{Dir: filepath.Join(dir, "servers"), Logger: log})
	if err != nil {
		return e, nil, errors.Join(fmt.Errorf("start the embedded servers: %w", err), l.release())
	}
	return servers.Endpoints(), func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		return errors.Join(servers.Close(ctx), l.release())
	}, nil
}
