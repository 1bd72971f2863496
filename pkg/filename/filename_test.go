package filename_test

import (
	"errors"
	"mime"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/vidforge/vidforge/pkg/filename"
)

func names() map[string]string {
	return map[string]string{
		"plain.mp4":                "plain.mp4",
		"Ферма 農場.mp4":             "Ферма 農場.mp4",
		"סרט קצר.mov":              "סרט קצר.mov",
		"فيلم قصير.webm":           "فيلم قصير.webm",
		"動画🎬👨‍👩‍👧.mp4":             "動画🎬👨‍👩‍👧.mp4",
		"cafe\u0301.mp4":           "caf\u00e9.mp4", // one spelling
		"\u1112\u1161\u11ab.mp4":   "한.mp4",
		"नमस्ते.mkv":               "नमस्ते.mkv",
		"film\u202e4pm.exe":        "film4pm.exe",
		"\u2066a\u2069\u200fb.mp4": "a\u200fb.mp4", // a mark of a script stays
		"a\x00\r\nb\tc\u2028d.mp4": "abcd.mp4",
		"../../etc/passwd":         ".._.._etc_passwd",
		`C:\films\a.mp4`:           "C:_films_a.mp4",
		`say "cheese" 100%.mp4`:    `say "cheese" 100%.mp4`,
		"  spaces  ":               "spaces",
		"\ufefffirst.mp4":          "first.mp4",
		"":                         "", ".": "", "..": "", " \u202e ": "",
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range names() {
		got, err := filename.Clean(in)
		if err != nil || got != want {
			t.Errorf("%+q: %+q, %v; want %+q", in, got, err, want)
		}
	}
	for in, want := range map[string]error{
		"a\xff":                     filename.ErrEncoding,
		strings.Repeat("x", 256):    filename.ErrTooLong,
		strings.Repeat("農", 86):     filename.ErrTooLong, // 258 bytes
		strings.Repeat("\x00", 1e6): filename.ErrTooLong,
	} {
		if got, err := filename.Clean(in); !errors.Is(err, want) {
			t.Errorf("%.20q: %q, %v", in, got, err)
		}
	}
	if got, err := filename.Clean(strings.Repeat("e\u0301", 127)); err != nil || len(got) != 254 {
		t.Errorf("the limit is not that of the name as it is kept: %d bytes, %v", len(got), err)
	}
}

func TestDisposition(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"plain.mp4":  `attachment; filename="plain.mp4"`,
		"a; b=c.mp4": `attachment; filename="a; b=c.mp4"`,
		`a"b\c%.mp4`: `attachment; filename="a_b_c_.mp4"; filename*=UTF-8''a%22b%5Cc%25.mp4`,
		"Übung.mp4":  `attachment; filename="_bung.mp4"; filename*=UTF-8''%C3%9Cbung.mp4`,
		"農場.mp4":     `attachment; filename*=UTF-8''%E8%BE%B2%E5%A0%B4.mp4`,
		"":           `attachment`,
		"a\xff":      `attachment`,
	} {
		if got := filename.Disposition("attachment", name); got != want {
			t.Errorf("%q: %s\nnot %s", name, got, want)
		}
	}
}

func FuzzName(f *testing.F) {
	for name := range names() {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, in string) {
		name, err := filename.Clean(in)
		if err != nil || name == "" {
			return
		}
		if again, err := filename.Clean(name); err != nil || again != name {
			t.Errorf("%+q became %+q and then %+q, %v", in, name, again, err)
		}
		if !utf8.ValidString(name) || !norm.NFC.IsNormalString(name) || len(name) > filename.MaxBytes || strings.ContainsAny(name, "/\\\n\r\x00") {
			t.Errorf("%+q became %+q", in, name)
		}
		header := filename.Disposition("inline", name)
		kind, params, err := mime.ParseMediaType(header)
		if err != nil || kind != "inline" || params["filename"] != name {
			t.Errorf("%+q became %s, which reads %+q, %v", name, header, params["filename"], err)
		}
	})
}
