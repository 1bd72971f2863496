package farm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/render"
)

// refusing is a store that refuses whatever it could read.
type refusing struct {
	blob.Store
	err error
}

func (r refusing) Put(_ context.Context, _ string, body io.Reader, _ blob.PutOptions) (render.Object, error) {
	if _, err := io.Copy(io.Discard, body); err != nil {
		return render.Object{}, fmt.Errorf("put: %w: %w", blob.ErrBody, err)
	}
	return render.Object{}, r.err
}

// A store that cannot take the bytes is not the caller's fault, whatever it
// says; a body that cannot be read is not the store's.
func TestUploadTellsWhoseFaultItWas(t *testing.T) {
	t.Parallel()
	full := errors.New("no space left on device")
	for name, c := range map[string]struct {
		store error
		body  io.Reader
		want  render.Code
	}{
		"full store":   {full, strings.NewReader("x"), render.CodeUnavailable},
		"silent store": {fmt.Errorf("put: %w", blob.ErrUnavailable), strings.NewReader("x"), render.CodeUnavailable},
		"cut body":     {full, iotest.ErrReader(io.ErrUnexpectedEOF), render.CodeInvalidField},
	} {
		f := New(Stores{Blobs: refusing{err: c.store}}, Config{})
		_, err := f.Upload(t.Context(), "t", Upload{Size: -1, Body: c.body})
		if got := render.CodeOf(err); got != c.want {
			t.Errorf("%s: %s instead of %s (%v)", name, got, c.want, err)
		}
	}
}
