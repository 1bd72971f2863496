package ffmpeg

import "strconv"

// Bounds on what a container or a codec may ask of the process.
const (
	// MaxPixels is the largest picture that is decoded.
	MaxPixels  = 40_000_000
	maxStreams = 32
	// maxAlloc is the largest single block in bytes that libav may allocate.
	maxAlloc = 512 << 20
)

// Demuxers that an input may be opened with. Never hls, dash, concat, sdp, tty
// or image2: they read other files, reach the network, or make pictures of
// text.
const (
	// SourceFormats are the containers of sources.
	SourceFormats = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv"
	// JoinFormats are for the list that the worker itself writes to join its
	// own segments.
	JoinFormats = "concat,mov,mp4,m4a,3gp,3g2,mj2"
	// OggFormats are for Opus that the worker itself encoded.
	OggFormats = "ogg"
	// AMRFormats are for AMR that the worker itself unpacked.
	AMRFormats = "amr"
	// CanvasFormats are for pictures that ffmpeg makes up itself.
	CanvasFormats = "lavfi"
)

// Input is one input of a run.
type Input struct {
	// Path of the file; with CanvasFormats the filter graph that makes it.
	Path string
	// Formats are the demuxers that may open it, with commas. Defaults to
	// SourceFormats.
	Formats string
	// Format forces one of them, instead of a guess by content.
	Format string
	// Options go before this input, such as -ss.
	Options []string
}

func (in Input) args() []string {
	formats := in.Formats
	if formats == "" {
		formats = SourceFormats
	}
	args := []string{
		"-protocol_whitelist", "file,pipe",
		"-format_whitelist", formats,
		"-max_streams", strconv.Itoa(maxStreams),
	}
	if formats != JoinFormats && formats != CanvasFormats {
		args = append(args, "-max_pixels", strconv.Itoa(MaxPixels))
	}
	if in.Format != "" {
		args = append(args, "-f", in.Format)
	}
	args = append(args, in.Options...)
	if formats == CanvasFormats {
		return append(args, "-i", in.Path)
	}
	return append(args, "-i", "file:"+in.Path)
}

// ffmpegArgs is the whole command line of an ffmpeg run.
func ffmpegArgs(c Cmd) []string {
	args := []string{
		"-nostdin", "-hide_banner", "-y",
		"-loglevel", "repeat+level+" + c.logLevel(),
		"-max_alloc", strconv.Itoa(maxAlloc),
		"-nostats", "-progress", "pipe:1", "-stats_period", "0.5",
	}
	for _, in := range c.Inputs {
		args = append(args, in.args()...)
	}
	return append(args, c.Args...)
}

// ffprobeArgs is the whole command line of an ffprobe run: options, then the
// one input.
func ffprobeArgs(c Cmd) []string {
	args := []string{
		"-hide_banner",
		"-loglevel", "repeat+level+" + c.logLevel(),
		"-max_alloc", strconv.Itoa(maxAlloc),
	}
	args = append(args, c.Args...)
	for _, in := range c.Inputs {
		args = append(args, in.args()...)
	}
	return args
}

func (c Cmd) logLevel() string {
	if c.LogLevel == "" {
		return "warning"
	}
	return c.LogLevel
}
