package media

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	// unseeked asks for the comparison without seeking, too.
	unseeked bool
}

const x264 = "-c:v libx264 -preset ultrafast -pix_fmt yuv420p "

// make runs the recipe into dir.
func (r recipe) make(t *testing.T, tools *ffmpeg.Tools, dir string) string {
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
	c.Args = append(strings.Fields(r.args), "file:"+r.file)
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

// recipes are the awkward sources. Those without sound say so in their name.
func recipes() []recipe {
	both := []string{picture, tone}
	video := []string{picture}
	return []recipe{
		{name: "plain", inputs: both, args: x264 + "-g 12 -c:a aac", file: "plain.mp4"},
		{name: "variable rate", inputs: both, args: "-vf select='lt(mod(n\\,11)\\,5)+eq(mod(n\\,11)\\,8)' -fps_mode vfr " + x264 + "-g 12 -c:a aac", file: "vfr.mp4"},
		{name: "screen recording, mute", inputs: []string{"testsrc2=size=160x120:rate=60:duration=2"}, args: "-vf select='lt(mod(n\\,40)\\,20)' -fps_mode vfr -video_track_timescale 60000 " + x264 + "-g 12", file: "screen.mp4"},
		{name: "long last frame, mute", inputs: []string{"testsrc2=size=160x120:rate=1/2:duration=6"}, args: x264 + "-video_track_timescale 1000", file: "slides.mp4"},
		{name: "late sound", inputs: both, options: [][]string{nil, {"-itsoffset", "0.73"}}, args: x264 + "-c:a aac", file: "latesound.mp4"},
		{name: "late picture", inputs: both, options: [][]string{{"-itsoffset", "0.73"}}, args: x264 + "-g 12 -c:a aac", file: "latepicture.mkv", unseeked: true},
		{name: "transport stream with start time and open GOPs", inputs: both, args: x264 + "-x264-params open-gop=1:keyint=12:bframes=3:b-adapt=0:scenecut=0 -c:a mp2 -output_ts_offset 1000 -f mpegts", file: "start.ts"},
		{name: "pictures between two frames of the grid", inputs: both, options: [][]string{{"-itsoffset", "0.02"}}, args: x264 + "-g 12 -c:a flac", file: "between.mkv"},
		{name: "odd size, mute", inputs: []string{"testsrc2=size=161x121:rate=30000/1001:duration=1"}, args: "-c:v libx264 -preset ultrafast -pix_fmt yuv444p", file: "odd.mkv"},
		{name: "non-square pixels, mute", inputs: video, args: "-vf setsar=16/11 " + x264, file: "sar.mp4"},
		{name: "full range, mute", inputs: video, args: "-vf scale=out_range=pc -c:v libx264 -preset ultrafast -pix_fmt yuvj420p -color_range pc", file: "full.mp4"},
		{name: "ten bits, mute", inputs: video, args: "-c:v libx264 -preset ultrafast -pix_fmt yuv420p10le -g 12", file: "ten.mkv"},
		{name: "hlg, mute", inputs: []string{"testsrc2=size=160x120:rate=25:duration=1"}, args: "-c:v libx264 -preset ultrafast -pix_fmt yuv420p10le -color_primaries bt2020 -color_trc arib-std-b67 -colorspace bt2020nc -color_range tv", file: "hlg.mp4"},
		{name: "interlaced, mute", inputs: []string{"testsrc2=size=160x120:rate=50:duration=2"}, args: "-vf tinterlace=interleave_top -c:v mpeg2video -flags +ildct+ilme -top 1 -f mpegts", file: "interlaced.ts"},
		{name: "avi without presentation times, mute", inputs: video, args: "-c:v mpeg4 -bf 2 -g 12", file: "old.avi"},
		{name: "surround", inputs: []string{picture, "aevalsrc=sin(440*2*PI*t)|0.1|0.1|0.1|sin(220*2*PI*t)|0.1:c=5.1(side):s=48000:d=2"}, args: x264 + "-c:a ac3", file: "surround.mkv"},
		{name: "one frame, mute", inputs: []string{"testsrc2=size=160x120:rate=25:duration=0.04"}, args: x264, file: "one.mp4"},
	}
}
