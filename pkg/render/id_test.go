package render_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
)

func hostileIDs() []string {
	good := strings.Repeat("a", 26)
	return []string{
		"", "task_", "a_", "task_" + good, "a_" + good, "task_" + good + "\n", "\ntask_" + good, " task_" + good, "task_" + good + "a",
		"task_" + good[:25], "task_" + good[:25] + "*", "task_" + good[:25] + ">", "task_" + good[:25] + ".", "task_" + good[:25] + "/",
		"task_" + good[:25] + " ", "task_" + good[:25] + "\x00", "task_" + good[:25] + "A", "task_" + good[:25] + "1", "task_*", ">", "a_>",
		"TASK_" + good, "task_" + strings.Repeat("é", 13), "a_" + good[:25] + "9", "a_" + good[:25] + "Z", "a_" + good[:25] + "ı",
		"vidforge://assets/a_" + good, "vidforge://assets/a_" + good + "/x", "vidforge://assets/../a_" + good, "VIDFORGE://assets/a_" + good,
		"vidforge://assets/a_" + good + "?x=1", "vidforge://assets/a_" + good + "#x", "vidforge://assets/" + good,
	}
}

// minted reports, without a regular expression, whether s is prefix and 26
// characters of the alphabet.
func minted(s, prefix, alphabet string) bool {
	rest, ok := strings.CutPrefix(s, prefix)
	return ok && len(rest) == 26 && strings.Trim(rest, alphabet) == ""
}

func FuzzParseID(f *testing.F) {
	for _, s := range hostileIDs() {
		f.Add(s)
	}
	const base32, alnum = "abcdefghijklmnopqrstuvwxyz234567", "abcdefghijklmnopqrstuvwxyz0123456789"
	f.Fuzz(func(t *testing.T, s string) {
		id, ok := render.ParseID(s)
		if want := minted(s, "task_", base32); ok != want || (ok && string(id) != s) || (!ok && id != "") {
			t.Errorf("ParseID(%q) = %q, %v", s, id, ok)
		}
		asset, ok := render.ParseAssetID(s)
		if want := minted(s, "a_", alnum); ok != want || (ok && string(asset) != s) || (!ok && asset != "") {
			t.Errorf("ParseAssetID(%q) = %q, %v", s, asset, ok)
		}
		byURI, ok := render.ParseAssetURI(s)
		if want := minted(s, "vidforge://assets/a_", alnum); ok != want || (ok && byURI.URI() != s) {
			t.Errorf("ParseAssetURI(%q) = %q, %v", s, byURI, ok)
		}
	})
}

func TestMintedIDs(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		id, asset, attempt := render.NewID(), render.NewAssetID(), render.NewAttemptID()
		if got, ok := render.ParseID(string(id)); !ok || got != id {
			t.Fatalf("minted %q is not accepted", id)
		}
		if got, ok := render.ParseAssetURI(asset.URI()); !ok || got != asset {
			t.Fatalf("minted %q is not accepted", asset)
		}
		if !regexp.MustCompile(`^[a-z2-7]{26}$`).MatchString(attempt) {
			t.Fatalf("minted attempt %q", attempt)
		}
		for _, s := range []string{string(id), string(asset), attempt} {
			if seen[s] {
				t.Fatalf("%q was minted twice", s)
			}
			seen[s] = true
		}
	}
}

func TestResourceURIs(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		testTask.VideoURI(render.FormatWebM): "vidforge://videos/" + string(testTask) + "/final.webm",
		testTask.PreviewURI():                "vidforge://renders/" + string(testTask) + "/watermark-preview.png",
		testTask.LogURI():                    "vidforge://renders/" + string(testTask) + "/log",
		testSource.URI():                     "vidforge://assets/" + string(testSource),
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func FuzzTenantKey(f *testing.F) {
	for _, s := range append(hostileIDs(), "local", "acme", "ACME", "acme.>", "租户") {
		f.Add(s)
	}
	pattern := regexp.MustCompile(`^[a-z2-7]{26}$`)
	f.Fuzz(func(t *testing.T, name string) {
		key := render.Tenant(name).Key()
		if !pattern.MatchString(key) {
			t.Errorf("Key of %q is %q", name, key)
		}
		if key != render.Tenant(name).Key() || key == render.Tenant(name+"x").Key() {
			t.Errorf("Key of %q is not its own", name)
		}
	})
}

// Keys are in stores: they must be the same in every version. The value is the
// base32 form of `printf local | sha256sum`.
func TestTenantKeyIsStable(t *testing.T) {
	t.Parallel()
	if got, want := render.LocalTenant.Key(), "ew7y4grdspyrbdjxaknt35kzgi"; got != want {
		t.Errorf("Key = %s, want %s", got, want)
	}
}
