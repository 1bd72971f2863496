package media

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

const (
	joinFile = "join.ffconcat"
	// assembleStall leaves time to move the index of a large file to its
	// front, of which ffmpeg tells no progress.
	assembleStall = 15 * time.Minute
)

// micros is the time of the n-th frame of the grid in whole microseconds.
// Differences of rounded times do not drift, sums of rounded differences would.
func micros(n int64, rate render.Rational) int64 {
	t := new(big.Int).Mul(big.NewInt(n), big.NewInt(rate.Den))
	t.Mul(t, big.NewInt(2_000_000)).Add(t, big.NewInt(rate.Num))
	return t.Div(t, big.NewInt(2*rate.Num)).Int64()
}

// joinList is the list for ffmpeg's concat demuxer: each segment with the
// exact time that its frames take.
func joinList(names []string, p *render.Plan) string {
	var b strings.Builder
	b.WriteString("ffconcat version 1.0\n")
	for i, name := range names {
		d := micros(p.Segments[i].To, p.FrameRate) - micros(p.Segments[i].From, p.FrameRate)
		fmt.Fprintf(&b, "file %s\nduration %d.%06d\n", name, d/1_000_000, d%1_000_000)
	}
	return b.String()
}

// Assemble joins the plan's segments, in order, and the sound ("" for none)
// without encoding anything again, and checks the result against the plan and
// the segments. All files are in the job's directory.
func Assemble(ctx context.Context, j Job, segments []string, audio string) (Made, render.Output, error) {
	const what = "join the segments"
	var out render.Output
	if len(segments) != len(j.Plan.Segments) || (audio != "") != j.Plan.HasAudio {
		return Made{}, out, jobFault("The segments do not match the plan.")
	}
	names := make([]string, len(segments))
	for i, s := range segments {
		names[i] = filepath.Base(s)
		if filepath.Join(j.Dir, names[i]) != filepath.Clean(s) || !plainName(names[i]) {
			return Made{}, out, workerFault(what, fmt.Errorf("segment %q is not a plain file of the job's directory", s))
		}
	}
	if j.Plan.VideoCodec == "h264" && len(segments) > 1 {
		same, err := sameHeaders(segments)
		if err != nil {
			return Made{}, out, workerFault(what, err)
		}
		if !same {
			return Made{}, out, jobFault("The segments were made by encoders of different versions or devices, and do not fit together.")
		}
	}
	if err := os.WriteFile(filepath.Join(j.Dir, joinFile), []byte(joinList(names, &j.Plan)), 0o600); err != nil {
		return Made{}, out, workerFault(what, err)
	}
	finalFile := "final." + string(j.Spec.Format)
	m := Made{Path: filepath.Join(j.Dir, finalFile), Frames: j.Plan.Frames, Width: j.Plan.Width, Height: j.Plan.Height}
	c := j.run("assemble")
	c.Watch, c.Stall = ffmpeg.WatchOutput, assembleStall
	// The segments share their headers: without a conversion to Annex B and
	// back, their frames come out byte for byte.
	join := ffmpeg.Input{Path: joinFile, Formats: ffmpeg.JoinFormats, Format: "concat", Options: []string{"-auto_convert", "0"}}
	c.Inputs = []ffmpeg.Input{join}
	c.Args = []string{"-map", "0:v:0"}
	if audio != "" {
		in, err := soundInput(audio, j.Plan.AudioCodec)
		if err != nil {
			return m, out, workerFault(what, err)
		}
		c.Inputs = append(c.Inputs, in)
		c.Args = append(c.Args, "-map", "1:a:0")
	}
	c.Args = append(c.Args, "-c", "copy", "-map_metadata", "-1", "-map_chapters", "-1")
	c.Args = append(c.Args, muxerArgs(j.Spec.Format, j.Plan.FrameRate)...)
	c.Args = append(c.Args, "file:"+finalFile)
	res, err := j.Tools.Run(ctx, c)
	m.CPU, m.LogTail = res.CPU, res.Log.Tail()
	if err != nil {
		return m, out, runFailed(ctx, what, res, err)
	}
	out, err = verifyFinal(ctx, &j, m.Path, join)
	return m, out, err
}

