//go:build !unix

package cli

import "os"

// redirect gives from's place in this process to to, and returns what it was.
func redirect(from, to *os.File) (*os.File, error) {
	if from == os.Stdout {
		os.Stdout = to //nolint:reassign // so that nobody else writes there
	}
	return from, nil
}
