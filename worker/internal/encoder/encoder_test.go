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
	const rest = " -flags:v +cgop -x264-params open-gop=0"
	for _, c := range []struct {
		quality render.Quality
		rate    render.Rational
		threads int
		want    string
	}{
		{render.QualityDraft, render.Rational{Num: 30, Den: 1}, 0, "-c:v libx264 -preset veryfast -crf 26 -profile:v high -g 60" + rest},
		{render.QualityStandard, render.Rational{Num: 24000, Den: 1001}, 2, "-c:v libx264 -preset veryfast -crf 23 -profile:v high -g 48" + rest + " -threads:v 2"},
		{render.QualityHigh, render.Rational{Num: 1, Den: 5}, 0, "-c:v libx264 -preset medium -crf 20 -profile:v high -g 1" + rest},
	} {
		args, err := Video(X264, c.quality, c.rate, c.threads)
		if got := strings.Join(args, " "); err != nil || got != c.want {
			t.Errorf("%s: got %s, %v", c.quality, got, err)
		}
	}
	if _, err := Video("h264_nvenc", render.QualityDraft, render.Rational{Num: 1, Den: 1}, 0); !errors.Is(err, ErrUnknown) {
		t.Errorf("an encoder that nobody drives: %v", err)
	}
}

func TestAudio(t *testing.T) {
	t.Parallel()
	for channels, want := range map[int]string{0: "160k", 1: "80k", 2: "160k", 6: "400k"} {
		if got := strings.Join(Audio(render.QualityStandard, channels), " "); got != "-c:a aac -b:a "+want {
			t.Errorf("%d channels: %s", channels, got)
		}
	}
}

func TestTry(t *testing.T) {
	t.Parallel()
	tools, err := ffmpeg.Find(t.Context())
	if err != nil {
		t.Fatalf("these tests run the real ffmpeg: %v", err)
	}
	name, err := Select(tools)
	if err != nil {
		t.Fatal(err)
	}
	if err := Try(t.Context(), tools, t.TempDir(), name); err != nil {
		t.Error(err)
	}
	if err := Try(t.Context(), tools, t.TempDir(), "h264_nvenc"); !errors.Is(err, ErrUnknown) {
		t.Errorf("an encoder that nobody drives: %v", err)
	}
	if _, err := Select(&ffmpeg.Tools{}); err == nil {
		t.Error("selected an encoder that is not there")
	}
}
