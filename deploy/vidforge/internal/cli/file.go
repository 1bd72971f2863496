package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vidforge/vidforge/pkg/atomicfile"
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

// writeFile writes a file whole or not at all.
func writeFile(path string, force bool, write func(io.Writer) error) error {
	if err := writable(path, force); err != nil {
		return err
	}
	return atomicfile.Write(path, force, write)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
