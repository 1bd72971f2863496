package media

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
)

// The tests in this file judge by programs and arithmetic of their own: nothing
// here asks the package what it thinks of a file.

// own runs a program and returns what it printed; any complaint on standard
// error fails the test.
func own(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("%s %q: %v\n%s", name, args, err, stderr.String())
	}
	return out
}

// seenStream, and seenFile around it, are what ffprobe tells of a file that it
// decoded in full.
type seenStream struct {
	Type       string `json:"codec_type"`
	Codec      string `json:"codec_name"`
	Profile    string `json:"profile"`
	Level      int    `json:"level"`
	Width      int    `json:"width"`
	Height     int    `json:"height"`
	PixFmt     string `json:"pix_fmt"`
	Aspect     string `json:"sample_aspect_ratio"`
	Rate       string `json:"avg_frame_rate"`
	Start      string `json:"start_time"`
	Frames     string `json:"nb_read_frames"`
	Range      string `json:"color_range"`
	Space      string `json:"color_space"`
	Transfer   string `json:"color_transfer"`
	Primaries  string `json:"color_primaries"`
	Layout     string `json:"channel_layout"`
	SampleRate string `json:"sample_rate"`
}

type seenFile struct {
	Streams []seenStream `json:"streams"`
	Format  struct {
		Name     string `json:"format_name"`
		Duration string `json:"duration"`
	} `json:"format"`
	Packets []struct {
		Stream int    `json:"stream_index"`
		Time   string `json:"pts_time"`
	} `json:"packets"`
}

