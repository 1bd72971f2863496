package media

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// graph is everything that a video filter graph depends on.
type graph struct {
	video *render.Stream
	plan  *render.Plan
	// from and to bound the frames of the grid, to exclusive.
	from, to int64
	// seeked tells that the input does not begin at the source's start.
	seeked bool
	// overlay is the watermark picture's path, "" without one; its size in
	// pixels, position and opacity.
	overlay       string
	overlayWidth  int
	overlayHeight int
	position      render.Position
	opacity       float64
	// scale are the filters that begin the graph where a device decodes: they
	// bring its frames, in the plan's size, into memory. "" for none.
	scale string
	// upload are the filters that end the graph for a hardware encoder, "" for
	// none.
	upload string
	// rgb ends the graph in full-range RGB, for a PNG that looks as the video
	// will.
	rgb bool
}

// String builds the filter graph, for -vf. The order matters:
//
//   - The first scale has nothing to do as long as the source keeps its size;
//     when a source changes it in mid-stream, this evens it out in place,
//     where ffmpeg would otherwise build the whole graph anew and lose the
//     grid (see inputOptions).
//   - setpts comes before bwdif, which halves the time base, so that the start
//     is in the stream's own ticks.
//   - fps with start_time repeats the first picture back to the grid's start,
//     where the video begins after the sound. tpad repeats the last one, where
//     the index promises a little more than the decoder gives; only a little,
//     so that a broken source is found out by its frame count.
//   - trim cuts the grid's own frame numbers, so that every segment sees the
//     same grid.
func (g graph) String() string {
	w, h := g.video.Width, g.video.Height
	if g.video.Rotation%180 != 0 {
		w, h = h, w
	}
	chain := []string{
		or(g.scale, fmt.Sprintf("scale=w=%d:h=%d", w, h)),
		fmt.Sprintf("setpts=PTS-(%d)", g.plan.StartTicks),
	}
	if g.video.Interlaced {
		chain = append(chain, "bwdif=mode=send_frame:parity=auto:deint=interlaced")
	}
	rate := g.plan.FrameRate
	fps := fmt.Sprintf("fps=fps=%d/%d", rate.Num, rate.Den)
	if !g.seeked {
		fps += ":start_time=0"
	}
	chain = append(chain, fps,
		fmt.Sprintf("tpad=stop_mode=clone:stop=%d", max(2, int(math.Ceil(rate.Float())))),
		fmt.Sprintf("trim=start_pts=%d:end_pts=%d", g.from, g.to),
		fmt.Sprintf("setpts=PTS-%d", g.from),
	)
	chain = append(chain, g.picture()...)
	chain = append(chain, "format=yuv420p", "setsar=1",
		"setparams=range=tv:color_primaries=bt709:color_trc=bt709:colorspace=bt709")
	var tail []string
	if g.rgb {
		tail = []string{"scale=in_color_matrix=bt709:in_range=tv:out_range=pc:flags=bicubic+accurate_rnd+full_chroma_int", "format=rgb24"}
	}
	if g.upload != "" {
		tail = append(tail, g.upload)
	}
	if g.overlay == "" {
		return "[in]" + strings.Join(append(chain, tail...), ",") + "[out]"
	}

	mark := []string{"movie=filename=" + escapeOption(g.overlay) + ":format_name=png_pipe", "format=rgba"}
	if g.opacity < 1 {
		mark = append(mark, "colorchannelmixer=aa="+strconv.FormatFloat(g.opacity, 'f', -1, 64))
	}
	mark = append(mark, "scale=out_color_matrix=bt709:out_range=tv", "format=yuva420p")
	x, y := placeOverlay(g.position, g.plan.Width, g.plan.Height, g.overlayWidth, g.overlayHeight)
	tail = append([]string{fmt.Sprintf("overlay=x=%d:y=%d:format=yuv420:eof_action=repeat", x, y)}, tail...)
	return strings.Join(mark, ",") + "[mark];" +
		"[in]" + strings.Join(chain, ",") + "[base];" +
		"[base][mark]" + strings.Join(tail, ",") + "[out]"
}

// picture scales to the plan's size and converts the colours to BT.709 in
// limited range.
func (g graph) picture() []string {
	v := g.video
	scale := fmt.Sprintf("scale=w=%d:h=%d:flags=bicubic+accurate_rnd", g.plan.Width, g.plan.Height)
	if !wideGamut(v) {
		if m := swsMatrix(v); m != "" {
			scale += ":in_color_matrix=" + m
		}
		return []string{scale + ":out_color_matrix=bt709:out_range=tv"}
	}
	in := "zscale=matrixin=" + or(zimgMatrix(v.ColorSpace), "2020_ncl") +
		":primariesin=2020:rangein=" + zimgRange(v)
	if v.HDR == "" {
		return []string{scale, "format=yuv420p10le", in + ":transferin=709:matrix=709:primaries=709:transfer=709:range=limited"}
	}
	transfer := "smpte2084"
	if v.HDR == hdrHLG {
		transfer = "arib-std-b67"
	}
	return []string{
		scale, "format=yuv420p10le",
		in + ":transferin=" + transfer + ":transfer=linear:npl=100", "format=gbrpf32le",
		"zscale=primaries=709", "tonemap=tonemap=hable:desat=0",
		"zscale=transfer=709:matrix=709:range=limited",
	}
}

