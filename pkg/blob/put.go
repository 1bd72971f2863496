package blob

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/render"
)

// markHeader is the user metadata that holds an upload's mark.
const markHeader = "Vidforge-Put"

// settleTime bounds the look at the key after a failure.
const settleTime = 5 * time.Second

// upload is one Put on its way.
type upload struct {
	store *S3
	key   string
	o     PutOptions
	mark  string

	body io.Reader
	hash hash.Hash
	size int64 // read so far

	id    string // of the multipart upload, "" before there is one
	parts []minio.CompletePart
	sum   string // of the whole body, set when the upload's end is asked for
}

// anywhere is a body that can be read at any place, again and again.
type anywhere interface {
	io.ReaderAt
	io.Seeker
}

// Put implements Store.
func (s *S3) Put(ctx context.Context, key string, body io.Reader, o PutOptions) (render.Object, error) {
	if err := checkKey(key); err != nil {
		return render.Object{}, fmt.Errorf("blob: put: %w", err)
	}
	u := &upload{store: s, key: key, o: o, mark: rand.Text(), body: body, hash: sha256.New()}
	obj, err := u.run(ctx)
	if err != nil {
		return render.Object{}, fmt.Errorf("blob: put %s: %w", key, err)
	}
	return obj, nil
}

func (u *upload) run(ctx context.Context) (obj render.Object, err error) {
	if u.o.MaxSize > 0 && u.o.Size > u.o.MaxSize {
		return render.Object{}, ErrTooLarge
	}
	defer func() {
		if err != nil && u.id != "" {
			err = u.abort(ctx, err, &obj)
		}
	}()
	if file, ok := u.body.(anywhere); ok && u.o.Size > u.partSize() {
		return u.parallel(ctx, file)
	}
	buf, release := u.buffer()
	defer release()
	n, more, err := u.fill(buf)
	if err != nil {
		return render.Object{}, err
	}
	if !more {
		return u.single(ctx, buf[:n])
	}
	if err := u.begin(ctx); err != nil {
		return render.Object{}, err
	}
	for n > 0 {
		number := len(u.parts) + 1
		if number > maxParts {
			return render.Object{}, ErrTooLarge
		}
		part, err := u.part(ctx, number, bytes.NewReader(buf[:n]), sha256.Sum256(buf[:n]))
		if err != nil {
			return render.Object{}, err
		}
		u.parts = append(u.parts, part)
		if n = 0; more {
			if n, more, err = u.fill(buf); err != nil {
				return render.Object{}, err
			}
		}
	}
	return u.complete(ctx)
}

// parallel uploads the parts of a file, several at once. A part is read twice:
// for its hash, in order, and on its way to the store.
func (u *upload) parallel(ctx context.Context, file anywhere) (render.Object, error) {
	base, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return render.Object{}, fmt.Errorf("%w: %w", ErrBody, err)
	}
	if err := u.begin(ctx); err != nil {
		return render.Object{}, err
	}
	size := u.partSize()
	u.parts = make([]minio.CompletePart, (u.o.Size+size-1)/size)
	var g errgroup.Group
	g.SetLimit(u.store.cfg.Parallel)
	var stop atomic.Bool
	for i := range u.parts {
		if stop.Load() {
			break
		}
		at := int64(i) * size
		section := io.NewSectionReader(file, base+at, min(size, u.o.Size-at))
		var sum [sha256.Size]byte
		if sum, err = u.digest(section); err != nil {
			break
		}
		g.Go(func() (err error) {
			if u.parts[i], err = u.part(ctx, i+1, section, sum); err != nil {
				stop.Store(true)
			}
			return err
		})
	}
	// Parts on their way come to their end even if another has failed: a store
	// may keep one that arrives after the upload was aborted.
	if err = cmp.Or(err, g.Wait()); err != nil {
		return render.Object{}, err //nolint:wrapcheck // each part's own
	}
	if u.size, err = u.length(file, base); err != nil {
		return render.Object{}, err
	}
	return u.complete(ctx)
}

