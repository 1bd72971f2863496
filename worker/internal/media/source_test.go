package media

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// picture and tone are what made-up sources show and play: every frame differs
// from its neighbours, and the sound is never silent.
const (
	picture = "testsrc2=size=160x120:rate=25:duration=2"
	tone    = "sine=frequency=440:sample_rate=44100:duration=2"
)

// recipe makes a source.
type recipe struct {
	name   string
	inputs []string // lavfi graphs; "@" and a name is a file of the same folder
	// options go before the input of the same position.
	options [][]string
	args    string // split at spaces
	file    string
}

const x264 = "-c:v libx264 -preset ultrafast -pix_fmt yuv420p "

// make runs the recipe into dir, with replacements (old, new) in its split
// arguments.
func (r recipe) make(t *testing.T, tools *ffmpeg.Tools, dir string, replace ...string) string {
	t.Helper()
	c := ffmpeg.Cmd{Name: "make source", Dir: dir}
	for i, in := range r.inputs {
		var o []string
		if i < len(r.options) {
			o = r.options[i]
		}
		if name, ok := strings.CutPrefix(in, "@"); ok {
			c.Inputs = append(c.Inputs, ffmpeg.Input{Path: filepath.Join(dir, name), Options: o})
			continue
		}
		c.Inputs = append(c.Inputs, ffmpeg.Input{Path: in, Formats: ffmpeg.CanvasFormats, Format: "lavfi", Options: o})
	}
	for a := range strings.FieldsSeq(r.args) {
		c.Args = append(c.Args, strings.NewReplacer(replace...).Replace(a))
	}
	c.Args = append(c.Args, "file:"+r.file)
	res, err := tools.Run(t.Context(), c)
	if err != nil {
		t.Fatalf("make %s: %v\n%s", r.file, err, strings.Join(res.Log.Lines(), "\n"))
	}
	return filepath.Join(dir, r.file)
}

