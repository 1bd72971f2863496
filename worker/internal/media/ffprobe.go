package media

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// info is what is read of ffprobe's JSON. Numbers that ffprobe writes as
// strings stay strings.
type info struct {
	Streams []infoStream `json:"streams"`
	Format  infoFormat   `json:"format"`
	Frames  []infoFrame  `json:"frames"`
}

type infoFormat struct {
	FormatName string `json:"format_name"`
	StartTime  string `json:"start_time"`
	Duration   string `json:"duration"`
}

type infoStream struct {
	Index            int            `json:"index"`
	CodecName        string         `json:"codec_name"`
	CodecType        string         `json:"codec_type"`
	Width            int            `json:"width"`
	Height           int            `json:"height"`
	SampleAspect     string         `json:"sample_aspect_ratio"`
	PixFmt           string         `json:"pix_fmt"`
	BitsPerRawSample string         `json:"bits_per_raw_sample"`
	ColorRange       string         `json:"color_range"`
	ColorSpace       string         `json:"color_space"`
	ColorTransfer    string         `json:"color_transfer"`
	ColorPrimaries   string         `json:"color_primaries"`
	FieldOrder       string         `json:"field_order"`
	RFrameRate       string         `json:"r_frame_rate"`
	TimeBase         string         `json:"time_base"`
	StartPTS         *int64         `json:"start_pts"`
	Duration         string         `json:"duration"`
	SampleRate       string         `json:"sample_rate"`
	Channels         int            `json:"channels"`
	Disposition      map[string]int `json:"disposition"`
	SideData         []infoSideData `json:"side_data_list"`
}

type infoSideData struct {
	Type     string  `json:"side_data_type"`
	Rotation float64 `json:"rotation"`
}

type infoFrame struct {
	StreamIndex    int            `json:"stream_index"`
	Width          int            `json:"width"`
	Height         int            `json:"height"`
	PixFmt         string         `json:"pix_fmt"`
	Interlaced     int            `json:"interlaced_frame"`
	ColorRange     string         `json:"color_range"`
	ColorSpace     string         `json:"color_space"`
	ColorTransfer  string         `json:"color_transfer"`
	ColorPrimaries string         `json:"color_primaries"`
	SideData       []infoSideData `json:"side_data_list"`
}

// duration is the container's, 0 when unknown.
func (i *info) duration() time.Duration { return parseSeconds(i.Format.Duration) }

func parseSeconds(s string) time.Duration {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(math.Abs(f) < math.MaxInt64/1e9) {
		return 0
	}
	return time.Duration(math.Round(f * 1e9))
}

// parseRational reads "30000/1001" or "16:9"; the zero value for anything that
// is no positive ratio.
func parseRational(s string) render.Rational {
	i := strings.IndexAny(s, "/:")
	if i < 0 {
		return render.Rational{}
	}
	num, err1 := strconv.ParseInt(s[:i], 10, 32)
	den, err2 := strconv.ParseInt(s[i+1:], 10, 32)
	if err1 != nil || err2 != nil || num <= 0 || den <= 0 {
		return render.Rational{}
	}
	return render.Rational{Num: num, Den: den}
}

// maxInfo bounds ffprobe's JSON in bytes.
const maxInfo = 4 << 20

var errTooMuch = errors.New("more output than expected")

// limitedBuffer refuses what exceeds its limit.
type limitedBuffer struct {
	bytes.Buffer
	limit int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.limit {
		return 0, errTooMuch
	}
	n, err := b.Buffer.Write(p)
	if err != nil {
		return n, fmt.Errorf("keep output: %w", err)
	}
	return n, nil
}

// query asks ffprobe for JSON. Its errors are not classified.
func query(ctx context.Context, t *ffmpeg.Tools, dir string, in ffmpeg.Input, args ...string) (*info, ffmpeg.Result, error) {
	out := &limitedBuffer{limit: maxInfo}
	res, err := t.Probe(ctx, ffmpeg.Cmd{
		Name: "probe", Dir: dir, Inputs: []ffmpeg.Input{in}, LogLevel: "error", Stdout: out,
		Args: append(args, "-of", "json"),
	})
	if err != nil {
		return nil, res, fmt.Errorf("ask ffprobe: %w", err)
	}
	i, err := parseInfo(out.Bytes())
	return i, res, err
}

func parseInfo(b []byte) (*info, error) {
	var i info
	if err := json.Unmarshal(b, &i); err != nil {
		return nil, fmt.Errorf("parse ffprobe's answer: %w", err)
	}
	return &i, nil
}

