package localfile_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vidforge/vidforge/gateway/internal/farmtest"
	"github.com/vidforge/vidforge/gateway/internal/localfile"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

const tenant = render.Tenant("ann")

// place is a directory whose files may be named, with others around it.
type place struct {
	*testing.T
	outside, dir string
	farm         *farmtest.Farm
	imports      *localfile.Importer
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{T: t, outside: t.TempDir(), farm: farmtest.New(time.Now)}
	p.dir = filepath.Join(p.outside, "in")
	p.mkdir(p.dir)
	p.imports = p.importer(p.dir)
	return p
}

func (p *place) importer(dir string) *localfile.Importer {
	p.Helper()
	s, err := localfile.OpenSources(dir)
	if err != nil {
		p.Fatal(err)
	}
	i := localfile.NewImporter(s, p.farm, 1000, time.Now, slog.New(slog.DiscardHandler))
	p.Cleanup(func() {
		if err := i.Close(); err != nil {
			p.Error(err)
		}
	})
	return i
}

func (p *place) mkdir(dir string) {
	p.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.Fatal(err)
	}
}

func (p *place) file(path, content string) string {
	p.Helper()
	p.mkdir(filepath.Dir(path))
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		p.Fatal(err)
	}
	return path
}

func (p *place) link(target, path string) string {
	p.Helper()
	if err := os.Symlink(target, path); err != nil {
		p.Fatal(err)
	}
	return path
}

func uri(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }

// content is what the farm holds of an asset.
func (p *place) content(id render.AssetID) (name, sum string) {
	p.Helper()
	a, err := p.farm.Asset(p.Context(), tenant, id)
	if err != nil {
		p.Fatal(err)
	}
	return a.Name, a.Object.SHA256
}

func sum(content string) string {
	s := sha256.Sum256([]byte(content))
	return hex.EncodeToString(s[:])
}

