// Package secretfile reads secrets that are mounted as files.
package secretfile

import (
	"fmt"
	"os"
	"strings"
)

// Read returns what a file holds, without the line's end.
func Read(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}
