package encoder

import (
	"errors"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

func TestVideo(t *testing.T) {
	t.Parallel()
	whole := func(n int64) render.Rational { return render.Rational{Num: n, Den: 1} }
	const cgop = " -flags:v +cgop -x264-params open-gop=0"
	for _, c := range []struct {
		name string
		p    Picture
		want string
	}{
		{"libx264", Picture{render.QualityDraft, 1280, 720, whole(30), 0},
			"-c:v libx264 -preset veryfast -crf 26 -profile:v high -level:v 3.1 -maxrate:v 17500k -bufsize:v 17500k" + cgop + " -g 60"},
		{"libx264", Picture{render.QualityStandard, 1920, 1080, render.Rational{Num: 24000, Den: 1001}, 2},
			"-c:v libx264 -preset veryfast -crf 23 -profile:v high -level:v 4.0 -maxrate:v 25000k -bufsize:v 31250k" + cgop + " -g 48 -threads:v 2"},
		{"libx264", Picture{render.QualityHigh, 640, 480, render.Rational{Num: 1, Den: 5}, 0},
			"-c:v libx264 -preset medium -crf 20 -profile:v high -level:v 3.0 -maxrate:v 12500k -bufsize:v 12500k" + cgop + " -g 1"},
		{"libvpx-vp9", Picture{render.QualityDraft, 720, 1280, whole(30), 0},
			"-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -b:v 0 -crf 40 -profile:v 0 -row-mt 1 -tile-columns 1 -g 60"},
		{"libvpx-vp9", Picture{render.QualityStandard, 1920, 1080, whole(25), 3},
			"-c:v libvpx-vp9 -deadline good -cpu-used 4 -b:v 0 -crf 32 -profile:v 0 -row-mt 1 -tile-columns 2 -g 50 -threads:v 3"},
		{"libvpx-vp9", Picture{render.QualityHigh, 3840, 2160, whole(60), 0},
			"-c:v libvpx-vp9 -deadline good -cpu-used 2 -b:v 0 -crf 28 -profile:v 0 -row-mt 1 -tile-columns 3 -g 120"},
	} {
		args, err := Video(c.name, c.p)
		if got := strings.Join(args, " "); err != nil || got != c.want {
			t.Errorf("%+v\n got %s, %v\nwant %s", c.p, got, err, c.want)
		}
	}
	if _, err := Video("h264_nvenc", Picture{Rate: whole(1)}); !errors.Is(err, ErrUnknown) {
		t.Errorf("an encoder that nobody drives: %v", err)
	}
}

// TestLevels checks levels that device makers print on their boxes.
func TestLevels(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		w, h, rate int64
		want       string
	}{
		{720, 480, 30, "3.0"}, {1280, 720, 30, "3.1"}, {720, 1280, 30, "3.1"}, {1280, 720, 60, "3.2"},
		{1920, 1080, 30, "4.0"}, {1080, 1920, 30, "4.0"}, {1920, 1080, 60, "4.2"}, {1920, 1080, 120, "5.1"},
		{3840, 2160, 24, "5.1"}, {3840, 2160, 30, "5.1"}, {2160, 3840, 60, "5.2"}, {3840, 2160, 60, "5.2"}, {3840, 2160, 120, "6.0"},
		{1280, 2, 25, "3.0"}, {3840, 2, 25, "4.0"}, // a side of 240 macroblocks
		{16384, 16384, 120, "6.2"},
	} {
		if got := levelOf(int(c.w), int(c.h), render.Rational{Num: c.rate, Den: 1}).name; got != c.want {
			t.Errorf("%d×%d at %d: level %s, want %s", c.w, c.h, c.rate, got, c.want)
		}
	}
}

func TestAudio(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		codec    string
		channels int
		want     string
	}{
		{"aac", 0, "stereo: -c:a aac -b:a 160k"}, {"aac", 1, "mono: -c:a aac -b:a 80k"}, {"aac", 2, "stereo: -c:a aac -b:a 160k"},
		{"aac", 3, "5.1: -c:a aac -b:a 400k"}, {"aac", 6, "5.1: -c:a aac -b:a 400k"}, {"aac", 8, "5.1: -c:a aac -b:a 400k"},
		{"opus", 1, "mono: -c:a libopus -b:a 80k"}, {"opus", 2, "stereo: -c:a libopus -b:a 128k"}, {"opus", 6, "5.1: -c:a libopus -b:a 320k"},
	} {
		s, err := Audio(c.codec, render.QualityStandard, c.channels)
		if got := s.Layout + ": " + strings.Join(s.Args(), " "); err != nil || got != c.want {
			t.Errorf("%s of %d channels: got %s, %v, want %s", c.codec, c.channels, got, err, c.want)
		}
	}
	if _, err := Audio("mp3", render.QualityDraft, 2); !errors.Is(err, ErrUnknown) {
		t.Errorf("a codec that nobody makes: %v", err)
	}
}

func TestTry(t *testing.T) {
	t.Parallel()
	tools, err := ffmpeg.Find(t.Context())
	if err != nil {
		t.Fatalf("these tests run the real ffmpeg: %v", err)
	}
	for _, name := range Pictures() {
		if err := Try(t.Context(), tools, t.TempDir(), name); err != nil {
			t.Error(err)
		}
	}
	if err := Try(t.Context(), tools, t.TempDir(), "h264_nvenc"); !errors.Is(err, ErrUnknown) {
		t.Errorf("an encoder that nobody drives: %v", err)
	}
	found, missing := Found(tools)
	if got := strings.Join(found, " "); got != "libx264 libvpx-vp9 aac libopus" || len(missing) != 0 {
		t.Errorf("found %s, missing %v", got, missing)
	}
	if found, missing := Found(&ffmpeg.Tools{}); len(found) != 0 || len(missing) != 4 {
		t.Errorf("an ffmpeg without encoders has %v, lacks %v", found, missing)
	}
	if err := Require(&ffmpeg.Tools{}, "libopus"); !errors.Is(err, ErrUnknown) {
		t.Errorf("an encoder that is not there: %v", err)
	}
}