func see(t *testing.T, path string) seenFile {
	t.Helper()
	var f seenFile
	if err := json.Unmarshal(own(t, "ffprobe", "-v", "error", "-count_frames", "-show_streams", "-show_format",
		"-show_packets", "-show_entries", "packet=stream_index,pts_time", "-of", "json", path), &f); err != nil {
		t.Fatal(err)
	}
	return f
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// wanted is what a render must give.
type wanted struct {
	format        render.Format
	frames        int
	rate          render.Rational
	seconds       float64 // within a frame
	width, height int
	level         int    // of H.264, times ten
	layout        string // of the sound, "" without sound
}

// check looks at a finished file as a browser or an editor would.
func (w wanted) check(t *testing.T, path string) {
	t.Helper()
	f := see(t, path)
	video, audio, container := "h264", "aac", "mov,mp4,m4a,3gp,3g2,mj2"
	profile, level := "High", w.level
	if w.format == render.FormatWebM {
		video, audio, container, profile, level = "vp9", "opus", "matroska,webm", "Profile 0", -99
	}
	want := []seenStream{{
		Type: "video", Codec: video, Profile: profile, Level: level, Width: w.width, Height: w.height, PixFmt: "yuv420p", Aspect: "1:1",
		Rate: fmt.Sprintf("%d/%d", w.rate.Num, w.rate.Den), Start: "0.000000", Frames: strconv.Itoa(w.frames),
		Range: "tv", Space: "bt709", Transfer: "bt709", Primaries: "bt709",
	}}
	if len(f.Streams) == 0 || f.Format.Name != container {
		t.Fatalf("%s: %+v", w.format, f)
	}
	if got := f.Streams[0]; got != want[0] {
		t.Errorf("%s: video\n got %+v\nwant %+v", w.format, got, want[0])
	}
	switch {
	case w.layout == "" && len(f.Streams) != 1, w.layout != "" && len(f.Streams) != 2:
		t.Errorf("%s: streams %+v", w.format, f.Streams)
	case w.layout != "":
		got := f.Streams[1]
		// What an Opus decoder drops lies before zero: 312 samples.
		start := number(t, got.Start)
		if got.Codec != audio || got.Layout != w.layout || got.SampleRate != "48000" || got.Frames == "0" ||
			start != 0 && !(w.format == render.FormatWebM && start == -0.007) {
			t.Errorf("%s: sound %+v", w.format, got)
		}
	}
	frame := 1 / w.rate.Float()
	if d := number(t, f.Format.Duration); math.Abs(d-w.seconds) > frame {
		t.Errorf("%s: lasts %v s, want %v", w.format, d, w.seconds)
	}
	var times []float64
	for _, p := range f.Packets {
		if p.Stream == 0 {
			times = append(times, number(t, p.Time))
		}
	}
	slices.Sort(times)
	for i, at := range times {
		if math.Abs(at-float64(i)*frame) > 0.0006 { // webm counts in milliseconds
			t.Fatalf("%s: frame %d is at %v s, want %v", w.format, i, at, float64(i)*frame)
		}
	}
	w.checkBytes(t, path)
}

// checkBytes checks what ffprobe does not tell: brand, the index in front,
// colours in the container, and edit lists.
func (w wanted) checkBytes(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if w.format == render.FormatWebM {
		cues, cluster := []byte{0x1c, 0x53, 0xbb, 0x6b}, bytes.Index(b, []byte{0x1f, 0x43, 0xb6, 0x75})
		if cluster < 0 || bytes.Count(b[:cluster], cues) != 2 { // the list of parts names it, and there it is
			t.Errorf("webm: the index is not in front")
		}
		if !bytes.Contains(b[:64], []byte("webm")) {
			t.Errorf("webm: begins with %q", b[:64])
		}
		return
	}
	brand, colours := "isom", "colrnclx\x00\x01\x00\x01\x00\x01\x00"
	if w.format == render.FormatMOV {
		brand, colours = "qt  ", "colrnclc\x00\x01\x00\x01\x00\x01"
	}
	if string(b[4:12]) != "ftyp"+brand || !bytes.Contains(b, []byte(colours)) {
		t.Errorf("%s: begins with %q; colours found: %t", w.format, b[:16], bytes.Contains(b, []byte(colours)))
	}
	if index, data := bytes.Index(b, []byte("moov")), bytes.Index(b, []byte("mdat")); index < 0 || index > data {
		t.Errorf("%s: the index is at %d, the data at %d", w.format, index, data)
	}
	head, _, _ := bytes.Cut(b, []byte("mdat"))
	for _, rest, found := bytes.Cut(head, []byte("elst")); found; _, rest, found = bytes.Cut(rest, []byte("elst")) {
		// Version and flags, number of entries, duration, media time: one
		// entry that drops what a decoder needs before the start, and no pause.
		if entries, at := binary.BigEndian.Uint32(rest[4:]), int32(binary.BigEndian.Uint32(rest[12:])); rest[0] != 0 || entries != 1 || at < 0 {
			t.Errorf("%s: an edit list of %d entries, the first at %d", w.format, entries, at)
		}
	}
}

// renderFormats renders a job to every format. mp4 and mov share their encoded
// parts, as their renders would be equal up to the joining.
func renderFormats(t *testing.T, j Job) map[render.Format]string {
	t.Helper()
	made := map[render.Format]string{}
	for _, formats := range [][]render.Format{{render.FormatMP4, render.FormatMOV}, {render.FormatWebM}} {
		j.Dir = t.TempDir()
		j.Spec.Format = formats[0]
		j.Plan = render.MakePlan(j.Facts, j.Spec, 0, render.Policy{})
		s, err := EncodeSegment(t.Context(), j, 0)
		if err != nil {
			t.Fatalf("%s: encode: %v (log %q)", formats[0], err, s.LogTail)
		}
		audio := ""
		if j.Plan.HasAudio {
			a, err := EncodeAudio(t.Context(), j)
			if err != nil {
				t.Fatalf("%s: encode the sound: %v (log %q)", formats[0], err, a.LogTail)
			}
			audio = a.Path
		}
		for _, f := range formats {
			j.Spec.Format = f
			m, out, err := Assemble(t.Context(), j, []string{s.Path}, audio)
			if err != nil {
				t.Fatalf("%s: join: %v (log %q)", f, err, m.LogTail)
			}
			if video, sound, encoder := f.Codecs(); out.VideoCodec != video || out.AudioCodec != "" && out.AudioCodec != sound || out.Encoder != encoder || out.Frames != j.Plan.Frames {
				t.Errorf("%s: output %+v", f, out)
			}
			made[f] = m.Path
		}
	}
	return made
}

// realFiles is the table of the folder VIDFORGE_TEST_MEDIA: what a render of
// each to 720p must give.
func realFiles() map[string]wanted {
	rate := func(num, den int64) render.Rational { return render.Rational{Num: num, Den: den} }
	return map[string]wanted{
		"rabbit320.mp4":  {"", 234, rate(30, 1), 7.8, 960, 720, 31, "stereo"},
		"rabbit320.webm": {"", 234, rate(30, 1), 7.8, 960, 720, 31, "stereo"},
		"cockatoo.mp4":   {"", 280, rate(20, 1), 14, 1280, 720, 31, "mono"},
		// 176·12/11 : 144 is 4:3; the picture lasts 15.04 s, the sound 15.2.
		"phone.3gp":            {"", 226, rate(15, 1), 15.2, 960, 720, 31, "mono"},
		"camera-yuvj420p.mp4":  {"", 51, rate(25, 1), 2.04, 1270, 720, 31, "stereo"},
		"foreman-hevc.mp4":     {"", 248, rate(24000, 1001), 10.344, 1280, 720, 31, ""},
		"hevc_white_frame.mp4": {"", 1, rate(25, 1), 0.04, 960, 720, 31, ""},
		"tiny_av1.mp4":         {"", 1, rate(24, 1), 1.0 / 24, 720, 720, 31, ""},
		"minimal.mp4":          {"", 1, rate(25, 1), 0.0625, 960, 720, 31, "mono"},
		"bbb_sunflower_QCIF_30fps_h263_noaudio_1f.3gp": {"", 1, rate(30, 1), 1.0 / 30, 1080, 720, 31, ""},
		"h264_white_frame_sar_16_9.mp4":                {"", 1, rate(25, 1), 0.04, 1280, 540, 31, ""}, // 64:27
		"video_colr_nclx_hdr10.mp4":                    {"", 3, rate(25, 1), 0.12, 720, 720, 31, ""},
	}
}

// TestRealFiles renders media that no one here made to every format.
func TestRealFiles(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	for name, want := range realFiles() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := realFile(t, name)
			j := newJob(t, tools, path, draft(), render.Policy{})
			made := renderFormats(t, j)
			for format, file := range made {
				want.format = format
				want.check(t, file)
			}
			if want.layout != "" && want.seconds > 1 {
				for _, format := range []render.Format{render.FormatMP4, render.FormatWebM} {
					if lag := soundLag(t, path, made[format]); math.Abs(lag) > 0.003 {
						t.Errorf("%s: the sound is off by %.1f ms", format, lag*1000)
					}
				}
			}
			if name == "camera-yuvj420p.mp4" {
				for _, format := range []render.Format{render.FormatMP4, render.FormatWebM} {
					compareColours(t, path, made[format], want)
				}
			}
			if want.frames > 3 {
				return
			}
			preview, err := Preview(t.Context(), j)
			if err != nil {
				t.Fatalf("preview: %v", err)
			}
			if w, h, err := pngSize(preview.Path); err != nil || w != want.width || h != want.height {
				t.Errorf("preview is %d×%d: %v", w, h, err)
			}
		})
	}
}

