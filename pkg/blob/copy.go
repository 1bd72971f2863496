package blob

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/minio/minio-go/v7"

	"github.com/vidforge/vidforge/pkg/render"
)

// Copy implements Store. That the key is free is looked up beforehand: stores
// do not agree on conditional copies, and keys are unique by their attempt id.
// What the writer of the source said about it, such as a media type, is not
// copied.
func (s *S3) Copy(ctx context.Context, from render.Object, to string) (render.Object, error) {
	if err := errors.Join(checkKey(from.Key), checkKey(to)); err != nil {
		return render.Object{}, fmt.Errorf("blob: copy: %w", err)
	}
	o, err := s.copy(ctx, from, to)
	if errors.Is(err, errPrecondition) {
		err = ErrChanged
	}
	if err != nil {
		return render.Object{}, fmt.Errorf("blob: copy %s to %s: %w", from.Key, to, err)
	}
	return o, nil
}

const copyType = "application/octet-stream"

func (s *S3) copy(ctx context.Context, from render.Object, to string) (render.Object, error) {
	switch _, err := s.head(ctx, to); {
	case err == nil:
		return render.Object{}, ErrExists
	case !errors.Is(err, ErrNotFound):
		return render.Object{}, err
	}
	if from.Size > s.cfg.MaxCopy {
		return s.copyParts(ctx, from, to)
	}
	err := s.do(ctx, 10*s.cfg.Timeout, func(ctx context.Context, _ *watchdog) error {
		_, err := s.core.Client.CopyObject(ctx,
			minio.CopyDestOptions{Bucket: s.cfg.Bucket, Object: to, ReplaceMetadata: true, ContentType: copyType},
			minio.CopySrcOptions{Bucket: s.cfg.Bucket, Object: from.Key, MatchETag: from.ETag})
		return err //nolint:wrapcheck // do wraps
	})
	if err != nil {
		return render.Object{}, err
	}
	info, err := s.head(ctx, to)
	if err != nil {
		return render.Object{}, err
	}
	if info.Size != from.Size {
		return render.Object{}, fmt.Errorf("%w: %d bytes, not %d", ErrMismatch, info.Size, from.Size)
	}
	return render.Object{Key: to, ETag: info.ETag, Size: info.Size, SHA256: from.SHA256}, nil
}

// copyParts copies a large object as the parts of a multipart upload, each
// pinned to the same source.
func (s *S3) copyParts(ctx context.Context, from render.Object, to string) (obj render.Object, err error) {
	u := &upload{store: s, key: to, o: PutOptions{ContentType: copyType}, mark: rand.Text(), size: from.Size}
	if err := u.begin(ctx); err != nil {
		return render.Object{}, err
	}
	defer func() {
		if err != nil {
			err = u.abort(ctx, err, &obj)
		}
	}()
	size := max(s.cfg.MaxCopy, (from.Size+maxParts-1)/maxParts)
	for at := int64(0); at < from.Size; at += size {
		var part minio.CompletePart
		number := len(u.parts) + 1
		err := s.do(ctx, 10*s.cfg.Timeout, func(ctx context.Context, _ *watchdog) (err error) {
			part, err = s.core.CopyObjectPart(ctx, s.cfg.Bucket, from.Key, s.cfg.Bucket, to, u.id, number, at, min(size, from.Size-at),
				map[string]string{"x-amz-copy-source-if-match": `"` + from.ETag + `"`})
			return err //nolint:wrapcheck // do wraps
		})
		if err != nil {
			return render.Object{}, fmt.Errorf("part %d: %w", number, err)
		}
		u.parts = append(u.parts, part)
	}
	err = s.do(ctx, 10*s.cfg.Timeout, func(ctx context.Context, _ *watchdog) error {
		_, err := s.core.CompleteMultipartUpload(ctx, s.cfg.Bucket, to, u.id, u.parts, u.options())
		return err //nolint:wrapcheck // do wraps
	})
	if err != nil && errors.Is(err, errPrecondition) { // here it is the key that was taken
		return render.Object{}, ErrExists
	}
	return u.settle(ctx, from.SHA256, err)
}
