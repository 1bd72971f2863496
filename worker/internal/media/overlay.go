package media

import (
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/rivo/uniseg"
	"golang.org/x/text/unicode/norm"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// Fixed names of what is drawn in a job's directory.
const (
	overlayFile = "overlay.png"
	canvasFile  = "canvas.png"
	assFile     = "watermark.ass"
)

// DrawOverlay draws the watermark for a width×height video into a PNG with
// transparency in dir, and returns its path. picture is the path of the
// watermark's picture, unused for a text. Opacity and position are applied by
// the video's filter graph.
//
// A text that the fonts cannot draw is text_not_renderable; a picture that
// cannot be decoded, or is too large, gets the code of its kind.
func DrawOverlay(ctx context.Context, t *ffmpeg.Tools, dir string, w *render.Watermark, picture string, width, height int) (string, error) {
	if w == nil || width <= 0 || height <= 0 {
		return "", jobFault("There is no watermark to draw.")
	}
	if w.Mode == render.WatermarkImage {
		return drawPicture(ctx, t, dir, picture, width, height)
	}
	return drawText(ctx, t, dir, w, width, height)
}

const (
	// textHeightPart is the height of a line of text as part of the video's.
	textHeightPart = 0.05
	// minFont and maxFontWidths bound it: as legible as libass can draw, and
	// at least so many lines' heights in the video's width.
	minFont       = 12.0
	maxFontWidths = 8
	// columnWidth is the usual width of a narrow character as a part of the
	// font's size; what a text really takes is measured after it was drawn.
	columnWidth = 0.5
	// lineHeight is the distance of two lines as a part of the font's size,
	// at most.
	lineHeight = 1.5
	// drawTries is how often a text that came out too large is set anew.
	drawTries = 4
)

func drawText(ctx context.Context, t *ffmpeg.Tools, dir string, w *render.Watermark, width, height int) (string, error) {
	text, bad := readableText(w.Text)
	if bad != 0 {
		return "", notRenderable(bad)
	}
	maxW, maxH := width-2*margin(height), height-2*margin(height)
	if maxW <= 0 || maxH <= 0 {
		maxW, maxH = width, height
	}
	out := filepath.Join(dir, overlayFile)
	size := max(minFont, min(float64(height)*textHeightPart, float64(width)/maxFontWidths))
	columns := max(1, int(float64(maxW)/(size*columnWidth)))
	for try := 1; ; try++ {
		lines := wrapText(text, columns)
		img, err := drawLines(ctx, t, dir, lines, w.Position, size, maxW)
		if err != nil {
			return "", err
		}
		box := inked(img)
		if box.Empty() {
			return "", notRenderable(0)
		}
		over := max(float64(box.Dx())/float64(maxW), float64(box.Dy())/float64(maxH))
		if over > 1 && try < drawTries {
			if box.Dx() > maxW && columns > 1 && box.Dy() <= maxH {
				columns = max(1, int(float64(columns)*float64(maxW)/float64(box.Dx())*0.97))
				continue
			}
			// A smaller font also leaves room for more columns: half the
			// excess is enough, in each direction.
			if smaller := max(minFont, size/math.Sqrt(over)*0.97); smaller < size {
				columns = max(1, int(float64(columns)*size/smaller))
				size = smaller
				continue
			}
		}
		over = max(over, 1)
		fit := func(side, most int) int {
			return min(max(1, int(math.Round(float64(side)/over))), most)
		}
		img = resize(img, box, fit(box.Dx(), maxW), fit(box.Dy(), maxH))
		if err := writePNG(out, img, png.DefaultCompression); err != nil {
			return "", workerFault("draw the watermark", err)
		}
		return out, nil
	}
}

func notRenderable(r rune) *render.Error {
	what := "watermark.text has nothing that the farm's fonts can draw; send visible characters."
	if r != 0 {
		what = fmt.Sprintf("The farm's fonts have no glyph for U+%04X in watermark.text; remove or replace it.", r)
		if unicode.IsPrint(r) {
			what = fmt.Sprintf("The farm's fonts have no glyph for “%c” (U+%04X) in watermark.text; remove or replace it.", r, r)
		}
	}
	e := render.Errorf(render.CodeTextNotRenderable, render.BlameCaller, "%s", what)
	e.Details = &render.Details{Field: "watermark.text", Reason: what}
	return e
}

// readableText brings a text into the form that is drawn: composed characters,
// \n between lines, spaces for tabs, without characters that have no shape of
// their own. It returns the first control character that has no place in a
// text, 0 if there is none.
func readableText(s string) (text string, bad rune) {
	s = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\v", "\n", "\f", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n", "\t", " ").Replace(s)
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n', joinsOrDirects(r):
			return r
		case unicode.In(r, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point),
			unicode.Is(unicode.Cf, r) && !unicode.Is(unicode.Prepended_Concatenation_Mark, r):
			return -1
		case unicode.Is(unicode.Cc, r):
			bad = or0(bad, r)
		}
		return r
	}, s)
	return strings.Trim(norm.NFC.String(s), "\n "), bad
}

func or0(a, b rune) rune {
	if a != 0 {
		return a
	}
	return b
}

// joinsOrDirects reports characters without a shape that change how others are
// shaped or ordered.
func joinsOrDirects(r rune) bool {
	return r == '\u200c' || r == '\u200d' || unicode.Is(unicode.Bidi_Control, r)
}

