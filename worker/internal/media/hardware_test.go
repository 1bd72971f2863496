package media

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/standin"
	"github.com/vidforge/vidforge/worker/internal/encoder"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// deviceJob is a job of one second whose encoder is a hardware one, with a
// watermark, for an ffmpeg that stands in for one with a device.
func deviceJob(t *testing.T, f *standin.FFmpeg, format render.Format, name string, offers ...encoder.Offer) Job {
	t.Helper()
	with, err := ffmpeg.Open(t.Context(), f.Path, tools(t).FFprobe)
	if err != nil {
		t.Fatal(err)
	}
	s := draft()
	s.Format = format
	s.Watermark = &render.Watermark{Mode: render.WatermarkText, Text: "vidforge", Position: render.PositionCenter, Opacity: 0.5}
	dir := t.TempDir()
	source := recipe{inputs: []string{"testsrc2=size=160x120:rate=30:duration=1"}, args: x264, file: "a.mp4"}.make(t, with, dir)
	j := small(newJob(t, with, source, s, render.Policy{}), 4)
	j.Plan.Encoder, j.Offers = name, offers
	if j.Overlay, err = DrawOverlay(t.Context(), with, j.Dir, s.Watermark, "", j.Plan.Width, j.Plan.Height); err != nil {
		t.Fatal(err)
	}
	return j
}

func TestSegmentsOfDevices(t *testing.T) {
	t.Parallel()
	node := encoder.Device{Kind: encoder.KindDRI, Name: "/dev/dri/renderD128"}
	for name, format := range map[string]render.Format{
		"h264_vaapi": render.FormatMP4, "h264_qsv": render.FormatMOV, "vp9_vaapi": render.FormatWebM, render.DecoderCUDA: render.FormatMP4,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := standin.New(t)
			j := deviceJob(t, f, format, name, encoder.Offer{Encoder: name, Device: node})
			if name == render.DecoderCUDA {
				j.Plan.Encoder, j.Plan.Decoder = "libx264", name
			}
			m, err := EncodeSegment(t.Context(), j, 0)
			if err != nil || m.Frames != 30 {
				t.Fatalf("%d frames, %v\n%s", m.Frames, err, strings.Join(m.LogTail, "\n"))
			}
			if got := f.Tried(); len(got) != 1 || got[0] != "works "+name {
				t.Errorf("asked of devices: %v", got)
			}
			// The picture is the one that software would have made.
			_, _, j.Plan.Encoder = format.Codecs()
			j.Plan.Decoder = ""
			device, err := os.ReadFile(m.Path)
			if err != nil {
				t.Fatal(err)
			}
			j.Dir = t.TempDir()
			if err := os.WriteFile(filepath.Join(j.Dir, "device.mp4"), device, 0o600); err != nil {
				t.Fatal(err)
			}
			soft, err := EncodeSegment(t.Context(), j, 0)
			if err != nil {
				t.Fatal(err)
			}
			if got := psnr(t, j.Tools, filepath.Join(j.Dir, "device.mp4"), soft.Path); got < 25 {
				t.Errorf("%.1f dB like software", got)
			}
		})
	}
}

// psnr is how like two files' frames are, in decibels, on the average.
func psnr(t *testing.T, tools *ffmpeg.Tools, a, b string) float64 {
	t.Helper()
	res, err := tools.Run(t.Context(), ffmpeg.Cmd{
		Name: "compare", Dir: t.TempDir(), LogLevel: "info", Inputs: []ffmpeg.Input{{Path: a}, {Path: b}},
		Args: []string{"-lavfi", "[0:v]settb=1/1000,setpts=N[a];[1:v]settb=1/1000,setpts=N[b];[a][b]psnr", "-f", "null", "-"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range res.Log.Lines() {
		if _, after, ok := strings.Cut(line, " average:"); ok {
			v, err := strconv.ParseFloat(strings.Fields(after)[0], 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatal("no average in the log")
	return 0
}

// TestDevicesThatFail: whatever a device does wrong, the job is to blame and
// not the source or the worker, so that the render goes on without it.
func TestDevicesThatFail(t *testing.T) {
	t.Parallel()
	card := encoder.Offer{Encoder: "h264_nvenc", Device: encoder.Device{Kind: encoder.KindNVIDIA, Name: "0"}}
	for mode, want := range map[standin.Mode]string{
		standin.NoDevice:     "Cannot load libcuda.so.1.",
		standin.SessionLimit: "OpenEncodeSessionEx failed: out of memory (10): (no details).",
		standin.Short:        "5 of 30 frames came out.",
		standin.WrongPicture: "The picture that came out is another.",
	} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f := standin.New(t)
			j := deviceJob(t, f, render.FormatMP4, card.Encoder, card)
			f.Set(mode)
			_, err := EncodeSegment(t.Context(), j, 0)
			e := render.AsError(err)
			if e.Blame != render.BlameJob || !strings.HasPrefix(e.Message, "The hardware encoder h264_nvenc failed: ") || !strings.Contains(e.Message, want) {
				t.Errorf("%s blames %s: %s", mode, e.Blame, e.Message)
			}
		})
	}
	t.Run("hangs", func(t *testing.T) {
		t.Parallel()
		f := standin.New(t)
		j := deviceJob(t, f, render.FormatMP4, card.Encoder, card)
		f.Set(standin.Hangs)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		j.Progress = func(ffmpeg.Progress) { cancel(errLate) } // its first frame
		if _, err := EncodeSegment(ctx, j, 0); !errors.Is(err, errLate) {
			t.Errorf("a hanging device that is stopped: %v", err)
		}
	})
	t.Run("a worker without the device", func(t *testing.T) {
		t.Parallel()
		j := deviceJob(t, standin.New(t), render.FormatMP4, "h264_qsv", card)
		if _, err := EncodeSegment(t.Context(), j, 0); render.AsError(err).Blame != render.BlameWorker {
			t.Errorf("got %v", err)
		}
	})
}

var errLate = errors.New("late")

func TestCUDADecodes(t *testing.T) {
	t.Parallel()
	plain := render.Stream{Codec: "hevc", PixelFormat: "yuv420p", ColorPrimaries: "bt709"}
	if !CUDADecodes(&plain) {
		t.Errorf("not %+v", plain)
	}
	for name, change := range map[string]func(*render.Stream){
		"10 bits": func(v *render.Stream) { v.PixelFormat = "yuv420p10le" }, "HDR": func(v *render.Stream) { v.HDR = hdrHLG },
		"interlaced": func(v *render.Stream) { v.Interlaced = true }, "turned": func(v *render.Stream) { v.Rotation = 90 },
		"wide gamut": func(v *render.Stream) { v.ColorPrimaries = "bt2020" }, "another codec": func(v *render.Stream) { v.Codec = "prores" },
	} {
		v := plain
		if change(&v); CUDADecodes(&v) {
			t.Errorf("%s: %+v", name, v)
		}
	}
}
