package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReadResultsFindsWhatDidNotPass(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, checks := range map[string]string{
		"server-tools-list-2026-08-01T00-00-00-000Z":                 `[{"id":"a","status":"SUCCESS"},{"id":"b","status":"SUCCESS"}]`,
		"server-tasks-lifecycle-2026-08-01T00-00-00-000Z":            `[{"id":"c","status":"SUCCESS"},{"id":"d","status":"FAILURE","errorMessage":"no"},{"id":"e","status":"WARNING"}]`,
		"server-tasks-status-notifications-2026-08-01T00-00-00-000Z": `[{"id":"f","status":"SKIPPED"}]`,
		"server-caching-2026-08-01T00-00-00-000Z":                    `[{"id":"g","status":"SKIPPED"}]`,
	} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "checks.json"), []byte(checks), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readResults(dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := (tally{4, 6, 3}); got.all != want {
		t.Errorf("all: %+v, want %+v", got.all, want)
	}
	if want := (tally{2, 3, 1}); got.tasks != want {
		t.Errorf("tasks: %+v, want %+v", got.tasks, want)
	}
	if len(got.failures) != 3 { // d, e, and g, which only the suite's own skip may do
		t.Errorf("failures: %q", got.failures)
	}
}
