package encoder

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/standin"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

func prover(t *testing.T, f *standin.FFmpeg) Prover {
	t.Helper()
	installed, err := ffmpeg.Find(t.Context())
	if err != nil {
		t.Fatalf("these tests run the real ffmpeg: %v", err)
	}
	tools, err := ffmpeg.Open(t.Context(), f.Path, installed.FFprobe)
	if err != nil {
		t.Fatal(err)
	}
	return Prover{Tools: tools, Scratch: t.TempDir(), Limit: time.Minute}
}

// TestFailures: what real encoders do that are listed and of no use.
func TestFailures(t *testing.T) {
	t.Parallel()
	card, decoder := Offer{Encoder: "h264_nvenc", Device: Device{KindNVIDIA, "0"}}, Offer{Encoder: "cuda", Device: Device{KindCUDA, "0"}}
	for _, c := range []struct {
		offer Offer
		mode  standin.Mode
		want  string
	}{
		{card, standin.Works, ""},
		{card, standin.NoDevice, "Cannot load libcuda.so.1"},
		{card, standin.SessionLimit, "OpenEncodeSessionEx failed: out of memory (10)"},
		{card, standin.Short, "5 of 60 frames encoded"},
		{card, standin.WrongPicture, "the picture that came out is another"},
		{decoder, standin.Works, ""},
		{decoder, standin.NoDevice, "decode it: "},
		{decoder, standin.WrongPicture, "the picture that came out is another"},
	} {
		want := c.want
		t.Run(c.offer.Encoder+" "+string(c.mode), func(t *testing.T) {
			t.Parallel()
			f := standin.New(t)
			f.Set(c.mode)
			p := prover(t, f)
			err := p.Again(t.Context(), c.offer)
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("got %v, want %q", err, want)
			}
			if left, err := os.ReadDir(p.Scratch); err != nil || len(left) != 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

func TestHang(t *testing.T) {
	t.Parallel()
	f := standin.New(t)
	f.Set(standin.Hangs)
	p := prover(t, f)
	p.Limit = 100 * time.Millisecond
	found, err := p.Prove(t.Context(), []Device{{KindDRI, "/dev/dri/renderD128"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range found {
		if !errors.Is(got.Err, errSlow) {
			t.Errorf("%s: %v", got.Encoder, got.Err)
		}
	}
	for _, tried := range f.Tried() {
		if strings.Count(strings.Join(f.Tried(), "\n"), tried) > 1 {
			t.Errorf("what hangs was tried again: %v", f.Tried())
		}
	}
}

func TestProve(t *testing.T) {
	t.Parallel()
	f := standin.New(t)
	p := prover(t, f)
	now := time.Now()
	p.Now = func() time.Time { return now }
	p.Cache = filepath.Join(t.TempDir(), "cache.json")
	devices := []Device{{KindNVIDIA, "0"}, {KindNVIDIA, "1"}, {KindVideoToolbox, ""}}
	prove := func() (works []string, cached int) {
		t.Helper()
		found, err := p.Prove(t.Context(), devices)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if f.Err == nil {
				works = append(works, f.Encoder+" "+f.Device.String())
			}
			if f.Cached {
				cached++
			}
		}
		return works, cached
	}
	want := []string{"h264_nvenc nvidia:0", "h264_nvenc nvidia:1"}
	f.Set(standin.NoDevice)
	if works, _ := prove(); len(works) != 0 {
		t.Errorf("without a device: %v", works)
	}
	f.Set(standin.Works) // a driver was installed
	if works, cached := prove(); !slices.Equal(works, want) || cached != 0 {
		t.Errorf("got %v, %d of the cache, want %v", works, cached, want)
	}
	f.Set(standin.NoDevice)
	if works, cached := prove(); !slices.Equal(works, want) || cached != 2 {
		t.Errorf("again: got %v, %d of the cache", works, cached)
	}
	now = now.Add(cacheFor + time.Second)
	if works, cached := prove(); len(works) != 0 || cached != 0 {
		t.Errorf("a day later: got %v, %d of the cache", works, cached)
	}
	f.Set(standin.Works)
	prove()
	later := now.Add(-time.Minute)
	if err := os.Chtimes(f.Path, later, later); err != nil { // another build of ffmpeg
		t.Fatal(err)
	}
	f.Set(standin.NoDevice)
	if works, cached := prove(); len(works) != 0 || cached != 0 {
		t.Errorf("another ffmpeg: got %v, %d of the cache", works, cached)
	}
	if err := os.WriteFile(p.Cache, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if works, _ := prove(); len(works) != 0 {
		t.Errorf("a broken cache: %v", works)
	}
}

// TestLowPower: some models encode only in another way than others.
func TestLowPower(t *testing.T) {
	t.Parallel()
	f := standin.New(t)
	f.Set(standin.LowPowerOnly)
	p := prover(t, f)
	p.Cache = filepath.Join(t.TempDir(), "cache.json")
	for _, cached := range []bool{false, true} {
		found, err := p.Prove(t.Context(), []Device{{KindDRI, "/dev/dri/renderD128"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range found {
			vaapi := strings.HasSuffix(got.Encoder, "_vaapi")
			if vaapi != (got.Err == nil) || vaapi && (got.Cached != cached || !slices.Equal(got.Extra, []string{"-low_power", "1"})) {
				t.Errorf("%+v", got)
			}
		}
	}
	b, err := os.ReadFile(p.Cache)
	if err != nil {
		t.Fatal(err)
	}
	foreign := strings.ReplaceAll(string(b), `"-low_power","1"`, `"-metadata","x=y"`)
	if foreign == string(b) {
		t.Fatalf("the cache holds %s", b)
	}
	if err := os.WriteFile(p.Cache, []byte(foreign), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := p.Prove(t.Context(), []Device{{KindDRI, "/dev/dri/renderD128"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range found {
		if got.Cached || slices.Contains(got.Extra, "-metadata") {
			t.Errorf("arguments of a foreign cache: %+v", got)
		}
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	p := Prover{Tools: &ffmpeg.Tools{}, Cache: filepath.Join(t.TempDir(), "cache.json")}
	known := map[string]remembered{}
	for i := range maxCached + 10 {
		known[strings.Repeat("x", i+1)] = remembered{At: time.Now().Add(-time.Duration(i) * time.Second)}
	}
	p.save(known, []Finding{{Offer: Offer{Encoder: "h264_nvenc"}, Err: errSlow}})
	got := p.load()
	if _, newest := got["x"]; len(got) != maxCached || !newest {
		t.Errorf("%d entries, the newest among them: %t", len(got), newest)
	}
}
