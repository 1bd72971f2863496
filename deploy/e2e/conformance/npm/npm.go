// Package npm installs the pinned packages of a folder and runs them by the
// pinned Node.
package npm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Install runs npm ci in dir when the lock file there is not the one that is
// installed.
func Install(ctx context.Context, dir string) error {
	lock, err := os.ReadFile(filepath.Join(dir, "package-lock.json"))
	if err != nil {
		return fmt.Errorf("read the pinned packages: %w", err)
	}
	sum := sha256.Sum256(lock)
	want, stamp := hex.EncodeToString(sum[:]), filepath.Join(dir, "node_modules", ".installed")
	if have, err := os.ReadFile(stamp); err == nil && string(have) == want {
		return nil
	}
	if _, err := exec.LookPath("npm"); err != nil {
		return errors.New("npm is needed (Debian: apt-get install npm)")
	}
	cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	if err := os.WriteFile(stamp, []byte(want), 0o600); err != nil { //nolint:gosec // beside the packages that were installed
		return fmt.Errorf("note what is installed: %w", err)
	}
	return nil
}

// Node runs a script of dir with the pinned Node, or the system's where there is
// no package for this platform.
func Node(ctx context.Context, dir string, args ...string) *exec.Cmd {
	bin := "node"
	if pinned, err := filepath.Abs(filepath.Join(dir, "node_modules", ".bin", "node")); err == nil {
		if _, err := os.Stat(pinned); err == nil {
			bin = pinned
		}
	}
	cmd := exec.CommandContext(ctx, bin, args...) //nolint:gosec // pinned or the system's
	cmd.Dir = dir
	return cmd
}
