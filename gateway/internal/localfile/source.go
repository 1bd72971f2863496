// Package localfile is what a client on the same machine may do with files:
// name sources below one directory, and find videos and previews below another.
package localfile

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/text/unicode/norm"

	"github.com/vidforge/vidforge/pkg/render"
)

// Sources is a directory below which files may be named.
type Sources struct {
	dir  string // as it was given, absolute
	real string // without symbolic links
	root *os.Root
}

// OpenSources opens a directory. dir must be absolute; the process may change
// its working directory later. Close it.
func OpenSources(dir string) (*Sources, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("input directory %q is not absolute", dir)
	}
	dir = filepath.Clean(dir)
	actual, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("input directory: %w", err)
	}
	root, err := os.OpenRoot(actual)
	if err != nil {
		return nil, fmt.Errorf("input directory: %w", err)
	}
	return &Sources{dir: dir, real: actual, root: root}, nil
}

// Dir is the directory as it was given.
func (s *Sources) Dir() string { return s.dir }

// Close gives up the directory.
func (s *Sources) Close() error { return s.root.Close() } //nolint:wrapcheck // names itself

// IsURI reports whether a URI is meant to name a file.
func IsURI(uri string) bool {
	scheme, _, ok := strings.Cut(uri, ":")
	return ok && strings.EqualFold(scheme, "file")
}

// source is an opened source.
type source struct {
	file *os.File
	path string // without symbolic links, below the real directory
	info fs.FileInfo
}

// open opens the file that a URI names. Symbolic links are followed, but not out
// of the directory; field is the argument that held the URI.
//
// Whether something exists outside of the directory cannot be learned: what lies
// outside by its name is not looked at, and a link that leads out is answered
// like one that leads nowhere.
func (s *Sources) open(field, uri string) (*source, error) {
	path, err := pathOf(uri)
	if err != nil {
		return nil, render.InvalidField(field, "", fmt.Sprintf("%s %s; send file:// and the absolute path of a file below %s, with special characters percent-encoded.", field, err, s.dir))
	}
	if !below(s.dir, path) && !below(s.real, path) {
		return nil, render.InvalidField(field, "", fmt.Sprintf("%s is outside of %s, the directory whose files may be named; copy the file there, or start vidforge mcp with another --input-dir.", field, s.dir))
	}
	for _, spelling := range spellings(path) {
		if src, err := s.openPath(field, spelling); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return src, err
		}
	}
	e := render.Errorf(render.CodeSourceNotFound, render.BlameCaller, "There is no file at %s below %s; check the name, or upload the file instead.", field, s.dir)
	e.Details = &render.Details{Field: field, Reason: "no such file"}
	return nil, e
}

// openPath opens a file by one spelling. fs.ErrNotExist for what is not there or
// leads out.
func (s *Sources) openPath(field, path string) (_ *source, err error) {
	actual, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, unreadable(field, err)
	}
	rel, err := filepath.Rel(s.real, actual)
	if err != nil || !filepath.IsLocal(rel) {
		return nil, fs.ErrNotExist
	}
	// By the root, so that a link that was put there meanwhile leads nowhere.
	// Without blocking: it may be a pipe that nobody writes.
	f, err := s.root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, unreadable(field, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, unreadable(field, err)
	case !info.Mode().IsRegular():
		return nil, render.InvalidField(field, "", field+" names no regular file; send the URI of a video file.")
	case info.Size() == 0:
		return nil, render.InvalidField(field, "", field+" names an empty file.")
	}
	return &source{f, actual, info}, nil
}

// unreadable classifies the failure to open a file.
func unreadable(field string, err error) error {
	_, fromSystem := errors.AsType[syscall.Errno](err)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP):
		return fs.ErrNotExist
	case errors.Is(err, fs.ErrPermission):
		return render.InvalidField(field, "", field+" names a file that vidforge may not read; change its permissions, or upload it instead.").WithCause(err)
	case !fromSystem: // links in a circle, or changed meanwhile so that they lead out
		return fs.ErrNotExist
	}
	return fmt.Errorf("open a source: %w", err)
}

// below reports whether path is in dir, by its name alone.
func below(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// spellings are the forms in which a file system may have a name: some keep
// accents apart from their letters, and hosts do not always send what they read.
func spellings(path string) []string {
	out := []string{path}
	for _, form := range []norm.Form{norm.NFC, norm.NFD} {
		if s := form.String(path); s != path {
			out = append(out, s)
		}
	}
	return out
}

// pathOf is the path in a file URI (RFC 8089), cleaned. Its error completes a
// sentence that begins with the argument's name.
func pathOf(uri string) (string, error) {
	u, err := url.Parse(uri)
	switch {
	case err != nil:
		return "", errors.New("is no valid URI")
	case !strings.EqualFold(u.Scheme, "file"):
		return "", errors.New("is no file URI")
	case u.Opaque != "":
		return "", errors.New("holds no absolute path")
	case u.Host != "" && !strings.EqualFold(u.Host, "localhost") || u.User != nil:
		return "", errors.New("names another host")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(uri, "#"):
		return "", errors.New("holds a ? or # that is not percent-encoded")
	case strings.ContainsRune(u.Path, 0):
		return "", errors.New("holds a NUL character")
	}
	path := filepath.FromSlash(u.Path)
	if v := strings.TrimPrefix(path, string(filepath.Separator)); filepath.VolumeName(v) != "" {
		path = v // file:///C:/…
	}
	if !filepath.IsAbs(path) {
		return "", errors.New("holds no absolute path")
	}
	return filepath.Clean(path), nil
}