// wideGamut reports colours that the scale filter alone would get wrong.
func wideGamut(v *render.Stream) bool { return v.HDR != "" || v.ColorPrimaries == "bt2020" }

// lacks names a filter that the graph needs and this ffmpeg was built without,
// "" if it has them all. Another filter in its place would give another
// picture than other workers do.
func (g graph) lacks(t *ffmpeg.Tools) string {
	var need []string
	if wideGamut(g.video) {
		need = append(need, "zscale", "tonemap")
	}
	if g.video.Interlaced {
		need = append(need, "bwdif")
	}
	for _, name := range need {
		if !t.HasFilter(name) {
			return name
		}
	}
	return ""
}

// CUDADecodes reports whether a device's decoder serves for the stream: what its
// filters make of others is not what the graph makes of them.
func CUDADecodes(v *render.Stream) bool {
	return slices.Contains([]string{"h264", "hevc", "vp9", "av1"}, v.Codec) && v.PixelFormat == "yuv420p" &&
		!wideGamut(v) && !v.Interlaced && v.Rotation == 0
}

// hdTall is where untagged pictures are taken for BT.709 rather than BT.601,
// as players do.
const hdTall = 720

// swsMatrix names the source's matrix for the scale filter; "" lets it read
// the frame's own tag.
func swsMatrix(v *render.Stream) string {
	switch v.ColorSpace {
	case "bt709":
		return "bt709"
	case "smpte170m", "bt470bg":
		return "bt601"
	case "fcc", "smpte240m":
		return v.ColorSpace
	case "bt2020nc", "bt2020c":
		return "bt2020"
	case "":
		if min(v.Width, v.Height) >= hdTall || max(v.Width, v.Height) >= hdTall*16/9 {
			return "bt709"
		}
		return "bt601"
	default:
		return ""
	}
}

// zimgMatrix names a matrix for zscale, "" for one that it does not know.
func zimgMatrix(space string) string {
	switch space {
	case "bt2020nc":
		return "2020_ncl"
	case "bt2020c":
		return "2020_cl"
	case "bt709":
		return "709"
	case "smpte170m":
		return "170m"
	case "bt470bg":
		return "470bg"
	default:
		return ""
	}
}

func zimgRange(v *render.Stream) string {
	if v.ColorRange == "pc" {
		return "full"
	}
	return "limited"
}

// The watermark's margin and its sides are parts of the picture's height.
const marginPart = 0.03

// margin is the distance in pixels between a watermark and the picture's edge.
func margin(height int) int { return 2 * int(math.Round(float64(height)*marginPart/2)) }

// placeOverlay computes where the upper left corner of a w×h watermark goes.
// Both coordinates are even, which is where 4:2:0 has its colour samples, and
// not negative.
func placeOverlay(p render.Position, width, height, w, h int) (x, y int) {
	m := margin(height)
	left, right, top, bottom := m, width-w-m, m, height-h-m
	switch p {
	case render.PositionTopLeft:
		x, y = left, top
	case render.PositionTopRight:
		x, y = right, top
	case render.PositionBottomLeft:
		x, y = left, bottom
	case render.PositionCenter:
		x, y = (width-w)/2, (height-h)/2
	default:
		x, y = right, bottom
	}
	// What does not fit with its margins loses them.
	x, y = min(x, width-w), min(y, height-h)
	return max(0, x) &^ 1, max(0, y) &^ 1
}

// escapeOption quotes a value for a filter's option, inside a graph: see
// "Notes on filtergraph escaping" in ffmpeg-filters(1), first and second level.
func escapeOption(s string) string {
	s = strings.NewReplacer(`\`, `\\`, `'`, `\'`, `:`, `\:`).Replace(s)
	return strings.NewReplacer(`\`, `\\`, `'`, `\'`, `[`, `\[`, `]`, `\]`, `,`, `\,`, `;`, `\;`).Replace(s)
}

func or(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

// inputOptions are the options of the source that the graph relies on:
// timestamps as they are in the file, and, for sources that ffmpeg need not
// turn by itself, a graph that stays when the picture's size changes in
// mid-stream.
func inputOptions(v *render.Stream, seek float64) []string {
	var o []string
	if seek >= 0 {
		o = append(o, "-seek_timestamp", "1", "-ss", strconv.FormatFloat(seek, 'f', 6, 64), "-noaccurate_seek")
	}
	if v.Rotation == 0 {
		o = append(o, "-reinit_filter", "0")
	}
	return o
}