// rotateMP4 writes a display matrix into an mp4's first track: viewers turn the
// picture clockwise by so many degrees.
func rotateMP4(t *testing.T, path string, degrees int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	matrix := map[int][9]int32{
		90:  {0, 1, 0, -1, 0, 0, 0, 0, 0x4000},
		180: {-1, 0, 0, 0, -1, 0, 0, 0, 0x4000},
		270: {0, -1, 0, 1, 0, 0, 0, 0, 0x4000},
	}[degrees]
	i := strings.Index(string(b), "tkhd")
	if i < 0 {
		t.Fatal("no track header")
	}
	at := i + 4 + 4 + 20 + 16 // name, version and flags, times and ids (version 0), reserved to volume
	for n, v := range matrix {
		v <<= 16 // 16.16, and 2.30 in the last column
		b[at+4*n], b[at+4*n+1], b[at+4*n+2], b[at+4*n+3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// awkward is a source that is easily rendered wrong, and what the probe must
// find.
type awkward struct {
	recipe

	rate     render.Rational
	frames   int64
	variable bool
	check    func(*render.Facts) bool
	// seeks are how many seconds before its first frame a segment's input
	// begins, negative for the source's start: one comparison with the single
	// pass for each.
	seeks []float64
}

// awkwardSources are mute where their name says so.
func awkwardSources() []awkward {
	both, video := []string{picture, tone}, []string{picture}
	whole := func(n int64) render.Rational { return render.Rational{Num: n, Den: 1} }
	seek := []float64{0.9}
	return []awkward{
		{recipe{name: "plain", inputs: both, args: x264 + "-g 12 -c:a aac", file: "plain.mp4"},
			whole(25), 50, false, func(f *render.Facts) bool { return f.AudioStream().SampleRate == 44100 && f.Kind == "video" }, nil},
		{recipe{name: "variable rate", inputs: both, args: "-vf select='lt(mod(n\\,11)\\,5)+eq(mod(n\\,11)\\,8)' -fps_mode vfr " + x264 + "-g 12 -c:a aac", file: "vfr.mp4"},
			whole(25), 49, true, nil, seek},
		// 20 frames of 60 a second, a hole, and again.
		{recipe{name: "screen recording, mute", inputs: []string{"testsrc2=size=160x120:rate=60:duration=2"}, args: "-vf select='lt(mod(n\\,40)\\,20)' -fps_mode vfr -video_track_timescale 60000 " + x264 + "-g 12", file: "screen.mp4"},
			whole(60), 100, true, func(f *render.Facts) bool { return f.AudioStream() == nil }, nil},
		{recipe{name: "long last frame, mute", inputs: []string{"testsrc2=size=160x120:rate=1/2:duration=6"}, args: x264 + "-video_track_timescale 1000", file: "slides.mp4"},
			render.Rational{Num: 1, Den: 2}, 3, false, func(f *render.Facts) bool { return f.Duration == 6*time.Second }, nil},
		{recipe{name: "late sound", inputs: both, options: [][]string{nil, {"-itsoffset", "0.73"}}, args: x264 + "-c:a aac", file: "latesound.mp4"},
			whole(25), 50, false, func(f *render.Facts) bool { return f.StartTicks == 0 && f.Start.Num == 0 }, nil},
		// The first picture waits for 0.73 s, and for the sound's priming.
		{recipe{name: "late picture", inputs: both, options: [][]string{{"-itsoffset", "0.73"}}, args: x264 + "-g 12 -c:a aac", file: "latepicture.mkv"},
			whole(25), 69, false, nil, []float64{-1, 0.9}},
		{recipe{name: "transport stream with start time and open GOPs", inputs: both, args: x264 + "-x264-params open-gop=1:keyint=12:bframes=3:b-adapt=0:scenecut=0 -c:a mp2 -output_ts_offset 1000 -f mpegts", file: "start.ts"},
			whole(25), 50, false, func(f *render.Facts) bool { return f.Start.Float() > 1000 }, seek},
		{recipe{name: "pictures between two frames of the grid", inputs: both, options: [][]string{{"-itsoffset", "0.02"}}, args: x264 + "-g 12 -c:a flac", file: "between.mkv"},
			whole(25), 51, false, nil, seek},
		{recipe{name: "odd size, mute", inputs: []string{"testsrc=size=161x121:rate=30000/1001:duration=1"}, args: "-c:v libx264 -preset ultrafast -pix_fmt yuv444p", file: "odd.mkv"},
			render.Rational{Num: 30000, Den: 1001}, 30, false, func(f *render.Facts) bool { return f.VideoStream().Width == 161 }, nil},
		{recipe{name: "non-square pixels, mute", inputs: video, args: "-vf setsar=16/11 " + x264, file: "sar.mp4"},
			whole(25), 50, false, func(f *render.Facts) bool { return f.VideoStream().PixelAspect == render.Rational{Num: 16, Den: 11} }, nil},
		{recipe{name: "full range, mute", inputs: video, args: "-vf scale=out_range=pc -c:v libx264 -preset ultrafast -pix_fmt yuvj420p -color_range pc", file: "full.mp4"},
			whole(25), 50, false, func(f *render.Facts) bool { return f.VideoStream().ColorRange == "pc" }, nil},
		{recipe{name: "ten bits, mute", inputs: video, args: "-c:v libx264 -preset ultrafast -pix_fmt yuv420p10le -g 12", file: "ten.mkv"},
			whole(25), 50, false, func(f *render.Facts) bool { return f.VideoStream().BitDepth == 10 }, nil},
		{recipe{name: "hlg, mute", inputs: []string{"testsrc2=size=160x120:rate=25:duration=1"}, args: "-c:v libx264 -preset ultrafast -pix_fmt yuv420p10le -color_primaries bt2020 -color_trc arib-std-b67 -colorspace bt2020nc -color_range tv", file: "hlg.mp4"},
			whole(25), 25, false, func(f *render.Facts) bool { return f.VideoStream().HDR == "hlg" }, nil},
		{recipe{name: "interlaced, mute", inputs: []string{"testsrc2=size=160x120:rate=50:duration=2"}, args: "-vf tinterlace=interleave_top -c:v mpeg2video -flags +ildct+ilme -top 1 -f mpegts", file: "interlaced.ts"},
			whole(25), 50, false, func(f *render.Facts) bool { return f.VideoStream().Interlaced }, seek},
		{recipe{name: "avi without presentation times, mute", inputs: video, args: "-c:v mpeg4 -bf 2 -g 12", file: "old.avi"},
			whole(25), 50, false, func(f *render.Facts) bool { return f.WholeOnly }, nil},
		{recipe{name: "surround", inputs: []string{picture, "aevalsrc=sin(440*2*PI*t)|0.1|0.1|0.1|sin(220*2*PI*t)|0.1:c=5.1(side):s=48000:d=2"}, args: x264 + "-c:a ac3", file: "surround.mkv"},
			whole(25), 50, false, func(f *render.Facts) bool { return f.AudioStream().Channels == 6 }, nil},
		{recipe{name: "one frame, mute", inputs: []string{"testsrc2=size=160x120:rate=25:duration=0.04"}, args: x264, file: "one.mp4"},
			whole(25), 1, false, nil, nil},
	}
}

// awkwardSource is one of them by its name.
func awkwardSource(t *testing.T, name string) awkward {
	t.Helper()
	for _, a := range awkwardSources() {
		if a.name == name {
			return a
		}
	}
	t.Fatalf("no source %q", name)
	return awkward{}
}
