package media

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
)

func textMark(s string) *render.Watermark {
	return &render.Watermark{Mode: render.WatermarkText, Text: s, Position: render.PositionBottomRight, Opacity: 1}
}

// TestTextDrawn draws texts that tools like to misread. A text drawn as
// something else would be as wide as that; so each is compared with a twin
// that cannot be misread and must differ from it, or be equal to it.
func TestTextDrawn(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	draw := func(t *testing.T, s string) image.Image {
		t.Helper()
		path, err := DrawOverlay(t.Context(), tools, t.TempDir(), textMark(s), "", 640, 360)
		if err != nil {
			t.Fatalf("draw %q: %v", s, err)
		}
		img, err := readPNG(path)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	// lines counts the bands of ink with empty rows between them.
	lines := func(img image.Image) (n int) {
		inBand := false
		for y := range img.Bounds().Dy() {
			row := inked(img.(*image.NRGBA).SubImage(image.Rect(0, y, img.Bounds().Dx(), y+1)))
			if !row.Empty() && !inBand {
				n++
			}
			inBand = !row.Empty()
		}
		return n
	}
	for _, c := range []struct {
		name, text, twin string
		same             bool
		lines            int
	}{
		{"punctuation", `: ' " % \ { } , [ ] ;`, `: ' " % , [ ] ;`, false, 1},
		{"backslash and N", `a\Nb`, "a\nb", false, 1},
		{"backslash and n", `a\nb`, "ab", false, 1},
		{"backslash and h", `a\hb`, "a b", false, 1},
		{"override block", `{\fs100}x`, "x", false, 1},
		{"escaped brace", `\{x\}`, "{x}", false, 1},
		{"expansion", `%{pts} $x`, "x", false, 1},
		{"newline", "HH\nHH", "HH HH", false, 2},
		{"line ends", "HH\r\nHH", "HH\nHH", true, 2},
		{"arabic", "مرحبا", "م ر ح ب ا", false, 1},
		{"hebrew", "שלום", "םולש", false, 1},
		{"chinese", "你好", "好你", false, 1},
		{"mono emoji", "😀", "☺", false, 1},
		{"combining mark", "e\u0301", "é", true, 1},
		{"joiners and marks without a shape", "a\u200e\u2060\ufe0fb\ufeff", "ab", true, 1},
		{"surrounding space", "  ab\n", "ab", true, 1},
		{"tab", "a\tb", "a b", true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, twin := draw(t, c.text), draw(t, c.twin)
			if same := slices.Equal(got.(*image.NRGBA).Pix, twin.(*image.NRGBA).Pix); same != c.same {
				t.Errorf("%q and %q look the same: %t, want %t", c.text, c.twin, same, c.same)
			}
			if n := lines(got); n != c.lines && c.name != "mono emoji" {
				t.Errorf("%q takes %d lines, want %d", c.text, n, c.lines)
			}
		})
	}
}

