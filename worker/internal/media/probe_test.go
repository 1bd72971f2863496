package media

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
)

// TestProbeRefuses probes what is no video, and what only pretends to be one.
func TestProbeRefuses(t *testing.T) {
	t.Parallel()
	tools, dir := tools(t), t.TempDir()
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	good := recipe{inputs: []string{picture}, args: x264, file: "good.mp4"}.make(t, tools, dir)
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	write("empty.mp4", "")
	write("text.mp4", strings.Repeat("All work and no play makes Jack a dull boy.\n", 200))
	write("playlist.mp4", "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:"+good+"\n#EXT-X-ENDLIST\n")
	write("concat.mp4", "ffconcat version 1.0\nfile good.mp4\n")
	write("script.mp4", "ffconcat version 1.0\nfile http://127.0.0.1:1/x\n")
	write("page.mp4", "<html><body>404</body></html>")
	write("cut.mp4", string(whole[:len(whole)/2])) // the index is at the end
	write("noise.mp4", string(whole[:32])+strings.Repeat("\x00\x01noise", 4000))
	write("sdp.mp4", "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n")
	recipe{inputs: []string{tone}, args: "-c:a aac", file: "sound.m4a"}.make(t, tools, dir)
	recipe{inputs: []string{"@sound.m4a", "color=red:size=64x64:duration=0.04"}, args: "-map 0:a -map 1:v -c:a copy -c:v mjpeg -disposition:v attached_pic", file: "cover.m4a"}.make(t, tools, dir)
	recipe{inputs: []string{"testsrc2=size=160x120:rate=25:duration=0.08"}, args: "-vf setpts=N*20*3600/TB -fps_mode passthrough -enc_time_base 1/25 " + x264, file: "apart.mp4"}.make(t, tools, dir)
	recipe{inputs: []string{"color=black:size=8192x4912:rate=1:duration=1"}, args: x264, file: "large.mp4"}.make(t, tools, dir)

	for name, want := range map[string]struct {
		code   render.Code
		reason string
	}{
		"empty.mp4":    {render.CodeUnsupportedCodec, "empty"},
		"text.mp4":     {render.CodeUnsupportedCodec, "container"},
		"playlist.mp4": {render.CodeUnsupportedCodec, "container"},
		"concat.mp4":   {render.CodeUnsupportedCodec, "container"},
		"script.mp4":   {render.CodeUnsupportedCodec, "container"},
		"page.mp4":     {render.CodeUnsupportedCodec, "container"},
		"sdp.mp4":      {render.CodeUnsupportedCodec, "container"},
		"cut.mp4":      {render.CodeUnsupportedCodec, "cut off"},
		"noise.mp4":    {render.CodeUnsupportedCodec, ""},
		"sound.m4a":    {render.CodeUnsupportedCodec, "no picture"},
		"cover.m4a":    {render.CodeUnsupportedCodec, "no picture"},
		"apart.mp4":    {render.CodeSourceTooLarge, "hours"},
		"large.mp4":    {render.CodeSourceTooLarge, "pixels"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := probeFile(t, tools, filepath.Join(dir, name))
			if f.Renderable || f.Code != want.code || !strings.Contains(f.Reason, want.reason) {
				t.Errorf("renderable %t, %s: %q", f.Renderable, f.Code, f.Reason)
			}
			if strings.Contains(f.Reason, dir) {
				t.Errorf("the reason shows a path: %q", f.Reason)
			}
		})
	}
	if _, err := Probe(t.Context(), tools, dir, filepath.Join(dir, "absent")); err == nil {
		t.Error("a missing file is our fault, and an error")
	}
}

