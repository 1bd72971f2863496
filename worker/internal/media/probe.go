package media

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// MaxDuration is the longest source that is rendered. Two frames far apart are
// a small file and an endless render.
const MaxDuration = 6 * time.Hour

// lookTimeout bounds each look that does not read the whole file.
const lookTimeout = time.Minute

// Kinds of render.Facts.
const (
	kindVideo = "video"
	kindImage = "image"
	kindOther = "other"
)

// unfit is why a file cannot be the source of a render.
type unfit struct {
	code   render.Code
	reason string
}

func (u *unfit) Error() string { return u.reason }

func unsupported(format string, args ...any) *unfit {
	return &unfit{code: render.CodeUnsupportedCodec, reason: fmt.Sprintf(format, args...)}
}

func tooLarge(format string, args ...any) *unfit {
	return &unfit{code: render.CodeSourceTooLarge, reason: fmt.Sprintf(format, args...)}
}

var (
	errNoIndex    = unsupported("The file is cut off: its index is missing. Upload it again, whole.")
	errUnreadable = unsupported("The file is damaged, or not a video in a container that the farm reads (mp4, mov, 3gp, mkv, webm, avi, ts, mpg, flv).")
)

// Probe looks at an uploaded file: container and streams, every packet's
// timestamp, and a few frames really decoded. dir is the job's directory. A
// file that cannot be rendered is no error: Renderable is false, and Code and
// Reason say why. An error means that the probe itself could not be done.
func Probe(ctx context.Context, t *ffmpeg.Tools, dir, path string) (*render.Facts, error) {
	f := &render.Facts{Kind: kindOther, Video: -1, Audio: -1}
	err := probe(ctx, t, dir, path, f)
	var u *unfit
	switch {
	case errors.As(err, &u):
		f.Renderable, f.Code, f.Reason = false, u.code, u.reason
	case err != nil:
		return nil, err
	default:
		f.Renderable = true
	}
	return f, nil
}

func probe(ctx context.Context, t *ffmpeg.Tools, dir, path string, f *render.Facts) error {
	head, size, err := readHead(path)
	if err != nil {
		return workerFault("read the source", err)
	}
	if size == 0 {
		return unsupported("The file is empty.")
	}
	if kind := pictureKind(head); kind != "" {
		return probePicture(ctx, t, dir, path, kind, f)
	}
	secret, err := isEncrypted(path)
	if err != nil {
		return workerFault("read the source", err)
	}

	i, err := look(ctx, t, dir, ffmpeg.Input{Path: path}, "-show_format", "-show_streams", "-show_frames",
		"-show_entries", frameEntries, "-read_intervals", "%+#32")
	if errors.Is(err, errNoIndex) && !looksISO(head) {
		err = errUnreadable // text named .mp4 has no index either
	}
	if err != nil {
		return err
	}
	f.Container = i.Format.FormatName
	f.Duration = max(0, i.duration())
	for n := range i.Streams {
		f.Streams = append(f.Streams, i.Streams[n].stream())
		for _, d := range i.Streams[n].SideData {
			secret = secret || strings.HasPrefix(d.Type, "Encryption")
		}
	}
	if secret {
		return unsupported("The file is encrypted (DRM, Common Encryption); upload it without encryption.")
	}
	if err := chooseVideo(f); err != nil {
		return err
	}
	if err := decodeSome(ctx, t, dir, path, i, f); err != nil {
		return err
	}
	return indexPackets(ctx, t, dir, path, i, f)
}

// look asks ffprobe about a source and tells the source's faults from ours.
func look(ctx context.Context, t *ffmpeg.Tools, dir string, in ffmpeg.Input, args ...string) (*info, error) {
	own, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	i, res, err := query(own, t, dir, in, args...)
	if err != nil {
		return nil, lookFailed(ctx, own, res, err)
	}
	return i, nil
}