func TestTextRefused(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	for name, text := range map[string]string{
		"colour emoji":     "go 🚀",
		"script":           "ꦲꦏ꧀",
		"unassigned":       "a\u0378",
		"private use":      "\ue123",
		"only invisible":   "\u200d\u2060",
		"control":          "a\x07b",
		"skin tone":        "☝🏽",
		"only unsupported": "🚀🚀",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := DrawOverlay(t.Context(), tools, t.TempDir(), textMark(text), "", 640, 360)
			var e *render.Error
			if !errors.As(err, &e) || e.Code != render.CodeTextNotRenderable || e.Blame != render.BlameCaller || e.Details.Field != "watermark.text" {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestTextFits draws long texts into small pictures: never larger than the
// picture, and as large as it should be where there is room.
func TestTextFits(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	for _, c := range []struct {
		name, text    string
		width, height int
		least         float64 // ink's height as a part of the picture's, at least
	}{
		{"short", "Hg", 1280, 720, 0.03},
		{"short on a portrait", "Hg", 720, 1280, 0.03},
		{"200 words", strings.Repeat("word ", 40), 1280, 720, 0.1},
		{"200 wide letters", strings.Repeat("W", 200), 640, 360, 0.1},
		{"200 ideographs", strings.Repeat("好", 200), 640, 360, 0.1},
		{"100 lines", strings.Repeat("W\n", 99) + "W", 640, 360, 0.5},
		{"a strip", "hello", 1280, 20, 0.5},
		{"a column", "hello", 20, 720, 0},
		{"a dot", "hello", 2, 2, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path, err := DrawOverlay(t.Context(), tools, t.TempDir(), textMark(c.text), "", c.width, c.height)
			if err != nil {
				t.Fatal(err)
			}
			w, h, err := pngSize(path)
			if err != nil || w > c.width || h > c.height || float64(h) < c.least*float64(c.height) {
				t.Errorf("%d×%d in %d×%d: %v", w, h, c.width, c.height, err)
			}
		})
	}
}

func TestReadableText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a\r\nb\rc\u2028d": "a\nb\nc\nd",
		"a\u00adb\ufe0f":   "ab",
		"\u0600\u200d":     "\u0600\u200d",
	} {
		if got, bad := readableText(in); got != want || bad != 0 {
			t.Errorf("readableText(%q) = %q, %q", in, got, bad)
		}
	}
	if got, _ := readableText("  x  y\n "); got != "x  y" {
		t.Errorf("surrounding space: %q", got)
	}
	if _, bad := readableText("a\x1b\x07"); bad != '\x1b' {
		t.Errorf("control character: %q", bad)
	}
}

func TestWrapText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in      string
		columns int
		want    []string
	}{
		{"one two three", 7, []string{"one two", "three"}},
		{"one two three", 100, []string{"one two three"}},
		{"abcdefgh", 3, []string{"abc", "def", "gh"}},
		{"好好好好", 4, []string{"好好", "好好"}},
		{"a\n\nb", 5, []string{"a", "", "b"}},
		{"x 好", 1, []string{"x", "好"}},
		{"e\u0301e\u0301", 1, []string{"e\u0301", "e\u0301"}},
	} {
		if got := wrapText(c.in, c.columns); !slices.Equal(got, c.want) {
			t.Errorf("wrapText(%q, %d) = %q, want %q", c.in, c.columns, got, c.want)
		}
	}
}

func FuzzWrapText(f *testing.F) {
	f.Add("one two\nthree 好", 3)
	f.Fuzz(func(t *testing.T, in string, columns int) {
		text, _ := readableText(strings.ToValidUTF8(in, ""))
		got := wrapText(text, max(1, columns))
		strip := func(s string) string { return strings.NewReplacer("\n", "", " ", "").Replace(s) }
		if strip(strings.Join(got, "")) != strip(text) {
			t.Errorf("wrapText lost something of %q: %q", text, got)
		}
		empty := assScript(nil, render.PositionCenter, 20, 100, 100)
		if script := assScript(got, render.PositionCenter, 20, 100, 100); strings.Count(script, "\n") != strings.Count(empty, "\n") {
			t.Errorf("%q breaks out of its line: %q", text, script)
		}
	})
}

func TestEscapeASS(t *testing.T) {
	t.Parallel()
	if got, want := escapeASS(`a\N{b}`), "a\\\u2060N\\{b\\}"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMissingGlyphs(t *testing.T) {
	t.Parallel()
	got := missingGlyphs([]string{
		"[Parsed_ass_0 @ 0x55] [info] Glyph 0x4F60 not found, selecting one more font for (sans-serif, 400, 0)",
		"[Parsed_ass_0 @ 0x55] [warning] Glyph 0x1F600 not found, broken font? Trying all charmaps",
		"[Parsed_ass_0 @ 0x55] [warning] fontselect: failed to find any fallback with glyph 0x1F680 for font: (sans-serif, 400, 0)",
		"[Parsed_ass_0 @ 0x55] [error] Glyph 0x378 not found in font for (sans-serif, 400, 0)",
		"[Parsed_ass_0 @ 0x55] [warning] fontselect: failed to find any fallback with glyph 0x200D for font: (x, 400, 0)",
	})
	if !slices.Equal(got, []rune{0x1f680, 0x378}) {
		t.Errorf("got %x", got)
	}
}

// logo writes a picture with a border, so that cropping would show.
func logo(t *testing.T, w, h int) *image.NRGBA {
	t.Helper()
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			img.SetNRGBA(x, y, color.NRGBA{R: 255, G: uint8(255 * x / w), A: 255})
			if x > w/4 && x < 3*w/4 && y > h/4 && y < 3*h/4 {
				img.SetNRGBA(x, y, color.NRGBA{}) // a hole
			}
		}
	}
	return img
}

