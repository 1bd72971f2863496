package media

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/draw"
	"image/jpeg"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"

	xdraw "golang.org/x/image/draw"
	"golang.org/x/image/webp"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// maxPicturePixels bounds a watermark picture: decoded, a small PNG of many
// pixels takes a gigabyte.
const maxPicturePixels = 24_000_000

// maxPictureBytes bounds a watermark picture's file.
const maxPictureBytes = 32 << 20

// Picture kinds, as render.Facts.Container names them.
const (
	picturePNG  = "png"
	pictureJPEG = "jpeg"
	pictureWebP = "webp"
)

// pictureKind tells a still picture by its magic, "" for anything else.
func pictureKind(head []byte) string {
	switch {
	case bytes.HasPrefix(head, []byte("\x89PNG\r\n\x1a\n")):
		return picturePNG
	case bytes.HasPrefix(head, []byte("\xff\xd8\xff")):
		return pictureJPEG
	case len(head) >= 12 && string(head[:4]) == "RIFF" && string(head[8:12]) == "WEBP":
		return pictureWebP
	}
	return ""
}

// pictureInput opens a picture with the demuxer of its kind and no other.
func pictureInput(path, kind string) ffmpeg.Input {
	demuxer := kind + "_pipe"
	return ffmpeg.Input{Path: path, Formats: demuxer, Format: demuxer}
}

// pictureConfig reads a picture's size without decoding it. A picture that is no
// good is an *unfit.
func pictureConfig(path, kind string) (image.Config, error) {
	f, size, err := openFile(path)
	if err != nil {
		return image.Config{}, workerFault("read the picture", err)
	}
	defer f.Close()
	if size > maxPictureBytes {
		return image.Config{}, tooLarge("The picture has %d bytes; the farm takes up to %d.", size, maxPictureBytes)
	}
	decode := png.DecodeConfig
	switch kind {
	case pictureJPEG:
		decode = jpeg.DecodeConfig
	case pictureWebP:
		decode = webp.DecodeConfig
	}
	c, err := decode(f)
	if err == nil && int64(c.Width)*int64(c.Height) > maxPicturePixels {
		return c, tooLarge("The picture has %d×%d pixels; the farm takes up to %d million pixels.", c.Width, c.Height, maxPicturePixels/1_000_000)
	}
	if _, serr := f.Seek(0, io.SeekStart); serr != nil {
		return c, workerFault("read the picture", serr)
	}
	if cerr := checkPicture(f, kind); cerr != nil && (err == nil || errors.Is(cerr, errAnimated)) {
		err = cerr // that it is animated says more than what the decoder says of it
	}
	switch {
	case errors.Is(err, errAnimated):
		return c, errAnimated
	case err != nil && isPathError(err):
		return c, workerFault("read the picture", err)
	case err != nil:
		return c, unsupported("The %s picture is damaged or cut off; upload it again, whole.", kind)
	}
	return c, nil
}

func probePicture(ctx context.Context, t *ffmpeg.Tools, dir, path, kind string, f *render.Facts) error {
	f.Container = kind
	w, h, err := shownPicture(ctx, t, dir, path, kind)
	if err != nil {
		return err
	}
	f.Kind, f.Width, f.Height = kindImage, w, h
	return unsupported("The file is a still picture: it can be a watermark (watermark.image_asset_uri), not the source of a video.")
}

// shownPicture proves that a picture can be decoded and returns its size as it
// is shown, that is, turned as its EXIF data says. A picture that is no good is
// an *unfit.
func shownPicture(ctx context.Context, t *ffmpeg.Tools, dir, path, kind string) (w, h int, err error) {
	c, err := pictureConfig(path, kind)
	if err != nil {
		return 0, 0, err
	}
	i, err := look(ctx, t, dir, pictureInput(path, kind), "-err_detect", "explode", "-show_frames", "-read_intervals", "%+#1",
		"-show_entries", "frame=stream_index,width,height:frame_side_data=side_data_type,rotation")
	if _, bad := errors.AsType[*unfit](err); err != nil && !bad {
		return 0, 0, err
	}
	// The size that the limit was held against must be that of the pixels.
	if err != nil || len(i.Frames) == 0 || i.Frames[0].Width != c.Width || i.Frames[0].Height != c.Height || c.Width <= 0 || c.Height <= 0 {
		return 0, 0, unsupported("The %s picture is damaged or cut off; upload it again, whole.", kind)
	}
	w, h = i.Frames[0].Width, i.Frames[0].Height
	if rotation(i.Frames[0].SideData)%180 != 0 {
		w, h = h, w
	}
	return w, h, nil
}

func isPathError(err error) bool {
	var p *os.PathError
	return errors.As(err, &p)
}

