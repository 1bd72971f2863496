package contract

import (
	"bytes"
	"context"
	"image"
	"image/png"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

func TestPreviewsAreScaledOnceForAllWhoWait(t *testing.T) {
	t.Parallel()
	var stored bytes.Buffer
	if err := png.Encode(&stored, image.NewRGBA(image.Rect(0, 0, 1280, 720))); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var opened atomic.Int32
		release := make(chan struct{})
		c := &farm.Content{
			Object: render.Object{Key: "k", Size: int64(stored.Len())},
			Open: func(context.Context, int64, int64) (io.ReadCloser, error) {
				opened.Add(1)
				<-release
				return io.NopCloser(bytes.NewReader(stored.Bytes())), nil
			},
		}
		p := newPreviews()
		first, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := p.scaled(first, c, 640); err == nil {
				t.Error("a caller that left got a preview")
			}
		})
		synctest.Wait()
		for range 20 {
			wg.Go(func() {
				b, err := p.scaled(t.Context(), c, 640)
				if err != nil {
					t.Errorf("scaled: %v", err)
					return
				}
				if head, err := png.DecodeConfig(bytes.NewReader(b)); err != nil || head.Width != 640 {
					t.Errorf("scaled to %d: %v", head.Width, err)
				}
			})
		}
		synctest.Wait()
		leave()
		synctest.Wait()
		close(release)
		wg.Wait()
		if n := opened.Load(); n != 1 {
			t.Errorf("read %d times", n)
		}
	})
}