// inspect reads format and streams of a file that the worker made.
func inspect(ctx context.Context, t *ffmpeg.Tools, dir string, in ffmpeg.Input) (*info, error) {
	i, res, err := query(ctx, t, dir, in, "-show_format", "-show_streams")
	if err != nil {
		return nil, runFailed(ctx, "read its own output", res, err)
	}
	return i, nil
}

// HDR names of render.Stream.
const (
	hdr10  = "hdr10"
	hdrHLG = "hlg"
)

// stream makes the domain's view of a stream.
func (s *infoStream) stream() render.Stream {
	r := render.Stream{
		Index:           s.Index,
		Kind:            or(s.CodecType, "data"),
		Codec:           s.CodecName,
		TimeBase:        parseRational(s.TimeBase),
		Default:         s.Disposition["default"] == 1,
		AttachedPicture: s.Disposition["attached_pic"] == 1,
		Channels:        s.Channels,
	}
	r.SampleRate, _ = strconv.Atoi(s.SampleRate) // 0 is unknown
	if s.CodecType != "video" {
		return r
	}
	r.Width, r.Height = s.Width, s.Height
	r.PixelAspect = parseRational(s.SampleAspect)
	r.FrameRate = parseRational(s.RFrameRate)
	r.Rotation = rotation(s.SideData)
	r.PixelFormat = s.PixFmt
	r.BitDepth = bitDepth(s.PixFmt, s.BitsPerRawSample)
	r.ColorRange = known(s.ColorRange)
	r.ColorSpace, r.ColorTransfer, r.ColorPrimaries = known(s.ColorSpace), known(s.ColorTransfer), known(s.ColorPrimaries)
	r.HDR = hdrOf(r.ColorTransfer)
	switch s.FieldOrder {
	case "tt", "bb", "tb", "bt":
		r.Interlaced = true
	}
	return r
}

// refine adds what a decoded frame tells and the container did not.
func (f *infoFrame) refine(r *render.Stream) {
	if r.Width == 0 || r.Height == 0 {
		r.Width, r.Height = f.Width, f.Height
	}
	r.Interlaced = r.Interlaced || f.Interlaced == 1
	r.PixelFormat = or(r.PixelFormat, f.PixFmt)
	if r.BitDepth == 0 {
		r.BitDepth = bitDepth(r.PixelFormat, "")
	}
	r.ColorRange = or(r.ColorRange, known(f.ColorRange))
	r.ColorSpace = or(r.ColorSpace, known(f.ColorSpace))
	r.ColorTransfer = or(r.ColorTransfer, known(f.ColorTransfer))
	r.ColorPrimaries = or(r.ColorPrimaries, known(f.ColorPrimaries))
	r.HDR = hdrOf(r.ColorTransfer)
}

func known(tag string) string {
	switch tag {
	case "unknown", "unspecified", "reserved":
		return ""
	}
	return tag
}

func hdrOf(transfer string) string {
	switch transfer {
	case "smpte2084":
		return hdr10
	case "arib-std-b67":
		return hdrHLG
	}
	return ""
}

// rotation reads the display matrix: ffprobe tells counter-clockwise degrees,
// a viewer turns clockwise. Other angles than quarter turns count as the
// nearest.
func rotation(side []infoSideData) int {
	for _, d := range side {
		matrix := d.Type == "Display Matrix" || d.Type == "3x3 displaymatrix" // of a stream, of a frame
		if matrix && !math.IsNaN(d.Rotation) && math.Abs(d.Rotation) < 1e6 {
			quarters := int(math.Round(-d.Rotation / 90))
			return ((quarters%4 + 4) % 4) * 90
		}
	}
	return 0
}

var depthSuffix = regexp.MustCompile(`(?:p|gray|gbrp|gbrap|y|p0|p2|p4)(9|10|12|14|16)(?:le|be)$`)

// bitDepth of one component; 0 when unknown.
func bitDepth(pixFmt, raw string) int {
	if n, err := strconv.Atoi(raw); err == nil && n > 0 {
		return n
	}
	switch {
	case pixFmt == "" || pixFmt == "unknown":
		return 0
	case strings.HasPrefix(pixFmt, "rgb48"), strings.HasPrefix(pixFmt, "bgr48"), strings.HasPrefix(pixFmt, "rgba64"), strings.HasPrefix(pixFmt, "bgra64"):
		return 16
	}
	if m := depthSuffix.FindStringSubmatch(pixFmt); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			return n
		}
	}
	return 8
}
