package cli

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

// writable reports why a file cannot be written, before the work for it begins.
func writable(path string, force bool) error {
	dir := filepath.Dir(path)
	switch info, err := os.Stat(dir); {
	case err != nil:
		return err //nolint:wrapcheck // names the folder
	case !info.IsDir():
		return fmt.Errorf("%s is not a folder", dir)
	}
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err //nolint:wrapcheck // names the file
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	case !force:
		return fmt.Errorf("%s exists; --force overwrites it", path)
	default:
		return nil
	}
}

// writeFile writes a file whole or not at all: into a temporary file beside
// it, which then takes its name.
func writeFile(path string, force bool, write func(io.Writer) error) (err error) {
	if err := writable(path, force); err != nil {
		return err
	}
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+strings.ToLower(rand.Text()[:8])+".part")
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666) //nolint:gosec // the user's umask decides, as for any output
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp))
		}
	}()
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if !force {
		// A link, unlike a rename, fails when the name was taken meanwhile.
		if lerr := os.Link(tmp, path); !errors.Is(lerr, errors.ErrUnsupported) && !errors.Is(lerr, fs.ErrPermission) {
			if lerr != nil {
				return fmt.Errorf("write %s: %w", path, lerr)
			}
			return os.Remove(tmp) //nolint:wrapcheck // names the file
		}
	}
	if err = os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
