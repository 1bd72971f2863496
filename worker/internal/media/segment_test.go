package media

import (
	"bufio"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// lossless is an encoder whose output decodes to what it was given.
func lossless() []string {
	return []string{"-c:v", "libx264", "-preset", "ultrafast", "-qp", "0", "-g", "25", "-x264-params", "open-gop=0"}
}

// small makes a job cheap: the plan's picture shrinks to a fraction.
func small(j Job, part int) Job {
	j.Plan.Width, j.Plan.Height = j.Plan.Width/part&^1, j.Plan.Height/part&^1
	return j
}

// frameHashes decodes a file and returns the MD5 of each frame, or of each
// block of sound.
func frameHashes(t *testing.T, tools *ffmpeg.Tools, path, stream string, filters ...string) []string {
	t.Helper()
	dir := t.TempDir()
	args := []string{"-copyts", "-map", "0:" + stream, "-fps_mode", "passthrough"}
	args = append(args, filters...)
	res, err := tools.Run(t.Context(), ffmpeg.Cmd{
		Name: "hash", Dir: dir, Inputs: []ffmpeg.Input{{Path: path}},
		Args: append(args, "-f", "framehash", "-hash", "md5", "file:hashes"),
	})
	if err != nil {
		t.Fatalf("hash %s: %v\n%s", path, err, strings.Join(res.Log.Lines(), "\n"))
	}
	f, err := os.Open(filepath.Join(dir, "hashes"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var hashes []string
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Split(s.Text(), ","); !strings.HasPrefix(s.Text(), "#") && len(fields) > 1 {
			hashes = append(hashes, strings.TrimSpace(fields[len(fields)-1]))
		}
	}
	return hashes
}

// encodeAll encodes every segment losslessly, and the sound.
func encodeAll(t *testing.T, j Job) (segments []string, audio string) {
	t.Helper()
	for i := range j.Plan.Segments {
		m, err := j.encodeSegment(t.Context(), i, lossless())
		if err != nil {
			t.Fatalf("segment %d %+v: %v\n%s", i, j.Plan.Segments[i], err, strings.Join(m.LogTail, "\n"))
		}
		segments = append(segments, m.Path)
	}
	if j.Plan.HasAudio {
		m, err := EncodeAudio(t.Context(), j)
		if err != nil {
			t.Fatalf("sound: %v\n%s", err, strings.Join(m.LogTail, "\n"))
		}
		audio = m.Path
	}
	return segments, audio
}

// TestAwkwardSources probes sources and renders them in one piece, losslessly;
// some of them again in three, and expects the same frames at the same times.
func TestAwkwardSources(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	for _, a := range awkwardSources() {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			path := a.make(t, tools, t.TempDir())
			one := small(newJob(t, tools, path, draft(), render.Policy{}), 4)
			if f := one.Facts; f.GridRate != a.rate || f.GridFrames != a.frames || f.VideoStream().VariableFrameRate != a.variable || a.check != nil && !a.check(f) {
				t.Errorf("facts %+v", f)
			}
			segments, audio := encodeAll(t, one)
			made := segments[0]
			if audio != "" {
				m, _, err := Assemble(t.Context(), one, segments, audio)
				if err != nil {
					t.Fatalf("assemble in one piece: %v", err)
				}
				made = m.Path
			}
			want := frameHashes(t, tools, made, "v:0")
			if int64(len(want)) != one.Plan.Frames {
				t.Fatalf("%d frames, planned were %d", len(want), one.Plan.Frames)
			}
			for _, seek := range a.seeks {
				three := one
				three.Dir = t.TempDir()
				three.Plan.Segments = nil
				n := three.Plan.Frames
				for i := range int64(3) {
					s := render.Segment{From: n * i / 3, To: n * (i + 1) / 3, Seek: -1}
					if at := float64(s.From)/three.Plan.FrameRate.Float() - seek; seek >= 0 && at > 0 {
						s.Seek = float64(three.Plan.StartTicks)*three.Facts.VideoStream().TimeBase.Float() + at
					}
					three.Plan.Segments = append(three.Plan.Segments, s)
				}
				segments, _ := encodeAll(t, three)
				m, _, err := Assemble(t.Context(), three, segments, audioIn(t, three.Dir, audio))
				if err != nil {
					t.Fatalf("assemble three pieces: %v", err)
				}
				if got := frameHashes(t, tools, m.Path, "v:0"); !slices.Equal(got, want) {
					for i := range min(len(got), len(want)) {
						if got[i] != want[i] {
							t.Fatalf("seek %v: frame %d of %d differs from the one pass", seek, i, len(want))
						}
					}
					t.Fatalf("seek %v: %d frames, one pass has %d", seek, len(got), len(want))
				}
			}
		})
	}
}

// audioIn copies the sound into another job's directory.
func audioIn(t *testing.T, dir, audio string) string {
	t.Helper()
	if audio == "" {
		return ""
	}
	b, err := os.ReadFile(audio)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, filepath.Base(audio))
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestMicros(t *testing.T) {
	t.Parallel()
	for _, rate := range []render.Rational{{Num: 30000, Den: 1001}, {Num: 25, Den: 1}, {Num: 24000, Den: 1001}, {Num: 7, Den: 3}} {
		for _, n := range []int64{0, 1, 2, 3, 100, 1234567} {
			exact := new(big.Rat).Mul(big.NewRat(n*rate.Den, rate.Num), big.NewRat(1_000_000, 1))
			d := new(big.Rat).Sub(exact, new(big.Rat).SetInt64(micros(n, rate)))
			if d.Abs(d).Cmp(big.NewRat(1, 2)) > 0 {
				t.Errorf("micros(%d, %v) = %d, exactly %s", n, rate, micros(n, rate), exact.FloatString(3))
			}
		}
	}
}

// Segments whose headers differ, as those of other devices or versions may, are
// not joined into something that is damaged.
func TestSegmentsOfAnotherEncoderDoNotFit(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	dir := t.TempDir()
	source := recipe{inputs: []string{picture}, args: x264, file: "a.mp4"}.make(t, tools, dir)
	j := small(newJob(t, tools, source, draft(), render.Policy{SegmentTarget: time.Second, MaxSegments: 2}), 4)
	var segments []string
	for i, args := range [][]string{lossless(), {"-c:v", "libx264", "-preset", "ultrafast", "-qp", "20", "-g", "25", "-refs", "4"}} {
		m, err := j.encodeSegment(t.Context(), i, args)
		if err != nil {
			t.Fatal(err)
		}
		segments = append(segments, m.Path)
	}
	_, _, err := Assemble(t.Context(), j, segments, "")
	if e := render.AsError(err); e.Blame != render.BlameJob || !strings.Contains(e.Message, "do not fit together") {
		t.Errorf("joined: %v", err)
	}
	if same, err := sameHeaders([]string{segments[0], segments[0]}); !same || err != nil {
		t.Errorf("a segment does not fit itself: %v", err)
	}
	if same, err := sameHeaders([]string{source, filepath.Join(dir, "absent")}); same || err == nil {
		t.Error("a segment that is not there fits")
	}
}