// lagRate is the rate in which sounds are compared, in samples per second, and
// mostLag the largest offset that is looked at.
const (
	lagRate = 8000
	mostLag = lagRate / 4
)

// soundLag is how much later in seconds the sound of a render comes than that of
// its source: where their cross-correlation peaks. Some sources are silent, and
// their renders must be.
func soundLag(t *testing.T, before, after string) float64 {
	t.Helper()
	decode := func(path string) []float64 {
		raw := own(t, "ffmpeg", "-v", "fatal", "-i", path, "-map", "0:a:0", "-t", "5", "-ac", "1", "-ar", strconv.Itoa(lagRate), "-f", "s16le", "-")
		s := make([]float64, len(raw)/2)
		for i := range s {
			s[i] = float64(int16(binary.LittleEndian.Uint16(raw[2*i:])))
		}
		return s
	}
	if strings.HasSuffix(before, ".3gp") { // of each packet, ffmpeg decodes a fiftieth
		unpacked := filepath.Join(t.TempDir(), "source.amr")
		own(t, "ffmpeg", "-v", "fatal", "-i", before, "-map", "0:a:0", "-c", "copy", unpacked)
		before = unpacked
	}
	a, b := decode(before), decode(after)
	// A decoder may swallow the first packets; what comes then has its own
	// time. The render's sound begins at zero, see check.
	first, _, _ := strings.Cut(string(own(t, "ffprobe", "-v", "fatal", "-select_streams", "a:0", "-show_entries", "frame=pts_time",
		"-read_intervals", "%+#60", "-of", "csv=p=0", before)), "\n")
	begins := 0.0
	if first = strings.Trim(first, ","); first != "N/A" { // as of unpacked AMR
		begins = number(t, first)
	}
	if slices.Max(a) == 0 {
		if peak := slices.Max(b); peak > 4 {
			t.Errorf("silence became sound of up to %v", peak)
		}
		return 0
	}
	n := min(len(a), len(b)) - 2*mostLag
	if n < lagRate {
		t.Fatalf("%d and %d samples are too few to compare", len(a), len(b))
	}
	best, at := 0.0, 0
	for lag := -mostLag; lag <= mostLag; lag++ {
		sum := 0.0
		for i := mostLag; i < mostLag+n; i++ {
			sum += a[i] * b[i+lag]
		}
		if sum > best {
			best, at = sum, lag
		}
	}
	if best == 0 {
		t.Fatal("the sounds have nothing in common")
	}
	return float64(at)/lagRate - begins
}