func TestPictureDrawn(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	for _, c := range []struct{ w, h, width, height, wantW, wantH int }{
		{400, 200, 1280, 720, 216, 108},
		{4000, 100, 1280, 720, 427, 11},
		{100, 4000, 1280, 720, 3, 108},
		{8, 8, 3840, 2160, 32, 32},
		{1, 1, 1280, 720, 4, 4},
		{400, 200, 2, 2, 1, 1},
	} {
		t.Run(fmt.Sprintf("%d×%d in %d×%d", c.w, c.h, c.width, c.height), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "logo")
			if err := writePNG(path, logo(t, c.w, c.h), png.BestSpeed); err != nil {
				t.Fatal(err)
			}
			out, err := DrawOverlay(t.Context(), tools, dir, &render.Watermark{Mode: render.WatermarkImage}, path, c.width, c.height)
			if err != nil {
				t.Fatal(err)
			}
			img, err := readPNG(out)
			if err != nil {
				t.Fatal(err)
			}
			if img.Bounds().Dx() != c.wantW || img.Bounds().Dy() != c.wantH {
				t.Fatalf("drawn %v, want %d×%d", img.Bounds(), c.wantW, c.wantH)
			}
			if c.wantW < 50 || c.wantH < 50 {
				return
			}
			if _, _, _, a := img.At(c.wantW/2, c.wantH/2).RGBA(); a != 0 {
				t.Errorf("the hole is filled: alpha %d", a)
			}
			// At the hole's edge the colour stays the border's: nothing of the
			// transparent black bleeds in.
			for x := range c.wantW {
				if p := color.NRGBAModel.Convert(img.At(x, c.wantH/2)).(color.NRGBA); p.A > 40 && p.R < 235 {
					t.Errorf("dark fringe at %d: %v", x, p)
				}
			}
		})
	}
}

// TestPictureTurned draws a JPEG whose EXIF data turns it.
func TestPictureTurned(t *testing.T) {
	t.Parallel()
	tools, dir := tools(t), t.TempDir()
	path := filepath.Join(dir, "logo.jpg")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := jpeg.Encode(f, logo(t, 400, 200), nil); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// APP1 with one tag: orientation 6, turn by 90 degrees clockwise.
	exif := []byte("Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00")
	segment := append([]byte{0xff, 0xe1, 0, byte(len(exif) + 2)}, exif...)
	if err := os.WriteFile(path, slices.Concat(b[:2], segment, b[2:]), 0o600); err != nil {
		t.Fatal(err)
	}
	facts := probeFile(t, tools, path)
	if facts.Kind != "image" || facts.Container != "jpeg" || facts.Width != 200 || facts.Height != 400 || facts.Renderable || facts.Reason == "" {
		t.Errorf("facts %+v", facts)
	}
	out, err := DrawOverlay(t.Context(), tools, dir, &render.Watermark{Mode: render.WatermarkImage}, path, 1280, 720)
	if err != nil {
		t.Fatal(err)
	}
	if w, h, err := pngSize(out); err != nil || w != 54 || h != 108 {
		t.Errorf("drawn %d×%d: %v", w, h, err)
	}
}