// digest returns the hash of a section of a file and adds it to the whole one's.
func (u *upload) digest(section *io.SectionReader) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	switch n, err := io.Copy(io.MultiWriter(u.hash, h), section); {
	case err != nil:
		return sum, fmt.Errorf("%w: %w", ErrBody, err)
	case n < section.Size():
		return sum, fmt.Errorf("%w: shorter than %d bytes", ErrMismatch, u.o.Size)
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// length is how many bytes a file has from base to its end, at most one more
// than announced.
func (u *upload) length(file anywhere, base int64) (int64, error) {
	switch _, err := file.ReadAt(make([]byte, 1), base+u.o.Size); {
	case err == nil:
		return 0, fmt.Errorf("%w: longer than %d bytes", ErrMismatch, u.o.Size)
	case !errors.Is(err, io.EOF):
		return 0, fmt.Errorf("%w: %w", ErrBody, err)
	}
	return u.o.Size, nil
}

// partSize is the length of all parts but the last: large enough that the
// greatest allowed body fits into the allowed number of parts.
func (u *upload) partSize() int64 {
	return max(u.store.cfg.PartSize, (max(u.o.Size, u.o.MaxSize)+maxParts-1)/maxParts)
}

// buffer holds a part, and is no larger than an announced body with one byte
// to see that it is longer.
func (u *upload) buffer() (buf []byte, release func()) {
	size := u.partSize()
	if u.o.Size >= 0 && u.o.Size < size {
		return make([]byte, u.o.Size+1), func() {}
	}
	if size > u.store.cfg.PartSize {
		return make([]byte, size), func() {}
	}
	p, ok := u.store.buffers.Get().(*[]byte)
	if !ok {
		b := make([]byte, size)
		p = &b
	}
	return *p, func() { u.store.buffers.Put(p) }
}

// fill reads the next part. more is false at the end of the body. Only io.EOF is
// an end: io.ReadFull would make one of the io.ErrUnexpectedEOF with which the
// body of a cut request ends.
func (u *upload) fill(buf []byte) (n int, more bool, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = u.body.Read(buf[n:])
		n += m
	}
	if err != nil && err != io.EOF { // a wrapped EOF is a failure
		return 0, false, fmt.Errorf("%w: %w", ErrBody, err)
	}
	u.size += int64(n)
	u.hash.Write(buf[:n])
	switch {
	case u.o.MaxSize > 0 && u.size > u.o.MaxSize:
		return 0, false, ErrTooLarge
	case u.o.Size >= 0 && u.size > u.o.Size:
		return 0, false, fmt.Errorf("%w: longer than %d bytes", ErrMismatch, u.o.Size)
	}
	return n, err == nil, nil
}

// verify compares the whole body with what was announced and returns its hash.
func (u *upload) verify() (string, error) {
	sum := hex.EncodeToString(u.hash.Sum(nil))
	if u.o.Size >= 0 && u.size != u.o.Size {
		return "", fmt.Errorf("%w: %d bytes, not %d", ErrMismatch, u.size, u.o.Size)
	}
	if u.o.SHA256 != "" && !strings.EqualFold(sum, u.o.SHA256) {
		return "", fmt.Errorf("%w: SHA-256 is %s, not %s", ErrMismatch, sum, u.o.SHA256)
	}
	return sum, nil
}

func (u *upload) options() minio.PutObjectOptions {
	o := minio.PutObjectOptions{
		ContentType:          u.o.ContentType,
		UserMetadata:         map[string]string{markHeader: u.mark},
		DisableContentSha256: true, // the hash of the whole part is signed instead
	}
	o.SetMatchETagExcept("*")
	return o
}

func (u *upload) single(ctx context.Context, data []byte) (render.Object, error) {
	sum, err := u.verify()
	if err != nil {
		return render.Object{}, err
	}
	obj := render.Object{Key: u.key, Size: u.size, SHA256: sum}
	err = u.store.do(ctx, u.store.cfg.Timeout, func(ctx context.Context, w *watchdog) error {
		info, err := u.store.core.PutObject(ctx, u.store.cfg.Bucket, u.key, &feed{Reader: bytes.NewReader(data), w: w}, int64(len(data)), "", sum, u.options())
		obj.ETag = info.ETag
		return err //nolint:wrapcheck // do wraps
	})
	if err != nil {
		return u.settle(ctx, sum, err)
	}
	return obj, nil
}

func (u *upload) begin(ctx context.Context) error {
	err := u.store.do(ctx, u.store.cfg.Timeout, func(ctx context.Context, _ *watchdog) (err error) {
		u.id, err = u.store.core.NewMultipartUpload(ctx, u.store.cfg.Bucket, u.key, u.options())
		return err //nolint:wrapcheck // do wraps
	})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	return nil
}

