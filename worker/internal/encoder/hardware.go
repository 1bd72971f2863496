package encoder

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// hardware is a row of the table of hardware encoders, and of what decodes for
// software. Arguments may hold {device}, {maxrate}, {bufsize}, {bitrate},
// {level}, {width} and {height}, which are filled in.
type hardware struct {
	// name is ffmpeg's of the encoder.
	name string
	kind Kind
	// init goes before everything else: it opens the device.
	init []string
	// upload ends the filter graph, where the encoder does not take yuv420p as
	// it is: another pixel format, and the copy into the device's memory.
	upload string
	// args are what every quality has in common.
	args []string
	// quality is what a render's quality means to it.
	quality map[render.Quality][]string
	// others are arguments for models that do not know the plain way, in the
	// order in which they are tried.
	others [][]string
	// Of a row that decodes: input are options of the source, scale the filters
	// that bring its frames into the output's size and then into memory.
	input []string
	scale string
}

// listed reports whether ffmpeg was built with it.
func (h hardware) listed(t *ffmpeg.Tools) bool {
	if h.scale != "" {
		filter, _, _ := strings.Cut(h.scale, "=")
		return t.HasFilter(filter)
	}
	return t.HasEncoder(h.name)
}

// The table. It was written from ffmpeg's documentation and sources of versions
// 5.1 to 8; none of it was measured on hardware.
//
// What all have in common: no B-frames, so that frames come out as they went in
// and every group of pictures stands alone, whatever the model; constant quality
// where the encoder has one, one step better than the number that the software
// encoder gets, since hardware spends more bits on the same picture; a bit rate
// by the number of pixels where it has none. That headers go into the extradata
// rather than before each key frame ffmpeg asks for itself, because the mp4
// muxer wants it so.
func table() []hardware {
	return []hardware{
		{
			name: "h264_nvenc", kind: KindNVIDIA, // copies frames into the device's memory itself
			args: []string{"-gpu", "{device}", "-profile:v", "high", "-level:v", "{level}", "-tune", "hq", "-rc", "vbr",
				"-b:v", "0", "-maxrate:v", "{maxrate}", "-bufsize:v", "{bufsize}", "-spatial-aq", "1", "-bf:v", "0"},
			quality: map[render.Quality][]string{
				render.QualityDraft:    {"-preset", "p2", "-cq", "28"},
				render.QualityStandard: {"-preset", "p4", "-cq", "25"},
				render.QualityHigh:     {"-preset", "p6", "-cq", "22"},
			},
		},
		{
			name: "h264_qsv", kind: KindDRI, init: []string{"-init_hw_device", "qsv=dev:hw,child_device={device}", "-filter_hw_device", "dev"},
			upload: "format=nv12,hwupload=extra_hw_frames=64",
			// With -q:v the quantizer is constant, the one mode that every model has.
			args: []string{"-profile:v", "high", "-i_qfactor", "1", "-i_qoffset", "0", "-flags:v", "+cgop", "-bf:v", "0"},
			quality: map[render.Quality][]string{
				render.QualityDraft:    {"-preset", "veryfast", "-q:v", "27"},
				render.QualityStandard: {"-preset", "medium", "-q:v", "24"},
				render.QualityHigh:     {"-preset", "slower", "-q:v", "21"},
			},
		},
		{
			name: "h264_vaapi", kind: KindDRI, init: []string{"-init_hw_device", "vaapi=dev:{device}", "-filter_hw_device", "dev"},
			upload: "format=nv12,hwupload",
			args:   []string{"-profile:v", "high", "-rc_mode", "CQP", "-bf:v", "0"},
			quality: map[render.Quality][]string{
				render.QualityDraft:    {"-qp", "27"},
				render.QualityStandard: {"-qp", "24"},
				render.QualityHigh:     {"-qp", "21"},
			},
			others: [][]string{{"-low_power", "1"}},
		},
		{
			name: "vp9_qsv", kind: KindDRI, init: []string{"-init_hw_device", "qsv=dev:hw,child_device={device}", "-filter_hw_device", "dev"},
			upload: "format=nv12,hwupload=extra_hw_frames=64",
			// Its quantizers would go to 255, of which old versions reach 51:
			// hence the constant quality of -global_quality, 1 to 51.
			args: []string{"-profile:v", "profile0", "-bf:v", "0"},
			quality: map[render.Quality][]string{
				render.QualityDraft:    {"-preset", "veryfast", "-global_quality:v", "30"},
				render.QualityStandard: {"-preset", "medium", "-global_quality:v", "26"},
				render.QualityHigh:     {"-preset", "slower", "-global_quality:v", "22"},
			},
		},
		{
			name: "vp9_vaapi", kind: KindDRI, init: []string{"-init_hw_device", "vaapi=dev:{device}", "-filter_hw_device", "dev"},
			upload: "format=nv12,hwupload",
			// The index of VP9's quantizer, 0 to 255: about four times libvpx's crf.
			args: []string{"-rc_mode", "CQP", "-bf:v", "0"},
			quality: map[render.Quality][]string{
				render.QualityDraft:    {"-global_quality:v", "140"},
				render.QualityStandard: {"-global_quality:v", "112"},
				render.QualityHigh:     {"-global_quality:v", "96"},
			},
			others: [][]string{{"-low_power", "1"}},
		},
		{
			name: "h264_videotoolbox", kind: KindVideoToolbox, upload: "format=nv12",
			// Constant quality needs an Apple processor. allow_sw would let it
			// encode in software under the same name.
			args: []string{"-allow_sw", "0", "-profile:v", "high", "-level:v", "{level}", "-b:v", "{bitrate}", "-bf:v", "0"},
		},
		{
			name: "h264_v4l2m2m", kind: KindV4L2,
			args: []string{"-b:v", "{bitrate}", "-bf:v", "0"},
		},
		{
			// For cards that have no encoder.
			name: render.DecoderCUDA, kind: KindCUDA,
			input: []string{"-hwaccel", "cuda", "-hwaccel_device", "{device}", "-hwaccel_output_format", "cuda"},
			scale: "scale_cuda=w={width}:h={height}:interp_algo=bicubic:format=yuv420p,hwdownload,format=yuv420p",
		},
	}
}

