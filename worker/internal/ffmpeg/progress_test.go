package ffmpeg

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

// show writes a progress for a comparison.
func show(p Progress) string {
	var b strings.Builder
	if p.Frame != nil {
		fmt.Fprintf(&b, "frame %d ", *p.Frame)
	}
	if p.OutTime != nil {
		fmt.Fprintf(&b, "time %s ", *p.OutTime)
	}
	if p.TotalSize != nil {
		fmt.Fprintf(&b, "size %d ", *p.TotalSize)
	}
	if p.Speed != nil {
		fmt.Fprintf(&b, "speed %g ", *p.Speed)
	}
	return fmt.Sprintf("%send %t", b.String(), p.End)
}

func TestProgress(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want string }{
		"block":    {"frame=12\nfps=24.5\nstream_0_0_q=28.0\nbitrate= 100.0kbits/s\ntotal_size=48\nout_time_us=480000\nout_time_ms=480000\nout_time=00:00:00.480000\ndup_frames=0\nspeed=1.25x\nprogress=continue\n", "frame 12 time 480ms size 48 speed 1.25 end false"},
		"unknown":  {"frame=0\ntotal_size=N/A\nout_time_us=N/A\nout_time_ms=N/A\nspeed=N/A\nprogress=continue\n", "frame 0 end false"},
		"negative": {"out_time_us=-9223372036854775807\nspeed=-1x\nframe=-1\nprogress=end\n", "end true"},
		"spaces":   {"speed=   2x\nframe= 3 \nprogress=end\n", "frame 3 speed 2 end true"},
		"too long": {"frame=" + strings.Repeat("1", 2*maxProgressLine) + "\nframe=1\nprogress=end\n", "frame 1 end true"},
		"nonsense": {"=\n\nframe\nframe=x\nspeed=NaNx\nspeed=+Infx\nprogress=end\n", "end true"},
	} {
		for _, chunk := range []int{1, 7, len(c.in)} {
			var got []string
			w := &progressWriter{emit: func(p Progress) { got = append(got, show(p)) }}
			for in := c.in; in != ""; {
				n := min(chunk, len(in))
				if m, err := w.Write([]byte(in[:n])); m != n || err != nil {
					t.Fatal(m, err)
				}
				in = in[n:]
			}
			if len(got) != 1 || got[0] != c.want {
				t.Errorf("%s by %d: got %q, want %q", name, chunk, got, c.want)
			}
		}
	}
}

// FuzzProgress: whatever comes, numbers are sane, memory is bounded, and the
// size of the writes does not matter.
func FuzzProgress(f *testing.F) {
	f.Add("frame=1\nout_time_ms=2\nspeed=1x\nprogress=continue\n", 3)
	f.Add("speed=NaNx\nspeed=1e999x\nout_time_us=9223372036854775807\nprogress=end\n", 1)
	f.Fuzz(func(t *testing.T, in string, chunk int) {
		parse := func(chunk int) (all []string) {
			w := &progressWriter{emit: func(p Progress) {
				if p.Frame != nil && *p.Frame < 0 || p.TotalSize != nil && *p.TotalSize < 0 || p.OutTime != nil && *p.OutTime < 0 ||
					p.Speed != nil && (!(*p.Speed >= 0) || math.IsInf(*p.Speed, 0)) {
					t.Errorf("got %s", show(p))
				}
				all = append(all, show(p))
			}}
			for rest := in; rest != ""; {
				n := min(chunk, len(rest))
				if _, err := w.Write([]byte(rest[:n])); err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			if cap(w.line) > 4*maxProgressLine {
				t.Errorf("kept %d bytes", cap(w.line))
			}
			return all
		}
		if chunk < 1 {
			chunk = 1
		}
		if a, b := parse(chunk), parse(len(in)+1); fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("by %d: %v, at once: %v", chunk, a, b)
		}
	})
}

func TestMeter(t *testing.T) {
	t.Parallel()
	var m meter
	start := time.Unix(1000, 0)
	if got := m.update(start, 0); got != nil {
		t.Errorf("a rate from one sample: %v", *got)
	}
	var got *float64
	for i := range 100 {
		got = m.update(start.Add(time.Duration(i+1)*time.Second/2), int64(i+1)*15)
	}
	if got == nil || math.Abs(*got-30) > 0.01 {
		t.Errorf("steady: got %v, want 30", got)
	}
	got = m.update(start.Add(51*time.Second), 1500+60) // a burst of 60 in a second
	if *got < 30 || *got > 40 {
		t.Errorf("after a burst: got %v, want a little more than 30", *got)
	}
	if got := m.update(start.Add(52*time.Second), 0); got != nil {
		t.Errorf("after a restart: got %v, want unknown", *got)
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"[h264 @ 0x55d0c8a0] [error] error while decoding MB 3 4": "[h264] [error] error while decoding MB 3 4",
		"[error] file:/srv/job/source: Invalid data":              "[error] … Invalid data",
		"[error] Error opening /etc/passwd, sorry":                "[error] Error opening … sorry",
		"[warning] see ~/secret/x and ../y now":                   "[warning] see … and … now",
		"[info]     title           : My holidays":                "",
		"[info]                     : second line":                "",
		"[info]     my key          : My holidays":                "",
		"[info]   Stream #0:0[0x1](my (secret)): Video: h264":     "[info]   Stream #0:0[0x1]: Video: h264",
		"[warning] Unknown tag 'my secret' in file":               "[warning] Unknown tag … in file",
		"bell\a and \x1b[31mred\u202e":                            "bell and [31mred",
		"invalid \xff utf8":                                       "invalid  utf8",
		"1/25 stays, and so does 5.1/8 kb/s":                      "1/25 stays, and so does 5.1/8 kb/s",
		strings.Repeat("é", 400):                                  strings.Repeat("é", 299) + "…",
		" \t ":                                                    "",
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add("[x @ 0x1] file:/a 'b' /c\x00")
	f.Fuzz(func(t *testing.T, in string) {
		got := clean(in)
		if !utf8.ValidString(got) || utf8.RuneCountInString(got) > maxTailLine || strings.ContainsFunc(got, unicode.IsControl) {
			t.Errorf("clean(%q) = %q", in, got)
		}
	})
}

func TestLog(t *testing.T) {
	t.Parallel()
	var l Log
	for i := range 20000 {
		fmt.Fprintf(&l, "[error] line %d\n", i)
	}
	if n := len(strings.Join(l.Lines(), "\n")); n > maxLog {
		t.Errorf("kept %d bytes", n)
	}
	tail := l.Tail()
	if len(tail) != maxTailLines || tail[maxTailLines-1] != "[error] line 19999" || tail[0] != "[error] line 19980" {
		t.Errorf("tail %q", tail)
	}
	if first := l.Lines()[0]; !strings.HasPrefix(first, "[error] line ") {
		t.Errorf("the first kept line is cut: %q", first)
	}
}
