package atomicfile_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vidforge/vidforge/pkg/atomicfile"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

// content is what a folder holds.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(b)
	}
	return files
}

func TestWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "映画.mp4")
	if err := atomicfile.Write(path, false, text("one")); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(path, false, text("two")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("wrote over a file: %v", err)
	}
	if got := content(t, dir); len(got) != 1 || got["映画.mp4"] != "one" {
		t.Errorf("%q", got)
	}
	if err := atomicfile.Write(path, true, text("three")); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	for _, replace := range []bool{false, true} {
		if err := atomicfile.Write(path, replace, func(io.Writer) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("broken: %v", err)
		}
	}
	if got := content(t, dir); len(got) != 1 || got["映画.mp4"] != "three" {
		t.Errorf("%q", got)
	}
	// The longest name, of characters of three bytes.
	if err := atomicfile.Write(filepath.Join(dir, strings.Repeat("映", 85)), false, text("long")); err != nil {
		t.Error(err)
	}
	if err := atomicfile.Write(filepath.Join(dir, "none", "x"), false, text("")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("into no folder: %v", err)
	}
}

// Of many that want a name, one gets it.
func TestOneWins(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var won atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			switch err := atomicfile.Write(filepath.Join(dir, "x"), false, text("whole")); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, fs.ErrExist):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := content(t, dir); won.Load() != 1 || len(got) != 1 || got["x"] != "whole" {
		t.Errorf("%d won, %q", won.Load(), got)
	}
}