// compareColours compares a full-range BT.601 source with its render, tile by
// tile, after converting both to RGB by the standards' own formulas. A range
// that was converted twice, or flagged and converted, is off by more than ten.
func compareColours(t *testing.T, source, made string, w wanted) {
	t.Helper()
	const tiles, most = 4, 4.0
	first := func(path, format string) []byte {
		return own(t, "ffmpeg", "-v", "error", "-i", path, "-map", "0:v:0", "-frames:v", "1", "-pix_fmt", format, "-f", "rawvideo", "-")
	}
	full := meanTiles(first(source, "yuvj420p"), 480, 272, tiles)
	limited := meanTiles(first(made, "yuv420p"), w.width, w.height, tiles)
	for i := range full {
		// ITU-T T.871 for the source, ITU-R BT.709 for the render.
		want := toRGB(full[i][0], full[i][1]-128, full[i][2]-128, 0.299, 0.114)
		got := toRGB((limited[i][0]-16)*255/219, (limited[i][1]-128)*255/224, (limited[i][2]-128)*255/224, 0.2126, 0.0722)
		if far(got, want, most) {
			t.Errorf("%s: tile %d is %.1f, want %.1f", w.format, i, got, want)
		}
	}
}

// toRGB converts luma (0 to 255) and colour differences (about 0), for the
// weights of red and blue.
func toRGB(y, cb, cr, kr, kb float64) [3]float64 {
	r, b := y+2*(1-kr)*cr, y+2*(1-kb)*cb
	return [3]float64{r, (y - kr*r - kb*b) / (1 - kr - kb), b}
}

// meanTiles are the means of Y, Cb and Cr in n×n tiles of a raw 4:2:0 picture.
func meanTiles(raw []byte, w, h, n int) [][3]float64 {
	out := make([][3]float64, n*n)
	for plane := range 3 {
		pw, ph := w, h
		if plane > 0 {
			pw, ph = (w+1)/2, (h+1)/2
		}
		counts := make([]float64, n*n)
		for y := range ph {
			for x := range pw {
				i := y*n/ph*n + x*n/pw
				out[i][plane] += float64(raw[y*pw+x])
				counts[i]++
			}
		}
		for i := range counts {
			out[i][plane] /= counts[i]
		}
		raw = raw[pw*ph:]
	}
	return out
}