// part uploads one part of the given hash. It may be called at once for several.
func (u *upload) part(ctx context.Context, number int, data sized, sum [sha256.Size]byte) (minio.CompletePart, error) {
	var part minio.CompletePart
	err := u.store.do(ctx, u.store.cfg.Timeout, func(ctx context.Context, w *watchdog) error {
		if _, err := data.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("%w: %w", ErrBody, err)
		}
		in := &feed{Reader: data, w: w}
		p, err := u.store.core.PutObjectPart(ctx, u.store.cfg.Bucket, u.key, u.id, number, in, data.Size(),
			minio.PutObjectPartOptions{Sha256Hex: hex.EncodeToString(sum[:]), DisableContentSha256: true})
		if broken := in.failed.Load(); err != nil && broken != nil {
			return fmt.Errorf("%w: %w", ErrBody, *broken)
		}
		part = minio.CompletePart{PartNumber: p.PartNumber, ETag: p.ETag}
		return err //nolint:wrapcheck // do wraps
	})
	if err != nil {
		return part, fmt.Errorf("part %d: %w", number, err)
	}
	failpoint.Hit(failpoint.PartStored)
	return part, nil
}

// sized is a part's bytes.
type sized interface {
	io.ReadSeeker
	Size() int64
}

// complete makes the object visible. The answer's ETag is not taken for it: a
// store may answer a repeated request, while the first one still runs, with
// something else.
func (u *upload) complete(ctx context.Context) (render.Object, error) {
	sum, err := u.verify()
	if err != nil {
		return render.Object{}, err
	}
	u.sum = sum
	err = u.store.do(ctx, 10*u.store.cfg.Timeout, func(ctx context.Context, _ *watchdog) error {
		_, err := u.store.core.CompleteMultipartUpload(ctx, u.store.cfg.Bucket, u.key, u.id, u.parts, u.options())
		return err //nolint:wrapcheck // do wraps
	})
	return u.settle(ctx, sum, err)
}

// settle looks at the key after a finished multipart upload, and after a
// failure whose request may have reached the store all the same.
func (u *upload) settle(ctx context.Context, sum string, failed error) (render.Object, error) {
	if failed != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), min(u.store.cfg.Timeout, settleTime))
		defer cancel()
	}
	info, err := u.store.head(ctx, u.key)
	switch {
	case err == nil && info.UserMetadata[markHeader] == u.mark && info.Size == u.size:
		return render.Object{Key: u.key, ETag: info.ETag, Size: info.Size, SHA256: sum}, nil
	case errors.Is(failed, errPrecondition), failed == nil && err == nil: // another's
		return render.Object{}, ErrExists
	case failed == nil:
		return render.Object{}, fmt.Errorf("confirm: %w", err)
	}
	return render.Object{}, failed
}

// aborts is how often an upload is aborted until the store knows none: a part
// that was still on its way may bring it back.
const aborts = 3

// abort removes the parts of a failed upload. A store that knows no such upload
// may have ended it well after all: then the answer was lost, and the upload is
// a success.
func (u *upload) abort(ctx context.Context, failed error, obj *render.Object) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), u.store.cfg.Timeout)
	defer cancel()
	var err error
	for n := 0; n < aborts && err == nil; n++ {
		err = u.store.do(ctx, u.store.cfg.Timeout, func(ctx context.Context, _ *watchdog) error {
			err := u.store.core.AbortMultipartUpload(ctx, u.store.cfg.Bucket, u.key, u.id)
			return err //nolint:wrapcheck // do wraps
		})
		if n > 0 && errors.Is(err, ErrNotFound) {
			return failed
		}
	}
	switch {
	case err == nil:
		return failed
	case !errors.Is(err, ErrNotFound):
		return errors.Join(failed, fmt.Errorf("abort: %w", err))
	case u.sum == "" || errors.Is(failed, ErrExists): // its end was never asked for, or settled
		return failed
	}
	*obj, err = u.settle(ctx, u.sum, failed)
	return err
}

// feed hands out a part and tells the watchdog that the store takes it.
type feed struct {
	io.Reader
	w      *watchdog
	failed atomic.Pointer[error] // what the reader said, but for its end
}

// Read implements io.Reader.
func (f *feed) Read(p []byte) (int, error) {
	f.w.touch()
	n, err := f.Reader.Read(p)
	if err != nil && err != io.EOF {
		f.failed.Store(&err)
	}
	return n, err //nolint:wrapcheck // io.EOF stays itself
}
