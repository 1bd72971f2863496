package contract

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"runtime"
	"time"

	"golang.org/x/image/draw"
	"golang.org/x/sync/singleflight"

	"github.com/vidforge/vidforge/pkg/farm"
)

const (
	// maxPreviewWidth is the widest preview inside a tool result, in pixels.
	maxPreviewWidth = 640
	// previewTimeout bounds how long a preview may take to be read and scaled.
	previewTimeout = 20 * time.Second
	// maxPreviewBytes is the largest preview that is sent.
	maxPreviewBytes = 1 << 20
	// maxPreviewPixels bounds what is decoded: a 4k picture has 8.3 million.
	maxPreviewPixels = 40_000_000
	// maxPreviewSource bounds what is read of a stored preview.
	maxPreviewSource = 64 << 20
)

var errPreviewTooLarge = errors.New("contract: preview is too large")

// readAll reads a whole stored object of a bounded size.
func readAll(ctx context.Context, c *farm.Content, most int64) (_ []byte, err error) {
	if c.Object.Size > most {
		return nil, fmt.Errorf("%w: %d bytes", errPreviewTooLarge, c.Object.Size)
	}
	r, err := c.Open(ctx, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", c.Name, err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", c.Name, err)
	}
	if int64(len(b)) > most {
		return nil, fmt.Errorf("%w: more than %d bytes", errPreviewTooLarge, most)
	}
	return b, nil
}

// previews scales previews for many callers at once: the same one is scaled once
// for all that wait for it, and only as many as there are cores are in memory,
// since a decoded one may take 160 MB.
type previews struct {
	flight singleflight.Group
	places chan struct{}
}

func newPreviews() *previews {
	return &previews{places: make(chan struct{}, runtime.GOMAXPROCS(0))}
}

func (p *previews) scaled(ctx context.Context, c *farm.Content, width int) ([]byte, error) {
	done := p.flight.DoChan(fmt.Sprintf("%s %d", c.Object.Key, width), func() (any, error) {
		// Those who wait may outlive the one who came first.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), previewTimeout)
		defer cancel()
		select {
		case p.places <- struct{}{}:
			defer func() { <-p.places }()
		case <-ctx.Done():
			return nil, fmt.Errorf("wait to scale a preview: %w", ctx.Err())
		}
		b, err := readAll(ctx, c, maxPreviewSource)
		if err != nil {
			return nil, err
		}
		return ScalePNG(b, width, maxPreviewBytes)
	})
	select {
	case res := <-done:
		b, _ := res.Val.([]byte)
		return b, res.Err
	case <-ctx.Done():
		return nil, fmt.Errorf("scale a preview: %w", ctx.Err())
	}
}

// ScalePNG makes a PNG at most width pixels wide and most bytes long, halving
// the width until it fits. A PNG that fits already is returned as it is.
func ScalePNG(b []byte, width, most int) ([]byte, error) {
	head, err := png.DecodeConfig(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("read preview: %w", err)
	}
	if head.Width <= width && len(b) <= most {
		return b, nil
	}
	if head.Width < 1 || head.Height < 1 || head.Width*head.Height > maxPreviewPixels {
		return nil, fmt.Errorf("%w: %d×%d", errPreviewTooLarge, head.Width, head.Height)
	}
	src, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("decode preview: %w", err)
	}
	for w := min(width, head.Width); w >= 1; w /= 2 {
		dst := image.NewRGBA(image.Rect(0, 0, w, max(1, head.Height*w/head.Width)))
		draw.CatmullRom.Scale(dst, dst.Bounds(), src, src.Bounds(), draw.Src, nil)
		var out bytes.Buffer
		if err := png.Encode(&out, dst); err != nil {
			return nil, fmt.Errorf("encode preview: %w", err)
		}
		if out.Len() <= most {
			return out.Bytes(), nil
		}
	}
	return nil, errPreviewTooLarge
}
