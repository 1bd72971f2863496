package media

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/encoder"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// graph makes the filter graph of frames [from, to) of the job's plan.
func (j *Job) graph(from, to int64, seek float64) (graph, error) {
	g := graph{video: j.Facts.VideoStream(), plan: &j.Plan, from: from, to: to, seeked: seek >= 0}
	if name := g.lacks(j.Tools); name != "" {
		return graph{}, workerFault("convert the picture", fmt.Errorf("ffmpeg %s was built without the filter %s", j.Tools.Version, name))
	}
	if (j.Overlay != "") != (j.Spec.Watermark != nil) {
		return graph{}, workerFault("draw the watermark", errors.New("the job's overlay does not match its spec"))
	}
	if j.Overlay != "" {
		w, h, err := pngSize(j.Overlay)
		if err != nil {
			return graph{}, workerFault("read the drawn watermark", err)
		}
		g.overlay, g.overlayWidth, g.overlayHeight = j.Overlay, w, h
		g.position, g.opacity = j.Spec.Watermark.Position, j.Spec.Watermark.Opacity
	}
	return g, nil
}

func (j *Job) videoArgs(g graph) []string {
	return []string{
		"-map", "0:" + strconv.Itoa(g.video.Index), "-an", "-sn", "-dn",
		"-vf", g.String(),
		"-fps_mode", "passthrough",
		"-frames:v", strconv.FormatInt(g.to-g.from, 10),
		"-map_metadata", "-1", "-map_chapters", "-1",
	}
}

// timescale is the ticks per second of the output: a multiple of the rate's
// numerator, so that every frame of the grid falls on a whole tick.
func timescale(rate render.Rational) int64 {
	if rate.Num >= 10000 {
		return rate.Num
	}
	return rate.Num * 1000
}

// EncodeSegment encodes the frames of the plan's segment into an mp4, whatever
// the render's format, and proves, by decoding it, that it has them all.
func EncodeSegment(ctx context.Context, j Job, index int) (Made, error) {
	if index < 0 || index >= len(j.Plan.Segments) {
		return Made{}, jobFault("The plan has no segment %d.", index)
	}
	enc, err := j.encoding()
	if err != nil {
		return Made{}, workerFault("encode the video", err)
	}
	m, err := j.encodeBy(ctx, index, enc)
	if err != nil && enc.Device && ctx.Err() == nil {
		err = deviceFault(j.Plan.Needs(), m.LogTail, err)
	}
	return m, err
}

// encoding is how the plan's encoder is called, here.
func (j *Job) encoding() (encoder.Encoding, error) {
	p := encoder.Picture{
		Quality: j.Spec.Quality, Width: j.Plan.Width, Height: j.Plan.Height, Rate: j.Plan.FrameRate, Threads: j.Threads,
	}
	var offer encoder.Offer
	if name := j.Plan.Needs(); name != "" {
		i := slices.IndexFunc(j.Offers, func(o encoder.Offer) bool { return o.Encoder == name })
		if i < 0 {
			return encoder.Encoding{}, fmt.Errorf("%w: no device of this worker has %s", encoder.ErrUnknown, name)
		}
		if offer = j.Offers[i]; name == j.Plan.Encoder {
			return offer.Video(p)
		}
	}
	if err := encoder.Require(j.Tools, j.Plan.Encoder); err != nil {
		return encoder.Encoding{}, err
	}
	args, err := encoder.Video(j.Plan.Encoder, p)
	if err != nil || j.Plan.Decoder == "" {
		return encoder.Encoding{Args: args}, err
	}
	return offer.Decode(encoder.Encoding{Args: args}, j.Plan.Width, j.Plan.Height)
}

func (j *Job) encodeSegment(ctx context.Context, index int, enc []string) (Made, error) {
	return j.encodeBy(ctx, index, encoder.Encoding{Args: enc})
}