func TestImport(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	in := func(name string) string { return filepath.Join(p.dir, name) }
	p.mkdir(in("sub"))
	p.link(p.file(in("real.mp4"), "real"), in("absolute.mp4"))
	p.link("sub/deep.mp4", in("relative.mp4"))
	p.link(in("sub"), in("folder"))
	p.file(in("sub/deep.mp4"), "deep")
	alias := p.link(p.dir, filepath.Join(p.outside, "alias"))
	for name, tt := range map[string]struct{ uri, name, content string }{
		"plain":                     {uri(in("real.mp4")), "real.mp4", "real"},
		"localhost":                 {"file://localhost" + in("real.mp4"), "real.mp4", "real"},
		"one slash":                 {"file:" + in("real.mp4"), "real.mp4", "real"},
		"upper case":                {"FILE://" + in("real.mp4"), "real.mp4", "real"},
		"percent-encoded":           {"file://" + strings.ReplaceAll(in("real.mp4"), "real", "%72%65al"), "real.mp4", "real"},
		"dots inside":               {"file://" + in("sub/../real.mp4"), "real.mp4", "real"},
		"encoded dots inside":       {"file://" + in("sub/%2e%2e/real.mp4"), "real.mp4", "real"},
		"a link inside":             {uri(in("absolute.mp4")), "real.mp4", "real"},
		"a relative link":           {uri(in("relative.mp4")), "deep.mp4", "deep"},
		"through a linked folder":   {uri(in("folder/deep.mp4")), "deep.mp4", "deep"},
		"by a link to the folder":   {uri(filepath.Join(alias, "real.mp4")), "", ""},
		"Hebrew":                    {uri(p.file(in("סרט.mp4"), "he")), "סרט.mp4", "he"},
		"Chinese, not encoded":      {"file://" + p.file(in("影片 一.mp4"), "zh"), "影片 一.mp4", "zh"},
		"sent decomposed":           {uri(filepath.Join(filepath.Dir(p.file(in("été.mp4"), "fr")), "e\u0301te\u0301.mp4")), "été.mp4", "fr"},
		"kept decomposed":           {uri(filepath.Join(filepath.Dir(p.file(in("o\u0308l.mp4"), "de")), "öl.mp4")), "o\u0308l.mp4", "de"},
		"hash and question mark":    {uri(p.file(in("a#b?c%d.mp4"), "odd")), "a#b?c%d.mp4", "odd"},
		"a name that is not UTF-8":  {"file://" + in("x%FFy.mp4"), "x_y.mp4", "latin"},
		"two slashes in the middle": {"file://" + in("sub") + "//deep.mp4", "deep.mp4", "deep"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(tt.uri, "%FF") {
				p.file(in("x\xffy.mp4"), "latin")
			}
			id, err := p.imports.Import(t.Context(), tenant, "source_asset_uri", tt.uri)
			if tt.content == "" { // the name of another place for the same folder
				if render.CodeOf(err) != render.CodeInvalidField {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if name, got := p.content(id); name != tt.name || got != sum(tt.content) {
				t.Errorf("asset %q %s", name, got)
			}
		})
	}
	if id, err := p.importer(alias).Import(t.Context(), tenant, "asset_uri", uri(filepath.Join(alias, "real.mp4"))); err != nil {
		t.Error(err)
	} else if _, got := p.content(id); got != sum("real") {
		t.Errorf("by an allowed link: %s", got)
	}
}

// What lies outside is out of reach, and looks like what is not there.
func TestNoEscape(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	in := func(name string) string { return filepath.Join(p.dir, name) }
	secret := p.file(filepath.Join(p.outside, "secret.mp4"), "secret")
	p.mkdir(p.dir + "side")
	p.file(p.dir+"side/x.mp4", "beside")
	p.link(secret, in("absolute.mp4"))
	p.link("../secret.mp4", in("relative.mp4"))
	p.link(p.outside, in("up"))
	p.link("/", in("root"))
	p.link(filepath.Join(p.outside, "none.mp4"), in("dangling.mp4"))
	p.link("loop.mp4", in("loop.mp4"))
	p.link(in("up"), in("twice"))
	p.file(in("empty.mp4"), "")
	p.file(in("large.mp4"), strings.Repeat("x", 1001))
	p.file(in("plain.mp4"), "plain")
	if err := syscall.Mkfifo(in("pipe.mp4"), 0o600); err != nil {
		t.Fatal(err)
	}
	const missing, wrong, large = render.CodeSourceNotFound, render.CodeInvalidField, render.CodeSourceTooLarge
	answers := map[string]bool{}
	for u, want := range map[string]render.Code{
		uri(secret): wrong,
		uri(filepath.Join(p.outside, "none.mp4")):     wrong,
		"file://" + in("../secret.mp4"):               wrong,
		"file://" + in("%2e%2e/secret.mp4"):           wrong,
		"file://" + in("..%2fsecret.mp4"):             wrong,
		"file://" + in("..%5csecret.mp4"):             missing,
		"file://" + in("sub/../../secret.mp4"):        wrong,
		uri(p.dir + "side/x.mp4"):                     wrong,
		"file:///etc/passwd":                          wrong,
		"file:///proc/self/cwd/plain.mp4":             wrong,
		"file:///proc/self/fd/0":                      wrong,
		uri(in("absolute.mp4")):                       missing,
		uri(in("relative.mp4")):                       missing,
		uri(in("up/secret.mp4")):                      missing,
		uri(in("up/none.mp4")):                        missing,
		uri(in("twice/secret.mp4")):                   missing,
		uri(in("root/etc/passwd")):                    missing,
		uri(in("dangling.mp4")):                       missing,
		uri(in("loop.mp4")):                           missing,
		uri(in("none.mp4")):                           missing,
		uri(in("plain.mp4/x")):                        missing,
		uri(in(strings.Repeat("n", 300))):             missing,
		uri(p.dir):                                    wrong,
		uri(in("pipe.mp4")):                           wrong,
		uri(in("empty.mp4")):                          wrong,
		uri(in("large.mp4")):                          large,
		"file://host" + in("plain.mp4"):               wrong,
		"file://u@localhost" + in("plain.mp4"):        wrong,
		"file:plain.mp4":                              wrong,
		"file:":                                       wrong,
		"file://" + in("plain.mp4?x"):                 wrong,
		"file://" + in("plain.mp4#x"):                 wrong,
		"file://" + in("plain.mp4%00"):                wrong,
		"file://" + in("plain%zz.mp4"):                wrong,
		"file://" + in("plain.mp4\n"):                 wrong,
		"file://localhost:1" + in("plain.mp4"):        wrong,
		"file:////" + strings.TrimPrefix(secret, "/"): wrong,
	} {
		_, err := p.imports.Import(t.Context(), tenant, "source_asset_uri", u)
		e := render.AsError(err)
		if e.Code != want || e.Details == nil || e.Details.Field != "source_asset_uri" {
			t.Errorf("%s: %v", u, err)
			continue
		}
		if strings.Contains(e.Message, "secret") {
			t.Errorf("%s: %s", u, e.Message)
		}
		if want == missing {
			answers[e.Message] = true
		}
	}
	if len(answers) != 1 {
		t.Errorf("what leads out can be told from what is not there: %v", answers)
	}
	if page, _, err := p.farm.Assets(t.Context(), tenant, "", 10); err != nil || len(page) > 0 {
		t.Errorf("%d assets, %v", len(page), err)
	}
}

// The same bytes under the same name are one asset, for another process too;
// a changed file is another one.
func TestTheSameFileIsTheSameAsset(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.file(filepath.Join(p.dir, "a.mp4"), "one")
	var mu sync.Mutex
	uploads := 0
	p.farm.OnUpload = func() { mu.Lock(); uploads++; mu.Unlock() }
	imported := func(i *localfile.Importer, path string) render.AssetID {
		t.Helper()
		id, err := i.Import(t.Context(), tenant, "asset_uri", uri(path))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	ids := make([]render.AssetID, 10)
	var wg sync.WaitGroup
	for n := range ids {
		wg.Go(func() { ids[n] = imported(p.imports, path) })
	}
	wg.Wait()
	for _, id := range append(slices.Clone(ids), imported(p.importer(p.dir), path), imported(p.imports, p.file(filepath.Join(p.dir, "sub", "a.mp4"), "one"))) {
		if id != ids[0] {
			t.Errorf("%s and %s", id, ids[0])
		}
	}
	if uploads != 1 {
		t.Errorf("%d uploads", uploads)
	}
	if id := imported(p.imports, p.file(filepath.Join(p.dir, "b.mp4"), "one")); id == ids[0] {
		t.Error("another name is the same asset")
	}
	p.file(path, "two!")
	if id := imported(p.imports, path); id == ids[0] {
		t.Error("another content is the same asset")
	}
	if err := p.farm.DeleteAsset(t.Context(), tenant, ids[0]); err != nil {
		t.Fatal(err)
	}
	p.file(path, "one")
	if id := imported(p.imports, path); id == ids[0] {
		t.Error("a deleted asset was found")
	}
}

// A caller that goes away does not stop the import; an error is not kept.
func TestImportGoesOn(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.file(filepath.Join(p.dir, "a.mp4"), "one")
	p.farm.Fail("Upload", render.Errorf(render.CodeUnavailable, render.BlameFarm, "away"))
	if _, err := p.imports.Import(t.Context(), tenant, "asset_uri", uri(path)); render.CodeOf(err) != render.CodeUnavailable {
		t.Errorf("%v", err)
	}
	p.farm.Fail("Upload", nil)
	started, release := make(chan struct{}), make(chan struct{})
	p.farm.OnUpload = func() { close(started); <-release }
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() { _, err := p.imports.Import(ctx, tenant, "asset_uri", uri(path)); gone <- err }()
	<-started
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	close(release)
	if _, err := p.imports.Import(t.Context(), tenant, "asset_uri", uri(path)); err != nil {
		t.Error(err)
	}
}

func object(content string) *farm.Content {
	return &farm.Content{
		Object: render.Object{Key: "k/" + content, Size: int64(len(content)), SHA256: sum(content)},
		Open: func(context.Context, int64, int64) (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader(content)), nil
		},
	}
}

func TestOutput(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made", "for it")
	open := func() *localfile.Output {
		o, err := localfile.NewOutput(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(o.Close)
		return o
	}
	o := open()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is there before its time: %v", err)
	}
	write := func(o *localfile.Output, name string, c *farm.Content, want string) {
		t.Helper()
		path, err := o.Write(t.Context(), name, c)
		if err != nil || path != filepath.Join(dir, want) {
			t.Errorf("%s: %q, %v", name, path, err)
		}
	}
	content := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { write(o, "映画.mp4", object("one"), "映画.mp4") })
	}
	wg.Wait()
	write(open(), "映画.mp4", object("one"), "映画.mp4") // found by another process
	write(o, "映画.mp4", object("two"), "映画 (2).mp4")  // as long as the first
	// What the user did to it is the user's.
	if err := os.WriteFile(filepath.Join(dir, "映画.mp4"), []byte("cut"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(dir, "映画.mp4"), time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	write(o, "映画.mp4", object("one"), "映画 (3).mp4")
	if content("映画.mp4") != "cut" || content("映画 (2).mp4") != "two" || content("映画 (3).mp4") != "one" {
		t.Error("a file was changed")
	}
	// Neither through a link nor into a folder of that name.
	if err := errors.Join(os.Symlink("/nowhere/x", filepath.Join(dir, "l.mp4")), os.Mkdir(filepath.Join(dir, "d.mp4"), 0o700)); err != nil {
		t.Fatal(err)
	}
	write(o, "l.mp4", object("one"), "l (2).mp4")
	write(o, "d.mp4", object("one"), "d (2).mp4")
	write(o, "..mp4", object("hidden"), "mp4")
	write(o, strings.Repeat("映", 100)+".mp4", object("long"), strings.Repeat("映", 83)+".mp4")

	broken := object("broken")
	broken.Object.SHA256 = sum("other")
	if _, err := o.Write(t.Context(), "b.mp4", broken); err == nil {
		t.Error("wrong bytes were written")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".part") || e.Name() == "b.mp4" {
			t.Errorf("%s is left", e.Name())
		}
	}
}

