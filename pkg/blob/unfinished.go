package blob

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Unfinished is a multipart upload that was begun and neither completed nor
// given up.
type Unfinished struct {
	Key   string
	ID    string
	Begun time.Time
}

// maxList is the greatest number of entries in one answer.
const maxList = 1000

// ListUnfinished implements Store.
func (s *S3) ListUnfinished(ctx context.Context, prefix string) iter.Seq2[Unfinished, error] {
	return func(yield func(Unfinished, error) bool) {
		if err := checkPrefix(prefix); err != nil {
			yield(Unfinished{}, fmt.Errorf("blob: list uploads: %w", err))
			return
		}
		var keyMarker, idMarker string
		for {
			page := []Unfinished(nil)
			more := false
			err := s.do(ctx, s.cfg.Timeout, func(ctx context.Context, _ *watchdog) error {
				res, err := s.core.ListMultipartUploads(ctx, s.cfg.Bucket, prefix, keyMarker, idMarker, "", maxList)
				if err != nil {
					return err //nolint:wrapcheck // do wraps
				}
				page = page[:0]
				for _, u := range res.Uploads {
					page = append(page, Unfinished{Key: u.Key, ID: u.UploadID, Begun: u.Initiated})
				}
				more = res.IsTruncated && (res.NextKeyMarker != keyMarker || res.NextUploadIDMarker != idMarker)
				keyMarker, idMarker = res.NextKeyMarker, res.NextUploadIDMarker
				return nil
			})
			if err != nil {
				yield(Unfinished{}, fmt.Errorf("blob: list unfinished uploads of %s: %w", prefix, err))
				return
			}
			for _, u := range page {
				if !yield(u, nil) {
					return
				}
			}
			if !more {
				return
			}
		}
	}
}

// Abort implements Store.
func (s *S3) Abort(ctx context.Context, u Unfinished) error {
	if err := checkKey(u.Key); err != nil {
		return fmt.Errorf("blob: abort an upload: %w", err)
	}
	err := s.do(ctx, s.cfg.Timeout, func(ctx context.Context, _ *watchdog) error {
		return s.core.AbortMultipartUpload(ctx, s.cfg.Bucket, u.Key, u.ID)
	})
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("blob: abort an upload of %s: %w", u.Key, err)
	}
	return nil
}