// muxerArgs write a container so that it plays while it still loads: the index
// is in front of the frames.
func muxerArgs(f render.Format, rate render.Rational) []string {
	if f == render.FormatWebM {
		return []string{"-cues_to_front", "1", "-f", "webm"}
	}
	return []string{"-movflags", "+faststart", "-video_track_timescale", strconv.FormatInt(timescale(rate), 10), "-f", string(f)}
}

// soundInput opens encoded sound to be joined with the picture. The packets of
// Opus begin before zero, by the samples that a decoder drops; WebM says that
// number apart from the timestamps, which must begin at zero then: otherwise
// ffmpeg moves sound and picture until none is negative, and apart from each
// other.
func soundInput(path, codec string) (ffmpeg.Input, error) {
	in := ffmpeg.Input{Path: path, Formats: soundFileOf(codec).formats}
	if codec != "opus" {
		return in, nil
	}
	skip, err := opusPreSkip(path)
	if err != nil {
		return in, err
	}
	in.Options = []string{"-itsoffset", strconv.FormatFloat(float64(skip)/opusRate, 'f', 6, 64)}
	return in, nil
}

// plainName reports whether a name needs no quoting in a join list.
func plainName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		digit, letter := '0' <= r && r <= '9', 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		return !digit && !letter && !strings.ContainsRune("-_.", r)
	})
}

// mismatch is a result that is not what the plan says.
func mismatch(format string, args ...any) error {
	return jobFault("The finished video failed its check: "+format+".", args...)
}

// verifyFinal checks the finished file: its streams and tags, the index before
// the data, every frame's timestamp, and that every coded frame is the
// segments'.
func verifyFinal(ctx context.Context, j *Job, path string, join ffmpeg.Input) (render.Output, error) {
	var out render.Output
	i, err := inspect(ctx, j.Tools, j.Dir, ffmpeg.Input{Path: path})
	if err != nil {
		return out, err
	}
	if err := checkStreams(i, &j.Plan); err != nil {
		return out, err
	}
	fast, err := startsFast(path, j.Spec.Format)
	if err != nil {
		return out, workerFault("read its own output", err)
	}
	if !fast {
		return out, mismatch("the index is not at the start")
	}

	if err := checkSoundStart(i, &j.Plan); err != nil {
		return out, err
	}

	final, err := readPackets(ctx, j, ffmpeg.Input{Path: path})
	if err != nil {
		return out, err
	}
	if err := final.onGrid(&j.Plan, parseRational(i.Streams[0].TimeBase)); err != nil {
		return out, err
	}
	parts, err := readPackets(ctx, j, join)
	if err != nil {
		return out, err
	}
	if !slices.Equal(final.hashes, parts.hashes) {
		return out, mismatch("its frames are not those of the segments")
	}

	frames := time.Duration(micros(j.Plan.Frames, j.Plan.FrameRate)) * time.Microsecond
	frame := time.Duration(micros(1, j.Plan.FrameRate)) * time.Microsecond
	if d := i.duration(); d < frames-frame || j.Plan.AudioCodec == "" && d > frames+frame {
		return out, mismatch("it lasts %s instead of %s", d, frames)
	}
	return render.Output{
		Duration:         i.duration(),
		Width:            j.Plan.Width,
		Height:           j.Plan.Height,
		Frames:           j.Plan.Frames,
		VideoCodec:       j.Plan.VideoCodec,
		AudioCodec:       j.Plan.AudioCodec,
		WatermarkApplied: j.Spec.Watermark != nil,
		Encoder:          j.Plan.Encoder,
		SegmentsTotal:    len(j.Plan.Segments),
	}, nil
}