// lookFailed classifies a failed look. outer is the caller's context, own the
// one with the look's own limit.
func lookFailed(outer, own context.Context, res ffmpeg.Result, err error) error {
	var exit *ffmpeg.ExitError
	switch {
	case outer.Err() != nil:
		return fmt.Errorf("look at the source: %w", err)
	case own.Err() != nil:
		return unsupported("The file could not be read in reasonable time; it is damaged.")
	case errors.Is(err, errTooMuch):
		return unsupported("The file claims more streams and side data than the farm reads.")
	case !errors.As(err, &exit), exit.Signal == syscall.SIGKILL, exit.Signal == syscall.SIGTERM:
		return workerFault("look at the source", err)
	}
	text := strings.Join(res.Log.Lines(), "\n")
	switch {
	case strings.Contains(text, "not on whitelist") || strings.Contains(text, "not on format whitelist"):
		return unsupported("The file is not in a container that the farm reads (mp4, mov, 3gp, mkv, webm, avi, ts, mpg, flv).")
	case strings.Contains(text, "Picture size"): // -max_pixels
		return tooLarge("The picture is too large; the farm takes up to %d million pixels.", ffmpeg.MaxPixels/1_000_000)
	case strings.Contains(text, "moov atom not found"):
		return errNoIndex
	default:
		return errUnreadable
	}
}

// looksISO reports whether a file begins as an mp4, mov or 3gp does.
func looksISO(head []byte) bool {
	if len(head) < 8 {
		return false
	}
	switch string(head[4:8]) {
	case "ftyp", "moov", "mdat", "free", "skip", "wide", "pnot", "styp":
		return true
	}
	return false
}

// chooseVideo picks the video stream: the first default one, else the first.
func chooseVideo(f *render.Facts) error {
	sound := false
	for n, s := range f.Streams {
		sound = sound || s.Kind == "audio"
		if s.Kind == kindVideo && !s.AttachedPicture && (f.Video < 0 || s.Default && !f.Streams[f.Video].Default) {
			f.Video = n
		}
	}
	switch v := f.VideoStream(); {
	case v == nil && sound:
		return unsupported("The file has sound but no picture.")
	case v == nil:
		return unsupported("The file has no video stream.")
	case v.Codec == "" || v.Codec == "unknown":
		return unsupported("The farm has no decoder for the file's video codec.")
	case int64(v.Width)*int64(v.Height) > ffmpeg.MaxPixels:
		return tooLarge("The picture is %d×%d pixels; the farm takes up to %d million pixels.", v.Width, v.Height, ffmpeg.MaxPixels/1_000_000)
	}
	return nil
}

// frameEntries are what is asked of decoded frames.
const frameEntries = "frame=stream_index,width,height,pix_fmt,interlaced_frame,color_range,color_space,color_transfer,color_primaries"

// sampleFrames returns decoded frames of a stream: those of the first look, or
// of a longer one if it had none (a recording that begins between two
// keyframes, a stream that begins late).
func sampleFrames(ctx context.Context, t *ffmpeg.Tools, dir, path string, i *info, index int) ([]infoFrame, error) {
	of := func(i *info) (frames []infoFrame) {
		for _, f := range i.Frames {
			if f.StreamIndex == index {
				frames = append(frames, f)
			}
		}
		return frames
	}
	if frames := of(i); len(frames) > 0 {
		return frames, nil
	}
	i, err := look(ctx, t, dir, ffmpeg.Input{Path: path},
		"-select_streams", strconv.Itoa(index), "-read_intervals", "%+#400", "-show_frames", "-show_entries", frameEntries)
	if err != nil {
		return nil, err
	}
	return of(i), nil
}