// TestQualities renders a few frames in every quality, and at the sizes and
// rates whose levels differ.
func TestQualities(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	source := func(rate int) string {
		return recipe{inputs: []string{fmt.Sprintf("testsrc2=size=64x36:rate=%d", rate)}, args: x264 + "-frames:v 3", file: "s.mp4"}.make(t, tools, t.TempDir())
	}
	for _, c := range []struct {
		quality    render.Quality
		resolution render.Resolution
		rate       int
		level      int
	}{
		{render.QualityDraft, render.Resolution1080p, 60, 42},
		{render.QualityStandard, render.Resolution720p, 60, 32},
		{render.QualityStandard, render.Resolution1080p, 25, 40},
		{render.QualityHigh, render.Resolution4K, 30, 51},
		{render.QualityDraft, render.Resolution4K, 60, 52},
	} {
		t.Run(fmt.Sprintf("%s %s at %d", c.quality, c.resolution, c.rate), func(t *testing.T) {
			t.Parallel()
			j := newJob(t, tools, source(c.rate), render.Spec{Format: render.FormatMP4, Resolution: c.resolution, Quality: c.quality}, render.Policy{})
			w, h := c.resolution.Box()
			for format, file := range renderFormats(t, j) {
				wanted{format, 3, render.Rational{Num: int64(c.rate), Den: 1}, 3 / float64(c.rate), w, h, c.level, ""}.check(t, file)
			}
		})
	}
}

// TestLayouts encodes sound of any number of channels: as mono, stereo or 5.1,
// with every channel that has sound heard where it belongs.
func TestLayouts(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	for _, c := range []struct {
		name     string
		channels int
		layout   string // of the source, as ffmpeg calls it
		want     string
		silent   []int // of the 5.1: L R C LFE Ls Rs
	}{
		{"mono", 1, "mono", "mono", nil},
		{"stereo", 2, "stereo", "stereo", nil},
		{"three in front", 3, "3.0", "5.1", []int{3, 4, 5}},
		{"quad", 4, "quad", "5.1", []int{2, 3}},
		{"5.1 of a disc", 6, "5.1(side)", "5.1", nil},
		{"7.1", 8, "7.1", "5.1", nil},
		{"ten microphones", 10, "", "5.1", []int{2, 3, 4, 5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tones := make([]string, c.channels)
			for i := range tones {
				tones[i] = fmt.Sprintf("0.2*sin(%d*2*PI*t)", 60*(i+1)) // all of them low enough for a subwoofer
			}
			graph := "aevalsrc=" + strings.Join(tones, "|") + ":c=" + c.layout + ":s=48000:d=2"
			if c.layout == "" { // none has so many
				half := "aevalsrc=" + strings.Join(tones[:c.channels/2], "|") + ":c=5.0:s=48000:d=2"
				graph = half + "[a];" + half + "[b];[a][b]amerge"
			}
			path := recipe{inputs: []string{picture, graph}, args: x264 + "-c:a pcm_s16le", file: "s.mov"}.make(t, tools, t.TempDir())
			for _, format := range []render.Format{render.FormatMP4, render.FormatWebM} {
				spec := draft()
				spec.Format = format
				j := newJob(t, tools, path, spec, render.Policy{})
				m, err := EncodeAudio(t.Context(), j)
				if err != nil {
					t.Fatalf("%s: %v (log %q)", format, err, m.LogTail)
				}
				f := see(t, m.Path)
				if got := f.Streams[0]; got.Layout != c.want || math.Abs(number(t, f.Format.Duration)-2) > 0.03 {
					t.Errorf("%s: %+v of %s s", format, got, f.Format.Duration)
				}
				raw := own(t, "ffmpeg", "-v", "error", "-i", m.Path, "-f", "s16le", "-")
				n := map[string]int{"mono": 1, "stereo": 2, "5.1": 6}[c.want]
				loud := make([]int, n)
				for i := 0; i+1 < len(raw); i += 2 {
					k := i / 2 % n
					loud[k] = max(loud[k], int(int16(binary.LittleEndian.Uint16(raw[i:]))))
				}
				for k, peak := range loud {
					if silent := peak < 600; silent != slices.Contains(c.silent, k) {
						t.Errorf("%s: channel %d peaks at %d; all: %v", format, k, peak, loud)
					}
				}
			}
		})
	}
}

// TestRealFilesRefused probes media that cannot be rendered.
func TestRealFilesRefused(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	for name, reason := range map[string]string{
		"invalid_userdata.mp4":   "can be decoded",
		"chunk_out_of_range.mp4": "damaged",
		"short-cenc.mp4":         "encrypted",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := probeFile(t, tools, realFile(t, name))
			if f.Renderable || f.Code != render.CodeUnsupportedCodec || !strings.Contains(f.Reason, reason) {
				t.Errorf("got renderable %t, %s, %q; want %q", f.Renderable, f.Code, f.Reason, reason)
			}
		})
	}
}