// wrapText breaks a text into lines of at most so many columns (wide
// characters take two), where Unicode allows a break (UAX #14), else between
// any two characters.
func wrapText(text string, columns int) []string {
	var lines []string
	for paragraph := range strings.SplitSeq(text, "\n") {
		var line strings.Builder
		used := 0
		flush := func() {
			lines = append(lines, strings.TrimRight(line.String(), " "))
			line.Reset()
			used = 0
		}
		state := -1
		for rest := paragraph; rest != ""; {
			var piece string
			piece, rest, _, state = uniseg.FirstLineSegmentInString(rest, state)
			if used > 0 && used+uniseg.StringWidth(strings.TrimRight(piece, " ")) > columns {
				flush()
			}
			for g := uniseg.NewGraphemes(piece); g.Next(); {
				if used > 0 && used+g.Width() > columns && g.Str() != " " {
					flush()
				}
				line.WriteString(g.Str())
				used += g.Width()
			}
		}
		flush()
	}
	return lines
}

// escapeASS writes a line so that libass draws every character as it is:
// braces would open an override block, and after a backslash come commands,
// from which a word joiner keeps it apart.
func escapeASS(s string) string {
	return strings.NewReplacer(`\`, "\\\u2060", `{`, `\{`, `}`, `\}`).Replace(s)
}

// assScript is the subtitle script that draws the lines onto a w×h canvas:
// white with a black outline and a soft shadow, legible on any ground.
func assScript(lines []string, p render.Position, size float64, w, h int) string {
	align := 9 // top right
	switch p {
	case render.PositionTopLeft, render.PositionBottomLeft:
		align = 7
	case render.PositionCenter:
		align = 8
	default:
	}
	escaped := make([]string, len(lines))
	for i, l := range lines {
		escaped[i] = escapeASS(l)
	}
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) }
	pad := number(math.Ceil(size / 4))
	pad, _, _ = strings.Cut(pad, ".")
	return fmt.Sprintf(`[Script Info]
ScriptType: v4.00+
PlayResX: %d
PlayResY: %d
WrapStyle: 2
ScaledBorderAndShadow: yes

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, Italic, Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, Alignment, MarginL, MarginR, MarginV, Encoding
Style: Mark,sans-serif,%s,&H00FFFFFF,&H00FFFFFF,&H00000000,&H80000000,0,0,0,0,100,100,0,0,1,%s,%s,%d,%s,%s,%s,-1

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
Dialogue: 0,0:00:00.00,9:59:59.99,Mark,,0,0,0,,%s
`, w, h, number(size), number(max(1, size*0.06)), number(max(0.5, size*0.03)), align, pad, pad, pad, strings.Join(escaped, `\N`))
}

// drawLines draws lines of text onto a canvas with room around them.
func drawLines(ctx context.Context, t *ffmpeg.Tools, dir string, lines []string, p render.Position, size float64, maxW int) (image.Image, error) {
	const what = "draw the watermark"
	longest := 0
	for _, l := range lines {
		longest = max(longest, uniseg.StringWidth(l))
	}
	// A wide letter is about as wide as the font is high.
	w := max(maxW, int(float64(longest)*size)) + 2*int(size)
	h := int(float64(len(lines)+1)*size*lineHeight) + 2*int(size)
	if err := os.WriteFile(filepath.Join(dir, assFile), []byte(assScript(lines, p, size, w, h)), 0o600); err != nil {
		return nil, workerFault(what, err)
	}
	res, err := t.Run(ctx, ffmpeg.Cmd{
		Name: "draw watermark", Dir: dir,
		LogLevel: "info", // libass tells missing glyphs
		Inputs:   []ffmpeg.Input{{Path: fmt.Sprintf("color=c=black@0:s=%dx%d:r=1,format=rgba", w, h), Formats: ffmpeg.CanvasFormats, Format: "lavfi"}},
		Args: []string{
			"-frames:v", "1", "-vf", "ass=filename=" + assFile + ":alpha=1:shaping=complex",
			"-pix_fmt", "rgba", "-c:v", "png", "-f", "image2", "-update", "1", "file:" + canvasFile,
		},
	})
	if err != nil {
		return nil, runFailed(ctx, what, res, err)
	}
	if missing := missingGlyphs(res.Log.Lines()); len(missing) > 0 {
		if slices.ContainsFunc(missing, func(r rune) bool { return r < unicode.MaxASCII && unicode.IsLetter(r) }) {
			return nil, workerFault(what, errors.New("no fonts are installed"))
		}
		return nil, notRenderable(missing[0])
	}
	img, err := readPNG(filepath.Join(dir, canvasFile))
	if err != nil {
		return nil, workerFault(what, err)
	}
	return img, nil
}

// missingGlyph matches what libass logs once every font was tried. Its earlier
// "not found, selecting one more font" is no failure.
var missingGlyph = regexp.MustCompile(`(?:failed to find any fallback with glyph|Glyph) 0x([0-9A-Fa-f]+)(?: for font| not found in font)`)

// missingGlyphs reads from libass's log which characters no font has.
func missingGlyphs(log []string) []rune {
	var missing []rune
	for _, line := range log {
		m := missingGlyph.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		n, err := strconv.ParseInt(m[1], 16, 32)
		if err != nil || joinsOrDirects(rune(n)) || n == '\u2060' {
			continue
		}
		missing = append(missing, rune(n))
	}
	return missing
}
