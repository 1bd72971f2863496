package media

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
)

func TestGraph(t *testing.T) {
	t.Parallel()
	plan := render.Plan{Width: 960, Height: 720, FrameRate: render.Rational{Num: 30000, Den: 1001}, StartTicks: -20}
	const (
		tags    = "format=yuv420p,setsar=1,setparams=range=tv:color_primaries=bt709:color_trc=bt709:colorspace=bt709"
		toFrame = "scale=w=960:h=720:flags=bicubic+accurate_rnd"
	)
	for _, c := range []struct {
		name string
		g    graph
		want string
	}{
		{
			"plain",
			graph{video: &render.Stream{Width: 320, Height: 240}, to: 90},
			"[in]scale=w=320:h=240,setpts=PTS-(-20),fps=fps=30000/1001:start_time=0,tpad=stop_mode=clone:stop=30,trim=start_pts=0:end_pts=90,setpts=PTS-0," +
				toFrame + ":in_color_matrix=bt601:out_color_matrix=bt709:out_range=tv," + tags + "[out]",
		},
		{
			"seeked, interlaced, turned, tagged",
			graph{video: &render.Stream{Width: 320, Height: 240, Rotation: 270, Interlaced: true, ColorSpace: "bt709"}, from: 90, to: 180, seeked: true},
			"[in]scale=w=240:h=320,setpts=PTS-(-20),bwdif=mode=send_frame:parity=auto:deint=interlaced,fps=fps=30000/1001,tpad=stop_mode=clone:stop=30,trim=start_pts=90:end_pts=180,setpts=PTS-90," +
				toFrame + ":in_color_matrix=bt709:out_color_matrix=bt709:out_range=tv," + tags + "[out]",
		},
		{
			"hdr, tone-mapped",
			graph{video: &render.Stream{Width: 320, Height: 240, HDR: hdr10, ColorSpace: "bt2020nc", ColorPrimaries: "bt2020"}, to: 1},
			"[in]scale=w=320:h=240,setpts=PTS-(-20),fps=fps=30000/1001:start_time=0,tpad=stop_mode=clone:stop=30,trim=start_pts=0:end_pts=1,setpts=PTS-0," +
				toFrame + ",format=yuv420p10le,zscale=matrixin=2020_ncl:primariesin=2020:rangein=limited:transferin=smpte2084:transfer=linear:npl=100,format=gbrpf32le," +
				"zscale=primaries=709,tonemap=tonemap=hable:desat=0,zscale=transfer=709:matrix=709:range=limited," + tags + "[out]",
		},
		{
			"watermark, preview",
			graph{video: &render.Stream{Width: 1920, Height: 1080}, from: 7, to: 8, overlay: "/a:b/it's.png", overlayWidth: 100, overlayHeight: 40, position: render.PositionTopLeft, opacity: 0.25, rgb: true},
			`movie=filename=/a\\:b/it\\\'s.png:format_name=png_pipe,format=rgba,colorchannelmixer=aa=0.25,scale=out_color_matrix=bt709:out_range=tv,format=yuva420p[mark];` +
				"[in]scale=w=1920:h=1080,setpts=PTS-(-20),fps=fps=30000/1001:start_time=0,tpad=stop_mode=clone:stop=30,trim=start_pts=7:end_pts=8,setpts=PTS-7," +
				toFrame + ":in_color_matrix=bt709:out_color_matrix=bt709:out_range=tv," + tags + "[base];" +
				"[base][mark]overlay=x=22:y=22:format=yuv420:eof_action=repeat,scale=in_color_matrix=bt709:in_range=tv:out_range=pc:flags=bicubic+accurate_rnd+full_chroma_int,format=rgb24[out]",
		},
	} {
		c.g.plan = &plan
		if got := c.g.String(); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

// TestOverlayPath draws a watermark from a folder whose name needs escaping.
func TestOverlayPath(t *testing.T) {
	t.Parallel()
	tools, dir := tools(t), t.TempDir()
	path := recipe{inputs: []string{"testsrc2=size=64x48:rate=25:duration=0.04"}, args: x264, file: "s.mp4"}.make(t, tools, dir)
	j := small(newJob(t, tools, path, draft(), render.Policy{}), 4)
	j.Dir = mkdir(t, dir, `it's a:b,[c];\d`)
	j.Spec.Watermark = textMark("x")
	var err error
	if j.Overlay, err = DrawOverlay(t.Context(), tools, j.Dir, j.Spec.Watermark, "", j.Plan.Width, j.Plan.Height); err != nil {
		t.Fatal(err)
	}
	if m, err := Preview(t.Context(), j); err != nil {
		t.Errorf("%v\n%s", err, strings.Join(m.LogTail, "\n"))
	}
}

func TestPlaceOverlay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		position render.Position
		w, h     int
		want     string
	}{
		{render.PositionTopLeft, 101, 51, "22 22"},
		{render.PositionTopRight, 101, 51, "1156 22"},
		{render.PositionBottomLeft, 101, 51, "22 646"},
		{render.PositionBottomRight, 101, 51, "1156 646"},
		{render.PositionCenter, 101, 51, "588 334"},
		{"", 101, 51, "1156 646"},
		{render.PositionTopLeft, 1280, 720, "0 0"},
		{render.PositionBottomRight, 1280, 720, "0 0"},
		{render.PositionTopLeft, 1270, 10, "10 22"},
		{render.PositionCenter, 9999, 9999, "0 0"},
	} {
		x, y := placeOverlay(c.position, 1280, 720, c.w, c.h)
		if got := fmt.Sprintf("%d %d", x, y); got != c.want {
			t.Errorf("%q %d×%d: got %s, want %s", c.position, c.w, c.h, got, c.want)
		}
	}
}

