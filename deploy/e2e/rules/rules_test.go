package rules_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

// root is the repository's top folder, from here.
const root = "../../.."

// tracked lists the repository's files with slashes, from the top.
func tracked(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	files := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	// What is deleted and not committed yet is listed too.
	return slices.DeleteFunc(files, func(f string) bool {
		_, err := os.Stat(filepath.Join(root, f))
		return os.IsNotExist(err)
	})
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The top level is what a visitor sees first.
func TestTopLevel(t *testing.T) {
	t.Parallel()
	agreed := []string{
		".ci", ".gitignore", ".golangci.yaml", "CHANGELOG.md", "LICENSE", "Makefile", "README.md",
		"deploy", "docs", "gateway", "go.work", "go.work.sum", "helm", "pkg", "proto", "worker",
	}
	for _, file := range tracked(t) {
		top, _, _ := strings.Cut(file, "/")
		if !slices.Contains(agreed, top) {
			t.Errorf("%s: %q is no agreed entry of the top level", file, top)
		}
	}
}

// Every package says what it is for, once.
func TestPackageComments(t *testing.T) {
	t.Parallel()
	type pkg struct {
		comments int
		code     bool
	}
	packages := map[string]*pkg{}
	for _, file := range tracked(t) {
		if path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") || strings.Contains(file, "/testdata/") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, read(t, file), parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Errorf("parse: %v", err)
			continue
		}
		dir := path.Dir(file)
		if packages[dir] == nil {
			packages[dir] = &pkg{}
		}
		if ast.IsGenerated(f) {
			continue
		}
		packages[dir].code = true
		if f.Doc == nil {
			continue
		}
		packages[dir].comments++
		want := "Package " + f.Name.Name + " "
		if f.Name.Name == "main" {
			want = "Command " + path.Base(dir) + " "
		}
		if !strings.HasPrefix(f.Doc.Text(), want) {
			t.Errorf("%s: the package comment does not begin with %q", file, want)
		}
	}
	for dir, p := range packages {
		if p.code && p.comments != 1 {
			t.Errorf("%s has %d package comments, want 1", dir, p.comments)
		}
	}
}

// Names that say nothing attract everything.
func TestPackageNames(t *testing.T) {
	t.Parallel()
	for _, file := range tracked(t) {
		for _, name := range []string{"util", "utils", "common", "helper", "helpers", "misc", "shared", "base"} {
			if slices.Contains(strings.Split(path.Dir(file), "/"), name) {
				t.Errorf("%s is in a folder named %q", file, name)
			}
		}
	}
}

// Nothing is put off in the code, and nothing depends on one machine. The
// patterns are split so that they do not find themselves.
func TestForbiddenWords(t *testing.T) {
	t.Parallel()
	forbidden := map[string]*regexp.Regexp{
		"an unfinished mark":    regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`),
		"a path of one machine": regexp.MustCompile(`(^|[\s"'=(` + "`" + `])/(work|root)` + `/\w`),
	}
	for _, file := range tracked(t) {
		b := read(t, file)
		if bytes.IndexByte(b, 0) >= 0 || path.Base(file) == "go.sum" || path.Base(file) == "go.work.sum" {
			continue
		}
		for n, line := range strings.Split(string(b), "\n") {
			for what, pattern := range forbidden {
				if found := pattern.FindString(line); found != "" {
					t.Errorf("%s:%d: %s: %q", file, n+1, what, strings.TrimSpace(found))
				}
			}
		}
	}
}

// Each module can be used alone: it is in the workspace, speaks the workspace's
// Go version, and finds its siblings beside it.
func TestModules(t *testing.T) {
	t.Parallel()
	const prefix = "github.com/vidforge/vidforge/"
	work, err := modfile.ParseWork("go.work", read(t, "go.work"), nil)
	if err != nil {
		t.Fatal(err)
	}
	var used []string
	for _, use := range work.Use {
		used = append(used, path.Clean(use.Path))
	}
	var found []string
	for _, file := range tracked(t) {
		if path.Base(file) != "go.mod" {
			continue
		}
		dir := path.Dir(file)
		found = append(found, dir)
		mod, err := modfile.Parse(file, read(t, file), nil)
		if err != nil {
			t.Error(err)
			continue
		}
		if mod.Module.Mod.Path != prefix+dir {
			t.Errorf("%s: module path %q, want %q", file, mod.Module.Mod.Path, prefix+dir)
		}
		if minor := regexp.MustCompile(`^\d+\.\d+`); minor.FindString(mod.Go.Version) != minor.FindString(work.Go.Version) {
			t.Errorf("%s: go %s, the workspace has %s", file, mod.Go.Version, work.Go.Version)
		}
		replaced := map[string]string{}
		for _, r := range mod.Replace {
			replaced[r.Old.Path] = r.New.Path
		}
		for _, r := range mod.Require {
			sibling, ok := strings.CutPrefix(r.Mod.Path, prefix)
			if ok && path.Join(dir, replaced[r.Mod.Path]) != sibling {
				t.Errorf("%s: sibling %s is replaced by %q", file, sibling, replaced[r.Mod.Path])
			}
		}
	}
	slices.Sort(used)
	slices.Sort(found)
	if !slices.Equal(used, found) {
		t.Errorf("go.work has %v, the modules are %v", used, found)
	}
}

// Links between documents lead somewhere.
func TestDocumentLinks(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)\s]*)?\)`)
	for _, file := range tracked(t) {
		if path.Ext(file) != ".md" {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(string(read(t, file)), -1) {
			if _, err := os.Stat(filepath.Join(root, path.Dir(file), m[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", file, m[1])
			}
		}
	}
}
