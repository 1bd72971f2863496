// Package atomicfile writes files whole or not at all: into a temporary file
// beside the wanted one, which then takes its name.
package atomicfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Write writes the file at path. Without replace it returns an error that is
// fs.ErrExist when something has that name, also when it got it meanwhile; what
// was there stays as it was. After any error nothing of the new file is left.
func Write(path string, replace bool, write func(io.Writer) error) (err error) {
	dir, base := filepath.Split(path)
	tmp := filepath.Join(dir, tempName(base))
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666) //nolint:gosec // the user's umask decides, as for any output
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			if rerr := os.Remove(tmp); !errors.Is(rerr, fs.ErrNotExist) {
				err = errors.Join(err, rerr)
			}
		}
	}()
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if replace {
		if err = os.Rename(tmp, path); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		return nil
	}
	return publish(tmp, path)
}

// maxTempBase bounds how much of a name its temporary file repeats, in bytes:
// together they must be no longer than a name may be.
const maxTempBase = 200

func tempName(base string) string {
	if len(base) > maxTempBase {
		base = strings.ToValidUTF8(base[:maxTempBase], "")
	}
	return "." + base + "." + strings.ToLower(rand.Text()[:8]) + ".part"
}

// publish gives the finished file its name, which nothing else may have.
func publish(tmp, path string) error {
	// A link, unlike a rename, fails when the name was taken meanwhile.
	err := os.Link(tmp, path)
	switch {
	case err == nil:
		if err := os.Remove(tmp); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		return nil
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("write %s: %w", path, err)
	}
	// Here are no links: hold the name with an empty file, then replace it.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666) //nolint:gosec // as above
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := errors.Join(f.Close(), os.Rename(tmp, path)); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(path))
	}
	return nil
}
