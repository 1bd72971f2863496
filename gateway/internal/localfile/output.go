package localfile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/vidforge/vidforge/pkg/atomicfile"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/filename"
)

// Output is a directory to which videos and previews are written. Its methods
// may be called at once.
type Output struct {
	dir    string
	flight singleflight.Group

	ctx    context.Context //nolint:containedctx // the output's own life
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	known map[string]fileVersion // paths whose content was checked
}

// fileVersion is what a checked file was like.
type fileVersion struct {
	sum      string
	size     int64
	modified time.Time
}

// maxCopies bounds the names that are tried for one file.
const maxCopies = 10_000

// NewOutput makes an Output. dir must be absolute; it is made when the first
// file is written. Close it.
func NewOutput(dir string) (*Output, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("output directory %q is not absolute", dir)
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("output directory %s is no directory", dir)
	}
	o := &Output{dir: filepath.Clean(dir), known: map[string]fileVersion{}}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	return o, nil
}

// Close gives up what is being written and waits for it. Write is not called any
// more.
func (o *Output) Close() {
	o.cancel()
	o.wg.Wait()
}

// Write writes an object whole under its name, or finds it written, and returns
// its absolute path. A file that is there already and is not this very object
// stays as it is: the object then is "name (2).ext" and so on. Writing goes on
// when ctx ends.
func (o *Output) Write(ctx context.Context, name string, c *farm.Content) (string, error) {
	if c.Object.SHA256 == "" {
		return "", errors.New("write an output: its hash is not known")
	}
	type result struct {
		path string
		err  error
	}
	done := make(chan result, 1)
	o.wg.Go(func() {
		v, err, _ := o.flight.Do(c.Object.Key, func() (any, error) { return o.write(name, c) })
		path, _ := v.(string)
		done <- result{path, err}
	})
	select {
	case res := <-done:
		return res.path, res.err
	case <-ctx.Done():
		return "", fmt.Errorf("write an output: %w", ctx.Err())
	}
}

func (o *Output) write(name string, c *farm.Content) (string, error) {
	if err := os.MkdirAll(o.dir, 0o777); err != nil { //nolint:gosec // the user's umask decides, as for any output
		return "", fmt.Errorf("make the output directory: %w", err)
	}
	for n := 1; n <= maxCopies; n++ {
		path := filepath.Join(o.dir, copyName(name, n))
		same, err := o.same(path, c)
		switch {
		case same:
			return path, nil
		case err == nil:
			continue // somebody else's
		case !errors.Is(err, fs.ErrNotExist):
			return "", err
		}
		err = atomicfile.Write(path, false, func(w io.Writer) error { return fetch(o.ctx, w, c) })
		switch {
		case errors.Is(err, fs.ErrExist):
			n-- // look at what has come meanwhile
			continue
		case err != nil:
			return "", err
		}
		if info, err := os.Lstat(path); err == nil {
			o.remember(path, c.Object.SHA256, info)
		}
		return path, nil
	}
	return "", fmt.Errorf("no name is free for %s in %s", name, o.dir)
}

// fetch copies an object and compares its hash.
func fetch(ctx context.Context, w io.Writer, c *farm.Content) (err error) {
	r, err := c.Open(ctx, 0, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(w, hash), r); err != nil {
		return fmt.Errorf("copy an object: %w", err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != c.Object.SHA256 {
		return errors.New("copy an object: its hash is wrong")
	}
	return nil
}

// same reports whether a file is this very object: a regular file with its
// bytes, which are read once. fs.ErrNotExist when there is none.
func (o *Output) same(path string, c *farm.Content) (bool, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return false, fmt.Errorf("look at an output: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() != c.Object.Size {
		return false, nil
	}
	o.mu.Lock()
	known, ok := o.known[path]
	o.mu.Unlock()
	if !ok || known.size != info.Size() || !known.modified.Equal(info.ModTime()) {
		sum, err := sumOf(path)
		if err != nil {
			return false, nil //nolint:nilerr // what cannot be read is somebody else's
		}
		o.remember(path, sum, info)
		known.sum = sum
	}
	return known.sum == c.Object.SHA256, nil
}

func (o *Output) remember(path, sum string, info fs.FileInfo) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known[path] = fileVersion{sum, info.Size(), info.ModTime()}
}

func sumOf(path string) (_ string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err //nolint:wrapcheck // only its presence matters
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err //nolint:wrapcheck // as above
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// copyName is the nth name of a file. It is no longer than a name may be, and
// hidden from no one.
func copyName(name string, n int) string {
	name = strings.TrimLeft(name, ".")
	ext := filepath.Ext(name)
	base := strings.TrimSuffix(name, ext)
	if base == "" {
		base = "video"
	}
	suffix := ext
	if n > 1 {
		suffix = fmt.Sprintf(" (%d)%s", n, ext)
	}
	if most := filename.MaxBytes - len(suffix); len(base) > most {
		base = strings.ToValidUTF8(base[:most], "")
	}
	return base + suffix
}