// TestSizes is the table of sizes that clients are promised.
func TestSizes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		w, h     int
		aspect   render.Rational
		rotation int
		want     string
	}{
		{320, 240, render.Rational{}, 0, "960×720"},
		{640, 480, render.Rational{Num: 16, Den: 9}, 0, "1280×540"},
		{1080, 1920, render.Rational{}, 0, "720×1280"},
		{1920, 1080, render.Rational{}, 90, "720×1280"},
		{176, 144, render.Rational{Num: 12, Den: 11}, 0, "960×720"},
	} {
		w, h := render.OutputSize(&render.Stream{Width: c.w, Height: c.h, PixelAspect: c.aspect, Rotation: c.rotation}, render.Resolution720p)
		if got := fmt.Sprintf("%d×%d", w, h); got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
	}
}

func TestAudioGraph(t *testing.T) {
	t.Parallel()
	const rest = ",aresample=48000:async=1:first_pts=0,aformat=channel_layouts=5.1"
	for start, want := range map[render.Rational]string{
		{}:                        "asetpts=PTS-0" + rest,
		{Num: 0, Den: 25}:         "asetpts=PTS-0" + rest,
		{Num: 126000, Den: 90000}: "asetpts=PTS-round(126000/90000/TB)" + rest,
		{Num: -1024, Den: 44100}:  "asetpts=PTS-round(-1024/44100/TB)" + rest,
	} {
		if got := audioGraph(start, 6, "5.1"); got != want {
			t.Errorf("%v: got %s", start, got)
		}
	}
	if got := audioGraph(render.Rational{}, 9, "5.1"); got != "pan=stereo|c0=c0|c1=c1,asetpts=PTS-0"+rest {
		t.Errorf("nine channels: got %s", got)
	}
}

func TestJoinList(t *testing.T) {
	t.Parallel()
	p := render.Plan{FrameRate: render.Rational{Num: 30000, Den: 1001}, Segments: []render.Segment{{From: 0, To: 100}, {From: 100, To: 201}}}
	const want = "ffconcat version 1.0\nfile a.mp4\nduration 3.336667\nfile b.mp4\nduration 3.370033\n"
	if got := joinList([]string{"a.mp4", "b.mp4"}, &p); got != want {
		t.Errorf("got %q", got)
	}
	for name, want := range map[string]bool{"segment-0001.mp4": true, "": false, "a b": false, "a'b": false, "a/b": false, "é": false} {
		if plainName(name) != want {
			t.Errorf("plainName(%q) = %t", name, !want)
		}
	}
}
