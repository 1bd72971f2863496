package render

import "time"

// Rational is an exact ratio such as a frame rate in frames per second or a
// time base in seconds per tick. The zero value means unknown.
type Rational struct{ Num, Den int64 }

// Float returns the ratio, 0 when unknown.
func (r Rational) Float() float64 {
	if r.Den == 0 {
		return 0
	}
	return float64(r.Num) / float64(r.Den)
}

// IsZero reports whether the ratio is unknown.
func (r Rational) IsZero() bool { return r.Num == 0 || r.Den == 0 }

// Stream is what a probe knows of one stream of an asset.
type Stream struct {
	Index    int    // in the container
	Kind     string // video, audio, subtitle, data, attachment
	Codec    string // ffmpeg's codec name
	TimeBase Rational
	// Default is the container's default flag; the first default (else the
	// first) video and audio streams are rendered.
	Default bool
	// AttachedPicture marks a cover image, which is not rendered as video.
	AttachedPicture bool

	Width, Height     int // coded size before rotation and pixel aspect
	PixelAspect       Rational
	FrameRate         Rational // nominal
	VariableFrameRate bool
	Rotation          int // degrees clockwise: 0, 90, 180, 270
	PixelFormat       string
	BitDepth          int
	HDR               string // "", "hdr10", "hlg"
	ColorRange        string // "", "tv", "pc"
	ColorSpace        string
	ColorTransfer     string
	ColorPrimaries    string
	Interlaced        bool

	Channels   int
	SampleRate int
}

// Facts is what one full look at an asset found. It is made once, when the
// upload is finalised, and everything later is planned from it.
type Facts struct {
	// Kind is "video", "image" (a watermark picture) or "other".
	Kind      string
	Container string // ffmpeg's demuxer name, or png, jpeg, webp
	Duration  time.Duration
	Streams   []Stream
	// Renderable reports whether the asset can be the source of a render;
	// Reason says why not, as a sentence for the client, and Code its error.
	Renderable bool
	Reason     string
	Code       Code

	// Video and Audio are positions in Streams, -1 where there is none.
	Video, Audio int
	// GridRate is the constant frame rate of the output, GridFrames the
	// number of its frames, StartTicks the source's start in ticks of the
	// video stream's time base: together the frame grid that every segment
	// is cut from.
	GridRate   Rational
	GridFrames int64
	StartTicks int64
	// Start is the source's start time in seconds as an exact ratio, for the
	// audio, whose ticks are samples.
	Start Rational
	// WholeOnly marks a source that must be encoded in one piece (no
	// presentation timestamps).
	WholeOnly bool

	// Width and Height of an image asset, after its own rotation.
	Width, Height int
}

// VideoStream returns the stream that is rendered, or nil.
func (f *Facts) VideoStream() *Stream {
	if f == nil || f.Video < 0 || f.Video >= len(f.Streams) {
		return nil
	}
	return &f.Streams[f.Video]
}

// AudioStream returns the audio stream that is rendered, or nil.
func (f *Facts) AudioStream() *Stream {
	if f == nil || f.Audio < 0 || f.Audio >= len(f.Streams) {
		return nil
	}
	return &f.Streams[f.Audio]
}

// OutputSize fits a picture into the resolution's box: the shown picture
// (rotation and pixel aspect applied) touches the box, is never cropped, keeps
// its aspect, has even sides and square pixels. Portrait pictures get the
// portrait box.
func OutputSize(v *Stream, r Resolution) (width, height int) {
	w, h := float64(v.Width), float64(v.Height)
	if !v.PixelAspect.IsZero() {
		w *= v.PixelAspect.Float()
	}
	if v.Rotation%180 != 0 {
		w, h = h, w
	}
	bw, bh := r.Box()
	if h > w {
		bw, bh = bh, bw
	}
	if w <= 0 || h <= 0 {
		return bw, bh
	}
	if w*float64(bh) >= h*float64(bw) { // touches left and right
		return bw, even(h * float64(bw) / w)
	}
	return even(w * float64(bh) / h), bh
}

// even rounds to the nearest even integer of at least 2.
func even(x float64) int {
	return max(2, 2*int(x/2+0.5))
}

// Object pins one immutable object in the blob store.
type Object struct {
	Key    string
	ETag   string // as the store gave it; every read carries If-Match
	Size   int64  // bytes
	SHA256 string // hex
}

// AssetState is where an upload is.
type AssetState string

// Asset states.
const (
	AssetPending AssetState = "pending" // presigned, not finalised
	AssetProbing AssetState = "probing" // stored, probe under way
	AssetReady   AssetState = "ready"   // probed: Facts is set
)

// Asset is an uploaded file.
type Asset struct {
	ID       AssetID
	Tenant   Tenant
	Name     string // as uploaded; shown, never used as a path
	MIMEType string
	State    AssetState
	Object   Object
	Created  time.Time
	Expires  time.Time
	Facts    *Facts // set when State is AssetReady
}
