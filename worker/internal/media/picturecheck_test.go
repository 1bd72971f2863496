package media

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// sized changes the size in a PNG's head, with the right checksum.
func sized(b []byte, w, h uint32) []byte {
	b = bytes.Clone(b)
	binary.BigEndian.PutUint32(b[16:], w)
	binary.BigEndian.PutUint32(b[20:], h)
	binary.BigEndian.PutUint32(b[29:], crc32.ChecksumIEEE(b[12:29]))
	return b
}

// encodedPictures are still pictures of 40×30 of every kind that is taken.
func encodedPictures(t *testing.T, tools *ffmpeg.Tools) map[string][]byte {
	t.Helper()
	dir := t.TempDir()
	const still = "testsrc2=size=40x30:rate=4:duration=0.25"
	read := func(inputs []string, args, file string) []byte {
		b, err := os.ReadFile(recipe{inputs: inputs, args: args, file: file}.make(t, tools, dir))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	pictures := map[string][]byte{
		"png":           read([]string{still}, "-frames:v 1", "a.png"),
		"png 16 bit":    read([]string{still}, "-frames:v 1 -pix_fmt rgba64be", "b.png"),
		"png gray":      read([]string{still}, "-frames:v 1 -pix_fmt gray", "c.png"),
		"png mono":      read([]string{still}, "-frames:v 1 -pix_fmt monob", "d.png"),
		"jpeg":          read([]string{still}, "-frames:v 1", "a.jpg"),
		"webp":          read([]string{still}, "-frames:v 1", "a.webp"),
		"webp lossless": read([]string{still}, "-frames:v 1 -lossless 1", "b.webp"),
		"webp alpha":    read([]string{"color=red@0.5:size=40x30,format=rgba"}, "-frames:v 1 -pix_fmt yuva420p", "c.webp"),
	}
	var gray, paletted bytes.Buffer
	if err := jpeg.Encode(&gray, image.NewGray(image.Rect(0, 0, 40, 30)), nil); err != nil {
		t.Fatal(err)
	}
	if err := png.Encode(&paletted, image.NewPaletted(image.Rect(0, 0, 40, 30), color.Palette{color.White, color.Black})); err != nil {
		t.Fatal(err)
	}
	pictures["jpeg gray"], pictures["png palette"] = gray.Bytes(), paletted.Bytes()
	return pictures
}

func TestPictureThatIsWhatItSays(t *testing.T) {
	t.Parallel()
	tools := tools(t)
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "_"))
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, b := range encodedPictures(t, tools) {
		if f := probeFile(t, tools, write(name, b)); f.Kind != "image" || f.Width != 40 || f.Height != 30 || f.Renderable {
			t.Errorf("%s: %+v", name, f)
		}
		for _, part := range []int{50, 99} {
			cut := fmt.Sprintf("%s, %d%%", name, part)
			if f := probeFile(t, tools, write(cut, b[:len(b)*part/100])); f.Kind != "other" || f.Code != render.CodeUnsupportedCodec {
				t.Errorf("%s: %+v", cut, f)
			}
		}
	}
	still := encodedPictures(t, tools)["png"]
	animated := func(args, file string) []byte {
		b, err := os.ReadFile(recipe{inputs: []string{"testsrc2=size=40x30:rate=4:duration=1"}, args: args, file: file}.make(t, tools, dir))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	broken := bytes.Clone(still)
	broken[len(broken)/2] ^= 1
	for name, c := range map[string]struct {
		file   []byte
		reason string
	}{
		"animated png":  {animated("-f apng", "moves.png"), "animated"},
		"animated webp": {animated("-loop 0", "moves.webp"), "animated"},
		"taller png":    {sized(still, 40, 60), "damaged"},
		"lower png":     {sized(still, 40, 15), "damaged"},
		"wider png":     {sized(still, 80, 30), "damaged"},
		"flipped bit":   {broken, "damaged"},
		"many pixels":   {sized(still, 5000, 5000), "5000×5000 pixels; the farm takes up to 24 million"},
		"many bytes":    {append(bytes.Clone(still), make([]byte, maxPictureBytes)...), "the farm takes up to 33554432"},
	} {
		if f := probeFile(t, tools, write(name, c.file)); f.Kind != "other" || !strings.Contains(f.Reason, c.reason) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func FuzzCheckPicture(f *testing.F) {
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 3, 2))); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes(), true)
	f.Add([]byte("RIFF\x0c\x00\x00\x00WEBPANIM\x00\x00\x00\x00"), false)
	f.Fuzz(func(t *testing.T, b []byte, isPNG bool) {
		if !isPNG {
			_ = checkPicture(bytes.NewReader(b), pictureWebP) // it ends
			return
		}
		if pictureKind(b) != picturePNG || checkPicture(bytes.NewReader(b), picturePNG) != nil {
			return
		}
		c, err := png.DecodeConfig(bytes.NewReader(b))
		if err != nil || c.Width*c.Height > 1<<20 {
			return
		}
		if _, err := png.Decode(bytes.NewReader(b)); err != nil && strings.Contains(err.Error(), "pixel data") {
			t.Errorf("another decoder: %v", err)
		}
	})
}