// Offer is an encoder of a device, with which it was tried.
type Offer struct {
	// Encoder is ffmpeg's name, such as h264_vaapi, or render.DecoderCUDA.
	Encoder string
	Device  Device
	// Extra are arguments that the device's model needs.
	Extra []string
}

// Encoding is how ffmpeg is told to encode: Args for one output, and the filters
// that end its graph, "" for none. Device tells that it opens a device.
type Encoding struct {
	Args    []string
	Filters string
	Device  bool
	// Input are options of the source, and Scale filters that begin the graph,
	// with frames of the output's size, where a device decodes.
	Input []string
	Scale string
}

// Decode adds to an encoding in software that the device decodes and scales.
func (o Offer) Decode(e Encoding, width, height int) (Encoding, error) {
	for _, h := range table() {
		if h.name == o.Encoder && h.scale != "" {
			fill := strings.NewReplacer("{device}", o.Device.Name, "{width}", strconv.Itoa(width), "{height}", strconv.Itoa(height))
			for _, a := range h.input {
				e.Input = append(e.Input, fill.Replace(a))
			}
			e.Scale, e.Device = fill.Replace(h.scale), true
			return e, nil
		}
	}
	return e, fmt.Errorf("%w: %q does not decode", ErrUnknown, o.Encoder)
}

// Video returns how the device encodes one segment.
func (o Offer) Video(p Picture) (Encoding, error) {
	for _, h := range table() {
		if h.name != o.Encoder || h.scale != "" {
			continue
		}
		l := levelOf(p.Width, p.Height, p.Rate)
		fill := strings.NewReplacer("{device}", o.Device.Name, "{level}", l.name, "{maxrate}", kbps(l.highKbps()),
			"{bufsize}", kbps(l.highBufferKbits()), "{bitrate}", kbps(bitrate(p)))
		var args []string
		add := func(more []string) {
			for _, a := range more {
				args = append(args, fill.Replace(a))
			}
		}
		add(h.init)
		args = append(args, "-c:v", h.name)
		add(h.args)
		add(h.quality[p.Quality])
		args = append(args, o.Extra...)
		args = append(args, "-g", strconv.Itoa(keyframes(p.Rate)))
		return Encoding{Args: args, Filters: h.upload, Device: true}, nil
	}
	return Encoding{}, fmt.Errorf("%w %q", ErrUnknown, o.Encoder)
}

// bitrate is what encoders without a constant quality get, in units of 1000
// bits a second: 6 Mbit/s for standard quality at 1080p and 30 frames a second.
func bitrate(p Picture) int {
	bitsPerPixel := map[render.Quality]float64{render.QualityDraft: 0.06, render.QualityHigh: 0.16}[p.Quality]
	if bitsPerPixel == 0 {
		bitsPerPixel = 0.1
	}
	return max(300, int(bitsPerPixel*float64(p.Width)*float64(p.Height)*p.Rate.Float()/1000))
}
