package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/minio/minio-go/v7"
)

// reader is the body of an object or of a range of it.
type reader struct {
	store *S3
	ctx   context.Context //nolint:containedctx // the body's, as of http.Response
	key   string
	etag  string
	// offset of the next byte, and how many are left.
	offset, left int64

	body     io.ReadCloser
	watchdog *watchdog
	got      int64 // from this body
	breaks   int   // without enough in between
	waits    *backoff.ExponentialBackOff
	err      error
}

// open asks for the bytes that are left. first is the first time, when left is
// the caller's wish (0 for everything).
func (r *reader) open(first bool) error {
	if err := checkKey(r.key); err != nil {
		return err
	}
	wanted := r.left
	err := r.store.do(r.ctx, r.store.cfg.Timeout, func(_ context.Context, try *watchdog) error {
		var o minio.GetObjectOptions
		if r.etag != "" {
			if err := o.SetMatchETag(r.etag); err != nil {
				return err //nolint:wrapcheck // do wraps
			}
		}
		partial := r.offset > 0 || wanted > 0
		if partial { // SetRange cannot say "the first byte only"
			o.Set("Range", rangeOf(r.offset, wanted))
		}
		ctx, w := watch(r.ctx, r.store.cfg.Timeout)                                          // not the try's: the body outlives it
		body, info, header, err := r.store.core.GetObject(ctx, r.store.cfg.Bucket, r.key, o) //nolint:contextcheck // see above
		if err != nil {
			w.stop()
			try.learn(w)
			return w.explain(err)
		}
		w.pause()
		size, err := r.check(info, header, partial, wanted)
		if err != nil {
			w.stop()
			return errors.Join(err, body.Close())
		}
		r.body, r.watchdog, r.etag, r.left, r.got = body, w, info.ETag, size, 0
		return nil
	})
	switch {
	case errors.Is(err, errPrecondition):
		return ErrChanged
	case err != nil && !first:
		return fmt.Errorf("resume at byte %d: %w", r.offset, err)
	}
	return err
}

// check makes sure that the answer is the part of the object that was asked
// for, and returns its length.
func (r *reader) check(info minio.ObjectInfo, header http.Header, partial bool, wanted int64) (int64, error) {
	if r.etag != "" && info.ETag != r.etag {
		return 0, ErrChanged
	}
	if info.Size < 0 {
		return 0, errors.New("the store did not tell the length")
	}
	if !partial {
		return info.Size, nil
	}
	if got := header.Get("Content-Range"); !strings.HasPrefix(got, fmt.Sprintf("bytes %d-%d/", r.offset, r.offset+info.Size-1)) {
		return 0, fmt.Errorf("%w: asked for %s, got %q", ErrMismatch, rangeOf(r.offset, wanted), got)
	}
	if wanted > 0 && info.Size != wanted {
		return 0, fmt.Errorf("%w: %d of %d bytes from byte %d: %w", ErrMismatch, info.Size, wanted, r.offset, io.ErrUnexpectedEOF)
	}
	return info.Size, nil
}

// rangeOf is the Range header of length bytes from offset, 0 for all.
func rangeOf(offset, length int64) string {
	if length == 0 {
		return fmt.Sprintf("bytes=%d-", offset)
	}
	return fmt.Sprintf("bytes=%d-%d", offset, offset+length-1)
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	if r.left == 0 {
		return 0, io.EOF
	}
	n, err := r.read(p)
	if err != nil {
		r.err = fmt.Errorf("blob: read %s: %w", r.key, err)
		return n, r.err
	}
	return n, nil
}

// enough is how many bytes a body must bring before its break counts as the
// first in a row: a store that breaks off after a few bytes each time would
// otherwise be asked for ever.
const enough = 32 << 10

func (r *reader) read(p []byte) (int, error) {
	for len(p) > 0 {
		r.watchdog.touch()
		n, err := r.body.Read(p[:min(int64(len(p)), r.left)])
		r.watchdog.pause()
		if n > 0 {
			r.offset += int64(n)
			if r.got += int64(n); r.got >= enough {
				r.breaks, r.waits = 0, nil
			}
			r.left -= int64(n)
			return n, nil // what else there was comes again, or does not matter
		}
		if err == nil {
			continue
		}
		if err = r.resume(r.watchdog.explain(err)); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// resume opens the rest of a body that broke off.
func (r *reader) resume(broken error) error {
	if errors.Is(broken, io.EOF) {
		broken = io.ErrUnexpectedEOF
	}
	if r.ctx.Err() != nil {
		return fmt.Errorf("given up: %w", context.Cause(r.ctx))
	}
	r.breaks++
	if r.breaks >= r.store.cfg.Attempts {
		return fmt.Errorf("%w: %d bytes are missing: %w", ErrUnavailable, r.left, broken)
	}
	r.release()
	if r.waits == nil {
		r.waits = r.store.waits()
	}
	wait := time.NewTimer(r.waits.NextBackOff())
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-r.ctx.Done():
		return fmt.Errorf("given up: %w", context.Cause(r.ctx))
	}
	return r.open(false)
}

func (r *reader) release() {
	if r.body != nil {
		r.watchdog.stop()
		_ = r.body.Close() // nothing was written, nothing can be lost
		r.body = nil
	}
}

// Close implements io.Closer.
func (r *reader) Close() error {
	r.release()
	if r.err == nil {
		r.err = fmt.Errorf("blob: read %s: %w", r.key, errClosed)
	}
	return nil
}

var errClosed = errors.New("closed")