// decodeSome proves that picture and sound can be decoded: the video must, and
// of the audio streams the first default one that can is taken.
func decodeSome(ctx context.Context, t *ffmpeg.Tools, dir, path string, i *info, f *render.Facts) error {
	v := f.VideoStream()
	frames, err := sampleFrames(ctx, t, dir, path, i, v.Index)
	if err != nil {
		return err
	}
	if len(frames) == 0 {
		return unsupported("No frame of the %s video can be decoded; the file is damaged, cut off, or in a codec that the farm lacks.", v.Codec)
	}
	frames[0].refine(v)
	for n := range frames {
		v.Interlaced = v.Interlaced || frames[n].Interlaced == 1
	}
	if v.Width <= 0 || v.Height <= 0 {
		return unsupported("The video does not say how large its picture is.")
	}

	var defaults, others []int
	for n, s := range f.Streams {
		if s.Kind != "audio" || s.Codec == "" || s.Codec == "unknown" {
			continue
		}
		if s.Default {
			defaults = append(defaults, n)
		} else {
			others = append(others, n)
		}
	}
	for _, n := range append(defaults, others...) {
		frames, err := sampleFrames(ctx, t, dir, path, i, f.Streams[n].Index)
		var u *unfit
		if err != nil && !errors.As(err, &u) {
			return err
		}
		if len(frames) > 0 {
			f.Audio = n
			return nil
		}
	}
	return nil
}

// indexPackets reads every packet's timestamp and computes the frame grid.
func indexPackets(ctx context.Context, t *ffmpeg.Tools, dir, path string, i *info, f *render.Facts) error {
	v, a := f.VideoStream(), f.AudioStream()
	var video, audio packetIndex
	p := &packetParser{streams: map[int]*packetIndex{v.Index: &video}}
	if a != nil {
		p.streams[a.Index] = &audio
	}
	res, err := t.Probe(ctx, ffmpeg.Cmd{
		Name: "index", Dir: dir, Inputs: []ffmpeg.Input{{Path: path}}, LogLevel: "error", Stdout: p,
		Args: []string{"-show_entries", "packet=stream_index,pts,dts,duration,flags", "-of", "csv=p=0"},
	})
	if err != nil {
		return lookFailed(ctx, ctx, res, err)
	}
	video.close()
	if v.TimeBase.IsZero() || v.TimeBase.Num > maxTicksNum || video.count == 0 {
		return unsupported("The video has no timestamps.")
	}

	f.Start = exact(video.first, v.TimeBase)
	if a != nil && audio.count > 0 && !a.TimeBase.IsZero() && a.TimeBase.Num <= maxTicksNum {
		// A stream's own start leaves out what the decoder drops.
		start := audio.first
		if s := i.Streams[f.Audio].StartPTS; s != nil && *s >= start && *s < maxTick {
			start = *s
		}
		if s := exact(start, a.TimeBase); s.Float() < f.Start.Float() {
			f.Start = s
		}
	}
	f.WholeOnly = video.missing
	f.GridRate, v.VariableFrameRate = pickRate(&video, v.TimeBase, v.FrameRate)
	v.FrameRate = f.GridRate
	f.StartTicks, f.GridFrames = frameGrid(&video, v.TimeBase, f.GridRate, f.Start)

	seconds := float64(f.GridFrames) / f.GridRate.Float()
	if a != nil && audio.count > 0 {
		seconds = max(seconds, float64(audio.end)*a.TimeBase.Float()-f.Start.Float())
	}
	if seconds > MaxDuration.Seconds() {
		return tooLarge("The video lasts %.1f hours; the farm takes up to %.0f.", seconds/3600, MaxDuration.Hours())
	}
	f.Duration = time.Duration(math.Round(seconds*1e6)) * time.Microsecond
	f.Kind = kindVideo
	return nil
}

// maxTicksNum keeps ticks times time base within an int64.
const maxTicksNum = 1 << 10

// exact is a number of ticks in seconds.
func exact(n int64, timeBase render.Rational) render.Rational {
	return render.Rational{Num: n * timeBase.Num, Den: timeBase.Den}
}

// readHead reads a file's first bytes and its size.
func readHead(path string) ([]byte, int64, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	head := make([]byte, 32)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, fmt.Errorf("read file: %w", err)
	}
	return head[:n], size, nil
}
