package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"
)

// Holder is the process that uses a data directory, as it says itself.
type Holder struct {
	PID int `json:"pid"`
	// URL and OpsURL are empty while the farm starts.
	URL    string `json:"url,omitempty"`
	OpsURL string `json:"ops_url,omitempty"`
}

// InUseError is returned by Start when another process uses the directory.
type InUseError struct {
	Dir    string
	Holder Holder // PID 0: it has not said yet
}

func (e *InUseError) Error() string {
	s := "the data directory " + e.Dir + " is in use by "
	if e.Holder.PID == 0 {
		s += "another process"
	} else {
		s += fmt.Sprintf("process %d", e.Holder.PID)
	}
	if e.Holder.URL != "" {
		s += ", a farm at " + e.Holder.URL + ": use it with --server " + e.Holder.URL
	}
	return s
}

// lock is the claim of one process on a data directory. The kernel lets go of
// it however the process ends.
type lock struct {
	file *flock.Flock
	path string
}

func lockPath(dir string) string { return filepath.Join(dir, "vidforge.lock") }

// lockPatience is how long a lock may be held by somebody who only looks.
const lockPatience = time.Second

func acquire(ctx context.Context, dir string) (*lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	l := &lock{path: lockPath(dir)}
	l.file = flock.New(l.path, flock.SetPermissions(0o600))
	limited, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	got, err := l.file.TryLockContext(limited, 50*time.Millisecond)
	switch {
	case got:
		return l, nil
	case err != nil && (limited.Err() == nil || ctx.Err() != nil):
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	h, _ := readHolder(l.path)
	return nil, &InUseError{Dir: dir, Holder: h}
}

// announce tells other processes who holds the lock.
func (l *lock) announce(h Holder) error {
	b, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("write %s: %w", l.path, err)
	}
	// Not replaced by a rename: the lock is on this very file.
	if err := os.WriteFile(l.path, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the lock file: %w", err)
	}
	return nil
}

func (l *lock) release() error {
	if err := errors.Join(os.Truncate(l.path, 0), l.file.Close()); err != nil {
		return fmt.Errorf("release the data directory: %w", err)
	}
	return nil
}

func readHolder(path string) (Holder, bool) {
	var h Holder
	b, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(b, &h) != nil {
		return Holder{}, false
	}
	return h, h.PID != 0
}

// Running tells which farm runs in a data directory, if one does and takes
// requests.
func Running(dir string) (Holder, bool) {
	path := lockPath(dir)
	h, ok := readHolder(path)
	if !ok || h.URL == "" {
		return Holder{}, false
	}
	// A crash leaves the file behind, but never the lock.
	f := flock.New(path)
	free, err := f.TryRLock()
	if err != nil || !free {
		return h, err == nil
	}
	_ = f.Close() // it only looked
	return Holder{}, false
}

// FreeDir chooses a data directory below base that no process uses: the one that
// was used last, so that what was left unfinished there goes on, and first those
// whose process did not end in order; a new one if all are in use. By the time
// of Start another process may have taken it.
func FreeDir(base string) (string, error) {
	entries, err := os.ReadDir(base)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("data directory: %w", err)
	}
	type candidate struct {
		dir     string
		crashed bool
		used    time.Time
	}
	var free []candidate
	taken := map[string]bool{}
	for _, e := range entries {
		dir := filepath.Join(base, e.Name())
		taken[e.Name()] = true
		info, err := os.Stat(lockPath(dir))
		if err != nil {
			continue // no farm's
		}
		f := flock.New(lockPath(dir))
		if ok, err := f.TryRLock(); err != nil || !ok {
			continue
		}
		_ = f.Close() // it only looked
		free = append(free, candidate{dir, info.Size() > 0, info.ModTime()})
	}
	if len(free) == 0 {
		for n := 1; ; n++ {
			if name := fmt.Sprintf("farm-%d", n); !taken[name] {
				return filepath.Join(base, name), nil
			}
		}
	}
	best := slices.MaxFunc(free, func(a, b candidate) int {
		if a.crashed != b.crashed {
			if a.crashed {
				return 1
			}
			return -1
		}
		return a.used.Compare(b.used)
	})
	return best.dir, nil
}