// pngHead writes a PNG that claims a size and has hardly any data.
func pngHead(t *testing.T, path string, w, h uint32) {
	t.Helper()
	ihdr := slices.Concat([]byte("IHDR"), binary.BigEndian.AppendUint32(nil, w), binary.BigEndian.AppendUint32(nil, h), []byte{8, 6, 0, 0, 0})
	b := slices.Concat([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\r"), ihdr, binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(ihdr)))
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestPictureRefused(t *testing.T) {
	t.Parallel()
	tools, dir := tools(t), t.TempDir()
	huge, cut, text := filepath.Join(dir, "huge"), filepath.Join(dir, "cut"), filepath.Join(dir, "text")
	pngHead(t, huge, 30000, 30000)
	pngHead(t, cut, 30, 30)
	if err := os.WriteFile(text, []byte("<svg/>"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, code := range map[string]render.Code{huge: render.CodeSourceTooLarge, cut: render.CodeUnsupportedCodec, text: render.CodeUnsupportedCodec} {
		_, err := DrawOverlay(t.Context(), tools, t.TempDir(), &render.Watermark{Mode: render.WatermarkImage}, path, 1280, 720)
		var e *render.Error
		if !errors.As(err, &e) || e.Code != code || e.Blame != render.BlameSource || e.Details.Field != "watermark.image_asset_uri" {
			t.Errorf("%s: got %v", filepath.Base(path), err)
		}
		if f := probeFile(t, tools, path); f.Renderable || f.Code != code || f.Kind != "other" {
			t.Errorf("%s: facts %+v", filepath.Base(path), f)
		}
	}
}

// TestWatermarkInVideo compares renders with and without a watermark: what
// differs is where it was asked for, and nothing else.
func TestWatermarkInVideo(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	source := recipe{inputs: []string{"testsrc2=size=320x240:rate=25:duration=0.4"}, args: x264, file: "s.mp4"}.make(t, tools, t.TempDir())
	plain := small(newJob(t, tools, source, draft(), render.Policy{}), 3)
	frame := func(t *testing.T, j Job) *image.NRGBA {
		t.Helper()
		m, err := j.frame(t.Context(), 5, -1)
		if err != nil {
			t.Fatalf("%v\n%s", err, strings.Join(m.LogTail, "\n"))
		}
		img, err := readPNG(m.Path)
		if err != nil {
			t.Fatal(err)
		}
		return resize(img, img.Bounds(), m.Width, m.Height)
	}
	without := frame(t, plain)
	w, h := plain.Plan.Width, plain.Plan.Height
	for position, where := range map[render.Position]image.Point{
		render.PositionTopLeft: {0, 0}, render.PositionTopRight: {2, 0}, render.PositionCenter: {1, 1},
		render.PositionBottomLeft: {0, 2}, render.PositionBottomRight: {2, 2},
	} {
		opacities := []float64{1}
		if position == render.PositionCenter {
			opacities = []float64{1, 0.5, 0}
		}
		for _, opacity := range opacities {
			t.Run(fmt.Sprintf("%s %v", position, opacity), func(t *testing.T) {
				t.Parallel()
				j := plain
				j.Dir = t.TempDir()
				j.Spec.Watermark = &render.Watermark{Mode: render.WatermarkText, Text: "Mark", Position: position, Opacity: opacity}
				var err error
				if j.Overlay, err = DrawOverlay(t.Context(), tools, j.Dir, j.Spec.Watermark, "", w, h); err != nil {
					t.Fatal(err)
				}
				with := frame(t, j)
				var box image.Rectangle
				most := 0.0
				for y := range h {
					for x := range w {
						a, b := with.NRGBAAt(x, y), without.NRGBAAt(x, y)
						d := math.Max(math.Abs(float64(a.R)-float64(b.R)), math.Abs(float64(a.G)-float64(b.G)))
						if d > 8 {
							box = box.Union(image.Rect(x, y, x+1, y+1))
						}
						most = max(most, d)
					}
				}
				if opacity == 0 {
					if !box.Empty() {
						t.Errorf("an invisible watermark changed %v", box)
					}
					return
				}
				third := image.Rect(where.X*w/3, where.Y*h/3, (where.X+1)*w/3, (where.Y+1)*h/3)
				if box.Empty() || !box.In(third) {
					t.Errorf("changed %v, want something within %v", box, third)
				}
				if half := most < 140; half != (opacity == 0.5) {
					t.Errorf("opacity %v changed a pixel by %v", opacity, most)
				}
			})
		}
	}
}