const (
	// A picture is drawn as high as this part of the video's height, and at
	// most as wide as that part of its width.
	pictureHeightPart = 0.15
	pictureWidthPart  = 1.0 / 3
	// maxEnlarge keeps tiny pictures from becoming a blur.
	maxEnlarge = 4
)

// pictureSize computes the size in the video, W×H, of a w×h picture.
func pictureSize(w, h, width, height int) (int, int) {
	s := min(float64(height)*pictureHeightPart/float64(h), float64(width)*pictureWidthPart/float64(w), maxEnlarge)
	side := func(x, most int) int { return min(max(1, int(math.Round(float64(x)*s))), most) }
	return side(w, width), side(h, height)
}

// drawPicture scales a watermark picture to its size in the video.
func drawPicture(ctx context.Context, t *ffmpeg.Tools, dir, path string, width, height int) (string, error) {
	head, _, err := readHead(path)
	if err != nil {
		return "", workerFault("read the watermark picture", err)
	}
	kind := pictureKind(head)
	if kind == "" {
		return "", pictureFault(unsupported("The file is not a PNG, JPEG or WebP picture."))
	}
	w, h, err := shownPicture(ctx, t, dir, path, kind)
	if u, bad := errors.AsType[*unfit](err); bad {
		return "", pictureFault(u)
	}
	if err != nil {
		return "", err
	}
	w, h = pictureSize(w, h, width, height)
	out := filepath.Join(dir, overlayFile)
	// Scaling colours apart from their opacity would bleed what is under
	// transparent parts into the edges.
	res, err := t.Run(ctx, ffmpeg.Cmd{
		Name: "draw watermark", Dir: dir, Inputs: []ffmpeg.Input{pictureInput(path, kind)},
		Args: []string{
			"-frames:v", "1", "-map_metadata", "-1",
			"-vf", fmt.Sprintf("format=gbrap,premultiply=inplace=1,scale=w=%d:h=%d:flags=lanczos+accurate_rnd,format=gbrap,unpremultiply=inplace=1,setsar=1,format=rgba", w, h),
			"-c:v", "png", "-f", "image2", "-update", "1", "file:" + overlayFile,
		},
	})
	if err != nil {
		return "", runFailed(ctx, "draw the watermark", res, err)
	}
	if gotW, gotH, err := pngSize(out); err != nil || gotW != w || gotH != h {
		return "", workerFault("draw the watermark", errors.Join(err, fmt.Errorf("got %d×%d instead of %d×%d", gotW, gotH, w, h)))
	}
	return out, nil
}

// pictureFault is the client's error of an unfit watermark picture.
func pictureFault(u *unfit) *render.Error {
	e := render.Errorf(u.code, render.BlameSource, "%s", u.reason)
	e.Details = &render.Details{Field: "watermark.image_asset_uri", Reason: u.reason}
	return e
}

// decodeConfig reads the size of a PNG.
func decodeConfig(r io.Reader) (w, h int, err error) {
	c, err := png.DecodeConfig(r)
	if err != nil {
		return 0, 0, fmt.Errorf("read the head of a png: %w", err)
	}
	return c.Width, c.Height, nil
}

// readPNG decodes a PNG that the worker made.
func readPNG(path string) (image.Image, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open picture: %w", err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		return nil, fmt.Errorf("decode picture: %w", err)
	}
	return img, nil
}

// writePNG replaces the file at path.
func writePNG(path string, img image.Image, level png.CompressionLevel) error {
	var b bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: level}).Encode(&b, img); err != nil {
		return fmt.Errorf("encode picture: %w", err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		return fmt.Errorf("write picture: %w", err)
	}
	return nil
}

// inked is the smallest rectangle that holds everything visible.
func inked(img image.Image) image.Rectangle {
	n, ok := img.(*image.NRGBA)
	if !ok {
		n = image.NewNRGBA(img.Bounds())
		draw.Draw(n, n.Bounds(), img, img.Bounds().Min, draw.Src)
	}
	var box image.Rectangle
	for y := n.Rect.Min.Y; y < n.Rect.Max.Y; y++ {
		row := n.Pix[(y-n.Rect.Min.Y)*n.Stride:][:4*n.Rect.Dx()]
		for i := 3; i < len(row); i += 4 {
			if row[i] == 0 {
				continue
			}
			x := n.Rect.Min.X + i/4
			box = box.Union(image.Rect(x, y, x+1, y+1))
		}
	}
	return box
}

// resize returns the part of img scaled to w×h.
func resize(img image.Image, part image.Rectangle, w, h int) *image.NRGBA {
	out := image.NewNRGBA(image.Rect(0, 0, w, h))
	if part.Dx() == w && part.Dy() == h {
		draw.Draw(out, out.Bounds(), img, part.Min, draw.Src)
		return out
	}
	xdraw.CatmullRom.Scale(out, out.Bounds(), img, part, xdraw.Src, nil)
	return out
}