func (j *Job) encodeBy(ctx context.Context, index int, enc encoder.Encoding) (Made, error) {
	const what = "encode the video"
	s := j.Plan.Segments[index]
	g, err := j.graph(s.From, s.To, s.Seek)
	if err != nil {
		return Made{}, err
	}
	m := Made{Path: filepath.Join(j.Dir, fmt.Sprintf("segment-%04d.mp4", index)), Width: j.Plan.Width, Height: j.Plan.Height}
	c := j.run("segment")
	g.upload, g.scale = enc.Filters, enc.Scale
	c.Watch, c.Device = ffmpeg.WatchFrames, enc.Device
	c.Inputs = []ffmpeg.Input{{Path: j.Source, Options: append(inputOptions(g.video, s.Seek), enc.Input...)}}
	c.Args = append([]string{"-copyts"}, j.videoArgs(g)...)
	c.Args = append(c.Args, enc.Args...)
	c.Args = append(c.Args, colorArgs()...)
	c.Args = append(c.Args, "-video_track_timescale", strconv.FormatInt(timescale(j.Plan.FrameRate), 10), "-f", "mp4", "file:"+filepath.Base(m.Path))
	res, err := j.Tools.Run(ctx, c)
	m.CPU, m.LogTail = res.CPU, res.Log.Tail()
	if err != nil {
		return m, runFailed(ctx, what, res, err)
	}
	if got, want := res.Frames(), s.To-s.From; got != want {
		if enc.Device {
			return m, jobFault("%d of %d frames came out.", got, want)
		}
		return m, tooFewFrames(got, want, res)
	}
	check, err := verifyDecodes(ctx, j.Tools, j.Dir, m.Path)
	m.CPU += check.CPU
	if err != nil {
		return m, err
	}
	if got, want := check.Frames(), s.To-s.From; got != want {
		return m, jobFault("The encoded segment holds %d frames instead of %d.", got, want)
	}
	if enc.Device {
		check, err := j.checkFirst(ctx, g, s, m.Path)
		m.CPU += check.CPU
		if err != nil {
			return m, err
		}
	}
	m.Frames = s.To - s.From
	return m, nil
}

const (
	firstStats = "first.psnr"
	// firstPSNR, in decibels, is what any encoder reaches; pictures of something
	// else are below.
	firstPSNR = 15
)

// checkFirst compares a segment's first frame with the one that the processor
// makes: drivers are known that say nothing and encode something else.
func (j *Job) checkFirst(ctx context.Context, g graph, s render.Segment, path string) (ffmpeg.Result, error) {
	g.upload, g.scale, g.to = "", "", g.from+1
	want := strings.NewReplacer("[in]", fmt.Sprintf("[0:%d]", g.video.Index), "[out]", "[want]").Replace(g.String())
	c := j.run("verify")
	c.Inputs = []ffmpeg.Input{{Path: j.Source, Options: inputOptions(g.video, s.Seek)}, {Path: path}}
	c.Args = []string{"-copyts", "-filter_complex",
		want + ";[1:v:0]trim=end_frame=1,settb=1/1000,setpts=0[made];[want]settb=1/1000,setpts=0[first];[made][first]psnr=stats_file=" + firstStats,
		"-frames:v", "1", "-fps_mode", "passthrough", "-f", "null", "-"}
	c.OnProgress = nil
	res, err := j.Tools.Run(ctx, c)
	if err != nil {
		return res, runFailed(ctx, "compare the encoded video", res, err)
	}
	like, err := encoder.WorstPSNR(filepath.Join(j.Dir, firstStats))
	if err != nil {
		return res, workerFault("compare the encoded video", err)
	}
	if like < firstPSNR {
		return res, jobFault("The picture that came out is another.")
	}
	return res, nil
}

func tooFewFrames(got, want int64, res ffmpeg.Result) error {
	if exhausted(res.Log) {
		return workerFault("encode the video", fmt.Errorf("%d of %d frames", got, want))
	}
	return sourceFault("Only %d of %d frames of this part of the source could be decoded; the file is damaged or cut off.", got, want)
}

// colorArgs tag what the graph made.
func colorArgs() []string {
	return []string{"-colorspace", "bt709", "-color_primaries", "bt709", "-color_trc", "bt709", "-color_range", "tv"}
}

// verifyDecodes decodes a whole video file, taking every damage for an error
// (60 flipped bytes pass a plain decode), and counts its frames.
func verifyDecodes(ctx context.Context, t *ffmpeg.Tools, dir, path string) (ffmpeg.Result, error) {
	res, err := t.Run(ctx, ffmpeg.Cmd{
		Name: "verify", Dir: dir, Watch: ffmpeg.WatchFrames,
		Inputs: []ffmpeg.Input{{Path: path, Options: []string{"-err_detect", "explode"}}},
		Args:   []string{"-xerror", "-copyts", "-map", "0:v:0", "-fps_mode", "passthrough", "-f", "null", "-"},
	})
	if err != nil {
		return res, runFailed(ctx, "decode the encoded video", res, err)
	}
	return res, nil
}

// guessedChannels is the most channels that ffmpeg guesses a layout for.
const guessedChannels = 8