// checkStreams compares the streams of a finished file with the plan: what a
// browser plays, in the plan's size, with square pixels, upright, tagged as it
// was made.
func checkStreams(i *info, p *render.Plan) error {
	want := 1
	if p.HasAudio {
		want = 2
	}
	if len(i.Streams) != want {
		return mismatch("it has %d streams instead of %d", len(i.Streams), want)
	}
	v := i.Streams[0].stream()
	switch {
	case v.Codec != p.VideoCodec:
		return mismatch("the video is %s instead of %s", v.Codec, p.VideoCodec)
	case v.Width != p.Width || v.Height != p.Height:
		return mismatch("the picture is %d×%d instead of %d×%d", v.Width, v.Height, p.Width, p.Height)
	case v.PixelFormat != "yuv420p" || v.Rotation != 0 || !v.PixelAspect.IsZero() && v.PixelAspect.Num != v.PixelAspect.Den:
		return mismatch("the picture is %s, turned by %d, with pixels of %d:%d", v.PixelFormat, v.Rotation, v.PixelAspect.Num, v.PixelAspect.Den)
	case v.ColorSpace != "bt709" || v.ColorTransfer != "bt709" || v.ColorPrimaries != "bt709" || v.ColorRange != "tv":
		return mismatch("the colours are tagged %s, %s, %s, %s", v.ColorSpace, v.ColorTransfer, v.ColorPrimaries, v.ColorRange)
	case p.HasAudio && i.Streams[1].CodecName != p.AudioCodec:
		return mismatch("the sound is %s instead of %s", i.Streams[1].CodecName, p.AudioCodec)
	}
	return nil
}

// maxPriming is how long before its first frame sound may begin: what an Opus
// decoder drops shows as a start before zero.
const maxPriming = 10 * time.Millisecond

// checkSoundStart checks that the sound begins with the picture.
func checkSoundStart(i *info, p *render.Plan) error {
	if !p.HasAudio {
		return nil
	}
	s := i.Streams[1]
	if s.StartPTS == nil {
		return mismatch("its sound has no start")
	}
	start := time.Duration(float64(*s.StartPTS) * parseRational(s.TimeBase).Float() * float64(time.Second))
	if start > time.Millisecond || start < -maxPriming {
		return mismatch("its sound begins at %s", start)
	}
	return nil
}

// packets are the timestamps and hashes of a video's packets, in file order.
type packets struct {
	pts    []int64
	hashes [][8]byte
	line   []byte
}

// maxHashLine bounds a line of ffprobe's output about one packet.
const maxHashLine = 4096

// Write takes ffprobe's CSV of pts and data hash.
func (p *packets) Write(b []byte) (int, error) {
	p.line = append(p.line, b...)
	for {
		n := bytes.IndexByte(p.line, '\n')
		if n < 0 {
			break
		}
		if err := p.parse(string(p.line[:n])); err != nil {
			return 0, err
		}
		p.line = p.line[n+1:]
	}
	if len(p.line) > maxHashLine {
		return 0, errTooMuch
	}
	return len(b), nil
}

func (p *packets) parse(line string) error {
	pts, rest, ok := strings.Cut(line, ",")
	if !ok {
		return nil
	}
	hash, _, _ := strings.Cut(rest, ",")
	n, err := strconv.ParseInt(pts, 10, 64)
	if err != nil {
		return fmt.Errorf("parse a packet's time: %w", err)
	}
	sum := sha256.Sum256([]byte(hash))
	p.pts = append(p.pts, n)
	p.hashes = append(p.hashes, [8]byte(sum[:8]))
	return nil
}

func readPackets(ctx context.Context, j *Job, in ffmpeg.Input) (*packets, error) {
	p := &packets{}
	res, err := j.Tools.Probe(ctx, ffmpeg.Cmd{
		Name: "verify", Dir: j.Dir, Inputs: []ffmpeg.Input{in}, LogLevel: "error", Stdout: p,
		Args: []string{"-select_streams", "v:0", "-show_data_hash", "md5", "-show_entries", "packet=pts,data_hash", "-of", "csv=p=0"},
	})
	if err != nil {
		return nil, runFailed(ctx, "read its own output", res, err)
	}
	return p, nil
}

// onGrid checks that the packets are the plan's frames, each at its own time.
func (p *packets) onGrid(plan *render.Plan, timeBase render.Rational) error {
	if int64(len(p.pts)) != plan.Frames {
		return mismatch("it has %d frames instead of %d", len(p.pts), plan.Frames)
	}
	if timeBase.IsZero() {
		return errors.New("verify: no time base")
	}
	sorted := slices.Sorted(slices.Values(p.pts))
	// Times are exact where the plan's are whole microseconds; joining may
	// round others by one.
	unit := timeBase.Float()
	for n, pts := range sorted {
		want := float64(n) / plan.FrameRate.Float()
		if d := float64(pts)*unit - want; d > 2e-6+unit/2 || d < -2e-6-unit/2 {
			return mismatch("frame %d is at %.6f s instead of %.6f s", n, float64(pts)*unit, want)
		}
	}
	return nil
}