func FuzzFileURI(f *testing.F) {
	dir := f.TempDir()
	outside := filepath.Join(dir, "secret")
	in := filepath.Join(dir, "in")
	if err := errors.Join(os.Mkdir(in, 0o700), os.WriteFile(outside, []byte("secret"), 0o600), os.WriteFile(filepath.Join(in, "a"), []byte("a"), 0o600)); err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"/a", "/../secret", "/%2e%2e/secret", "/..%2fsecret", "/./a", "//a", "/a?b", "/\x00", "/a%00", "/b/../../secret"} {
		f.Add(s)
	}
	fake := farmtest.New(time.Now)
	s, err := localfile.OpenSources(in)
	if err != nil {
		f.Fatal(err)
	}
	i := localfile.NewImporter(s, fake, 1000, time.Now, slog.New(slog.DiscardHandler))
	f.Cleanup(func() { _ = i.Close() })
	f.Fuzz(func(t *testing.T, path string) {
		for _, u := range []string{"file://" + in + path, "file://" + path, "file:" + path, path} {
			id, err := i.Import(t.Context(), tenant, "f", u)
			if err != nil {
				continue
			}
			a, err := fake.Asset(t.Context(), tenant, id)
			if err != nil || a.Object.SHA256 != sum("a") {
				t.Fatalf("%q gave %+v, %v", u, a, err)
			}
		}
	})
}