// box makes an ISO media box.
func box(kind string, content ...string) string {
	body := strings.Join(content, "")
	n := len(body) + 8
	return string([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) + kind + body
}

func TestEncryptedBoxes(t *testing.T) {
	t.Parallel()
	track := func(entry string) string {
		return box("ftyp", "isom") + box("moov", box("trak", box("mdia", box("minf", box("stbl", box("stsd", "\x00\x00\x00\x00\x00\x00\x00\x01", entry))))))
	}
	pad := strings.Repeat("\x00", 78)
	for name, c := range map[string]struct {
		file string
		want bool
	}{
		"clear video":            {track(box("avc1", pad, box("avcC", "x"))), false},
		"encrypted video":        {track(box("encv", pad, box("sinf", "x"))), true},
		"encrypted sound":        {track(box("enca", pad)), true},
		"protected, clear name":  {track(box("avc1", pad, box("avcC", "x"), box("sinf", "x"))), true},
		"protected sound":        {track(box("mp4a", pad[:28], box("esds", "x"), box("sinf", "x"))), true},
		"no boxes":               {"hello world, this is text", false},
		"a box beyond the end":   {"\x7f\xff\xff\xffmoov", false},
		"a box of negative size": {"\x00\x00\x00\x01moov\xff\xff\xff\xff\xff\xff\xff\xff", false},
		"a box too small":        {"\x00\x00\x00\x04moov", false},
		"a box without an end":   {"\x00\x00\x00\x00moov" + box("trak"), false},
		"many boxes":             {strings.Repeat(box("free"), 3*maxBoxes), false},
		"boxes nested for ever":  {strings.Repeat("\x00\x01\x00\x00moov", 5000), false},
	} {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, []byte(c.file), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := isEncrypted(path); got != c.want || err != nil {
			t.Errorf("%s: got %t, %v", name, got, err)
		}
	}
}

func FuzzBoxes(f *testing.F) {
	f.Add([]byte(box("moov", box("trak", box("mdia")))))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := boxReader{r: bytes.NewReader(b), left: maxBoxes}
		if _, err := r.encrypted(0, int64(len(b)), 0); err != nil && r.left >= 0 {
			t.Error(err)
		}
		r.left = maxBoxes
		if _, err := r.headers(0, int64(len(b)), 0); err != nil && r.left >= 0 && !errors.Is(err, errBoxes) && !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

func FuzzPackets(f *testing.F) {
	f.Add("0,1,2,3,K_\n0,N/A,N/A,N/A,__\n", 3)
	f.Add("0,9223372036854775807,0,9223372036854775807,K_\n", 1)
	f.Fuzz(func(t *testing.T, in string, chunk int) {
		var x packetIndex
		p := &packetParser{streams: map[int]*packetIndex{0: &x}}
		for rest := in; rest != ""; {
			n := min(max(1, chunk), len(rest))
			if _, err := p.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		x.close()
		tb := render.Rational{Num: 1, Den: 1000}
		rate, _ := pickRate(&x, tb, render.Rational{Num: 250, Den: 1})
		if rate.IsZero() || rate.Float() > maxRate {
			t.Errorf("rate %v", rate)
		}
		if _, frames := frameGrid(&x, tb, rate, render.Rational{}); frames < 1 {
			t.Errorf("%d frames", frames)
		}
	})
}

func FuzzInfo(f *testing.F) {
	f.Add([]byte(`{"streams":[{"codec_type":"video","time_base":"1/25","side_data_list":[{"side_data_type":"Display Matrix","rotation":-90}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		i, err := parseInfo(b)
		if err != nil {
			return
		}
		for n := range i.Streams {
			if s := i.Streams[n].stream(); s.Rotation%90 != 0 || s.Rotation < 0 || s.Rotation > 270 || s.BitDepth < 0 {
				t.Errorf("%+v", s)
			}
		}
		_ = i.duration()
	})
}

// indexOf feeds timestamps, all of the same length, to an index.
func indexOf(length int64, pts ...int64) *packetIndex {
	var x packetIndex
	for _, p := range pts {
		x.add(&p, &p, &length)
	}
	x.close()
	return &x
}

func TestPickRate(t *testing.T) {
	t.Parallel()
	every := func(step float64, n int) (pts []int64) {
		for i := range n {
			pts = append(pts, int64(float64(i)*step+0.5))
		}
		return pts
	}
	without := func(pts []int64, drop func(i int) bool) (kept []int64) {
		for i, p := range pts {
			if !drop(i) {
				kept = append(kept, p)
			}
		}
		return kept
	}
	ms := render.Rational{Num: 1, Den: 1000}
	for _, c := range []struct {
		name     string
		pts      []int64
		r        render.Rational
		want     string
		variable bool
	}{
		{"30 in milliseconds", every(1000.0/30, 300), render.Rational{Num: 30, Den: 1}, "30/1", false},
		{"29.97 in milliseconds", every(1001.0/30, 300), render.Rational{Num: 30000, Den: 1001}, "30000/1001", false},
		{"29.97 with holes", without(every(1001.0/30, 300), func(i int) bool { return i%20 == 3 }), render.Rational{Num: 30000, Den: 1001}, "30000/1001", true},
		{"30 with holes and no word", without(every(1000.0/30, 300), func(i int) bool { return i%7 == 3 }), render.Rational{Num: 1000, Den: 1}, "30/1", true},
		{"240", every(1000.0/240, 500), render.Rational{Num: 240, Den: 1}, "120/1", false},
		{"1000 claimed and true", every(1, 500), render.Rational{Num: 1000, Den: 1}, "1000/9", false},
		{"slow", every(5000, 10), render.Rational{Num: 1, Den: 5}, "1/5", false},
		{"one frame", every(40, 1), render.Rational{Num: 24, Den: 1}, "24/1", false},
		{"one frame, no word", every(40, 1), render.Rational{}, "25/1", false},
		{"all at once", []int64{5, 5, 5}, render.Rational{Num: 90000, Den: 1}, "90000/750", false},
		{"double rate claimed", every(40, 100), render.Rational{Num: 50, Den: 1}, "25/1", false},
		{"13 a second, no word", every(1000.0/13, 100), render.Rational{Num: 500, Den: 1}, "13/1", false},
	} {
		rate, variable := pickRate(indexOf(1, c.pts...), ms, c.r)
		want := parseRational(c.want)
		if rate.Num*want.Den != want.Num*rate.Den || variable != c.variable {
			t.Errorf("%s: got %v, variable %t; want %s, %t", c.name, rate, variable, c.want, c.variable)
		}
	}
}

func TestFrameGrid(t *testing.T) {
	t.Parallel()
	ms, f25 := render.Rational{Num: 1, Den: 1000}, render.Rational{Num: 25, Den: 1}
	for _, c := range []struct {
		name   string
		x      *packetIndex
		start  render.Rational
		ticks  int64
		frames int64
	}{
		{"from zero", indexOf(40, 0, 40, 80), render.Rational{Num: 0, Den: 1000}, 0, 3},
		{"reordered", indexOf(40, 0, 120, 40, 80), render.Rational{Num: 0, Den: 1000}, 0, 4},
		{"start time", indexOf(40, 10000, 10040), render.Rational{Num: 10, Den: 1}, 10000, 2},
		{"picture later than sound", indexOf(40, 1000, 1040), render.Rational{Num: 0, Den: 1}, 0, 27},
		{"between two frames", indexOf(40, 20, 60, 100), render.Rational{Num: 0, Den: 1}, -20, 4},
		{"a little after", indexOf(40, 7, 47), render.Rational{Num: 0, Den: 1}, 7, 2},
		{"no length known", indexOf(0, 0, 40, 80), render.Rational{}, 0, 3},
		{"long last", indexOf(2000, 0, 2000), render.Rational{}, 0, 100},
		{"negative", indexOf(40, -80, -40), render.Rational{Num: -80, Den: 1000}, -80, 2},
	} {
		if ticks, frames := frameGrid(c.x, ms, f25, c.start); ticks != c.ticks || frames != c.frames {
			t.Errorf("%s: got %d, %d; want %d, %d", c.name, ticks, frames, c.ticks, c.frames)
		}
	}
}

func TestStreamFacts(t *testing.T) {
	t.Parallel()
	for pixFmt, want := range map[string]int{"yuv420p": 8, "yuv420p10le": 10, "yuv444p12be": 12, "gbrp10le": 10, "gray16le": 16, "p010le": 10, "rgb48le": 16, "rgb24": 8, "nv12": 8, "": 0} {
		if got := bitDepth(pixFmt, ""); got != want {
			t.Errorf("bitDepth(%q) = %d, want %d", pixFmt, got, want)
		}
	}
	for degrees, want := range map[float64]int{0: 0, -90: 90, 90: 270, 180: 180, -180: 180, -89.9: 90, 450: 270} {
		if got := rotation([]infoSideData{{Type: "Display Matrix", Rotation: degrees}}); got != want {
			t.Errorf("rotation %v = %d, want %d", degrees, got, want)
		}
	}
	for in, want := range map[string]string{"30000/1001": "{30000 1001}", "16:9": "{16 9}", "0/0": "{0 0}", "0:1": "{0 0}", "-1/2": "{0 0}", "x": "{0 0}", "99999999999/1": "{0 0}"} {
		if got := fmt.Sprint(parseRational(in)); got != want {
			t.Errorf("parseRational(%q) = %s, want %s", in, got, want)
		}
	}
}
