package e2e

import (
	"errors"
	"os/exec"
)

// findBrowser names the Chromium that is installed. Debian's plays H.264; other
// builds may not.
func findBrowser() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("these tests play videos in Chromium: install it (Debian: make test-deps)")
}
