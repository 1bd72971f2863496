package ffmpeg

import (
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

const (
	// maxLog is how much of a run's log is kept, in bytes.
	maxLog = 128 << 10
	// maxTailLines and maxTailLine bound what clients see of it.
	maxTailLines = 20
	maxTailLine  = 300
)

// Log keeps the last of what a run wrote to stderr. It is safe for concurrent
// use.
type Log struct {
	mu  sync.Mutex
	buf []byte
	cut bool
}

// Write never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if over := len(l.buf) - maxLog; over > 0 {
		l.buf = append(l.buf[:0], l.buf[over:]...)
		l.cut = true
	}
	return len(p), nil
}

// Lines returns the kept lines as they are, for the worker's own decisions.
// They may hold paths and words from the media: see Tail for clients.
func (l *Log) Lines() []string {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.FieldsFunc(string(l.buf), func(r rune) bool { return r == '\n' || r == '\r' })
	if l.cut && len(lines) > 0 {
		lines = lines[1:]
	}
	return lines
}

// Tail returns the last lines fit for clients: at most 20 lines of at most 300
// characters, without paths, control characters, or words that come from the
// media.
func (l *Log) Tail() []string {
	var tail []string
	for _, line := range l.Lines() {
		if line = clean(line); line != "" {
			tail = append(tail, line)
		}
	}
	if len(tail) > maxTailLines {
		tail = tail[len(tail)-maxTailLines:]
	}
	return tail
}

var (
	// addresses are the pointers in "[h264 @ 0x55d0c8]".
	addresses = regexp.MustCompile(` @ 0x[0-9a-f]+`)
	// paths are file: URLs, and anything with a slash that starts like a path.
	paths = regexp.MustCompile(`file:\S+|(^|[\s'"=(,:;\[])(?:~|\.{1,2})?/[^\s'"]*`)
	// quoted text is what ffmpeg quotes from the file: titles, codec tags.
	quoted = regexp.MustCompile(`'[^']*'|"[^"]*"`)
	// metadata lines are "    my key          : My holidays", and
	// "                    : second line"; everything of a file or stream
	// that is so indented is the file's word.
	metadata = regexp.MustCompile(`^(\[\w+\] )?(\s{4,}|\s{2,}\S*\s*:)`)
	// languages are the tags in "Stream #0:0[0x1](eng): Video".
	languages = regexp.MustCompile(`(Stream #\d+:\d+(?:\[\w+\])?)\(.*?\):`)
)

// clean makes a line of the log fit for clients; "" drops it.
func clean(line string) string {
	if metadata.MatchString(line) {
		return ""
	}
	line = addresses.ReplaceAllString(line, "")
	line = languages.ReplaceAllString(line, "$1:")
	line = quoted.ReplaceAllString(line, "…")
	line = paths.ReplaceAllString(line, "$1…")
	line = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.Is(unicode.C, r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(line, ""))
	line = strings.TrimSpace(line)
	if r := []rune(line); len(r) > maxTailLine {
		line = string(r[:maxTailLine-1]) + "…"
	}
	return line
}
