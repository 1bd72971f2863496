// Package filename handles the names that people give to files: names in any
// script, which are shown and sent to other programs, and never used as a path.
package filename

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// MaxBytes is the longest name in bytes, as most file systems have it.
const MaxBytes = 255

var (
	// ErrEncoding is returned for a name that is not UTF-8.
	ErrEncoding = errors.New("it is not valid UTF-8")
	// ErrTooLong is returned for a name of more than MaxBytes.
	ErrTooLong = fmt.Errorf("it is longer than %d bytes in UTF-8", MaxBytes)
)

// Clean makes a name fit to be shown and saved: in Unicode's normal form C, so
// that one name has one spelling; without control characters, line separators
// and what turns the text around it; with "_" for the separators of paths. Marks
// that belong to a script's spelling stay. "" is a name that nothing is left of.
func Clean(name string) (string, error) {
	if !utf8.ValidString(name) {
		return "", ErrEncoding
	}
	if len(name) > 16*MaxBytes { // no work for what can only be refused
		return "", ErrTooLong
	}
	name = strings.Map(func(r rune) rune {
		switch {
		case r == '/' || r == '\\':
			return '_'
		case unicode.IsControl(r), unicode.In(r, unicode.Zl, unicode.Zp), reorders(r), r == '\ufeff', r&0xfffe == 0xfffe:
			return -1
		}
		return r
	}, name)
	name = strings.TrimSpace(norm.NFC.String(name))
	if strings.Trim(name, ".") == "" { // "." and ".." are no names
		return "", nil
	}
	if len(name) > MaxBytes {
		return "", ErrTooLong
	}
	return name, nil
}

// reorders reports whether a character turns the text around it: a name such as
// "film\u202e4pm.exe" would be shown as another one.
func reorders(r rune) bool {
	return r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069'
}

// Disposition is the value of a Content-Disposition header (RFC 6266): the kind
// ("attachment" or "inline") and the name, by RFC 8187 where it needs that, with
// a plain form before it for programs that do not know this one. A name that
// lost all its letters in the plain form has none.
func Disposition(kind, name string) string {
	if name == "" || !utf8.ValidString(name) {
		return kind
	}
	plain, same := ascii(name)
	value := kind
	if plain != "" {
		value += `; filename="` + plain + `"`
	}
	if !same {
		value += "; filename*=UTF-8''" + extended(name)
	}
	return value
}

// ascii is the plain form of a name. Quotes, backslashes and percent signs are
// read in different ways by different programs (RFC 6266, appendix D).
func ascii(name string) (plain string, same bool) {
	same = true
	letters := false
	plain = strings.Map(func(r rune) rune {
		if r < ' ' || r >= utf8.RuneSelf-1 || strings.ContainsRune(`"\%`, r) {
			same = false
			return '_'
		}
		letters = letters || r != '.' && r != ' '
		return r
	}, name)
	stem := plain
	if i := strings.LastIndexByte(plain, '.'); i > 0 {
		stem = plain[:i]
	}
	if !same && (!letters || strings.Trim(stem, "_ .-()") == "") {
		return "", false
	}
	return plain, same
}

// extended is the value-chars of RFC 8187.
func extended(name string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for _, c := range []byte(name) {
		if c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || strings.IndexByte("!#$&+-.^_`|~", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
	return b.String()
}