// audioGraph shifts the sound to the source's start, fills what is missing
// before and in it, so that it runs beside the frame grid, and mixes it into
// the layout. Of sound with more channels than any layout has, as of recorders
// with a microphone on each, the first two are taken.
func audioGraph(start render.Rational, channels int, layout string) string {
	shift := "0"
	if !start.IsZero() {
		shift = fmt.Sprintf("round(%d/%d/TB)", start.Num, start.Den)
	}
	pick := ""
	if channels > guessedChannels {
		pick = "pan=stereo|c0=c0|c1=c1,"
	}
	return pick + "asetpts=PTS-" + shift + ",aresample=48000:async=1:first_pts=0,aformat=channel_layouts=" + layout
}

// soundFile is how encoded sound is kept until the video is assembled.
type soundFile struct {
	name, muxer, mime string
	// formats are the demuxers that read it again; see ffmpeg.Input.
	formats string
}

// soundFileOf returns it for a codec. Opus waits in Ogg: in WebM its priming
// moves the timestamps of everything.
func soundFileOf(codec string) soundFile {
	if codec == "opus" {
		return soundFile{name: "audio.ogg", muxer: "ogg", mime: "audio/ogg", formats: ffmpeg.OggFormats}
	}
	return soundFile{name: "audio.m4a", muxer: "mp4", mime: "audio/mp4"}
}

// amrFile is AMR taken out of its container.
const amrFile = "source.amr"

// soundSource is the file that the sound is decoded from, and the options to
// map it. Phones put a second of AMR into each packet, of which ffmpeg's
// decoder hears the first frame alone: unpacked, every frame is a packet.
func (j *Job) soundSource(ctx context.Context, a *render.Stream) (in ffmpeg.Input, stream string, err error) {
	stream = "0:" + strconv.Itoa(a.Index)
	if a.Codec != "amr_nb" && a.Codec != "amr_wb" {
		return ffmpeg.Input{Path: j.Source}, stream, nil
	}
	res, err := j.Tools.Run(ctx, ffmpeg.Cmd{
		Name: "unpack sound", Dir: j.Dir, Watch: ffmpeg.WatchOutput, Inputs: []ffmpeg.Input{{Path: j.Source}},
		Args: []string{"-map", stream, "-c", "copy", "-f", "amr", "file:" + amrFile},
	})
	if err != nil {
		return in, "", runFailed(ctx, "unpack the sound", res, err)
	}
	return ffmpeg.Input{Path: filepath.Join(j.Dir, amrFile), Formats: ffmpeg.AMRFormats}, "0:0", nil
}

// EncodeAudio encodes the source's sound in one piece.
func EncodeAudio(ctx context.Context, j Job) (Made, error) {
	const what = "encode the sound"
	a := j.Facts.AudioStream()
	if a == nil {
		return Made{}, jobFault("The source has no sound to encode.")
	}
	sound, err := encoder.Audio(j.Plan.AudioCodec, j.Spec.Quality, a.Channels)
	if err == nil {
		err = encoder.Require(j.Tools, sound.Encoder)
	}
	if err != nil {
		return Made{}, workerFault(what, err)
	}
	file := soundFileOf(sound.Codec)
	start := j.Plan.Start
	m := Made{Path: filepath.Join(j.Dir, file.name), MIMEType: file.mime}
	c := j.run("audio")
	c.Watch = ffmpeg.WatchOutput
	in, stream, err := j.soundSource(ctx, a)
	if err != nil {
		return m, err
	}
	if in.Formats == ffmpeg.AMRFormats {
		start = render.Rational{} // it has no times, and begins with the source
	}
	c.Inputs = []ffmpeg.Input{in}
	c.Args = append([]string{"-copyts", "-map", stream, "-vn", "-sn", "-dn",
		"-af", audioGraph(start, a.Channels, sound.Layout), "-map_metadata", "-1", "-map_chapters", "-1"},
		sound.Args()...)
	c.Args = append(c.Args, "-f", file.muxer, "file:"+file.name)
	res, err := j.Tools.Run(ctx, c)
	m.CPU, m.LogTail = res.CPU, res.Log.Tail()
	if err != nil {
		return m, runFailed(ctx, what, res, err)
	}
	// The progress's time may stand still at zero: look at the file.
	i, err := inspect(ctx, j.Tools, j.Dir, ffmpeg.Input{Path: m.Path, Formats: file.formats})
	if err != nil {
		return m, err
	}
	if len(i.Streams) != 1 || i.Streams[0].CodecName != sound.Codec || i.duration() <= 0 {
		return m, sourceFault("The source's sound could not be decoded.")
	}
	return m, nil
}

// pngSize reads the size of a PNG that the worker made.
func pngSize(path string) (w, h int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, fmt.Errorf("open picture: %w", err)
	}
	defer f.Close()
	return decodeConfig(f)
}
