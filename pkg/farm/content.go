package farm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/render"
)

// Video returns the finished video: resource_not_ready while there may be one
// later, resource_not_found when there will be none.
func (f *Farm) Video(ctx context.Context, tenant render.Tenant, id render.ID) (*Content, error) {
	entry, err := f.entry(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	rec := entry.Record
	switch {
	case rec.Output != nil:
		name := strings.TrimSuffix(rec.Source.Name, path.Ext(rec.Source.Name)) + "." + string(rec.Spec.Format)
		return f.content(rec, rec.Output.Object, name, rec.Spec.Format.MIMEType(), rec.Ended)
	case rec.State.Terminal():
		return nil, noResource("The render ended without a video.")
	default:
		return nil, notYet("The video is not finished yet.")
	}
}

// Preview returns the watermark preview, as Video does.
func (f *Farm) Preview(ctx context.Context, tenant render.Tenant, id render.ID) (*Content, error) {
	entry, err := f.entry(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	rec := entry.Record
	switch {
	case rec.Preview != nil:
		return f.content(rec, rec.Preview.Object, "watermark-preview.png", "image/png", rec.Preview.Ready)
	case rec.State.Terminal() || !rec.Spec.NeedsApproval():
		return nil, noResource("This render has no watermark preview.")
	default:
		return nil, notYet("The watermark preview is not made yet.")
	}
}

func noResource(message string) *render.Error {
	return render.Errorf(render.CodeResourceNotFound, render.BlameCaller, "%s", message)
}

func notYet(message string) *render.Error {
	e := render.Errorf(render.CodeResourceNotReady, render.BlameCaller, "%s", message)
	e.RetryAfter = 2 * time.Second
	return e
}

// content serves an object of a render. What a worker said is the render's
// object is only believed below the render's own prefix: gateways may read
// everything.
func (f *Farm) content(rec *render.Record, o render.Object, name, mime string, modified time.Time) (*Content, error) {
	if !strings.HasPrefix(o.Key, blob.RenderPrefix(rec.Tenant, rec.ID)) {
		return nil, noResource("The object is not stored with the render.")
	}
	return &Content{
		Object: o, Name: name, MIMEType: mime, Modified: modified,
		Open: func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
			r, err := f.stores.Blobs.Get(ctx, o.Key, blob.GetOptions{ETag: o.ETag, Offset: offset, Length: length})
			if errors.Is(err, blob.ErrNotFound) {
				return nil, noResource("The object is past its retention.").WithCause(err)
			}
			if err != nil {
				return nil, unavailable("open an object", err)
			}
			return r, nil
		},
		Presign: func(ctx context.Context, ttl time.Duration) (string, time.Time, error) {
			url, expires, err := f.stores.Blobs.PresignGet(ctx, o, blob.PresignOptions{TTL: ttl, Filename: name, ContentType: mime})
			if err != nil {
				return "", time.Time{}, unavailable("sign a download", err)
			}
			return url, expires, nil
		},
	}, nil
}

// ErrGone is the cause when a pinned object is gone or was replaced.
var ErrGone = errors.New("farm: the stored object is gone")

// Fetch downloads a pinned object into a new file of a worker's job directory.
// An object that is gone fails the job, with ErrGone as its cause.
func (f *Farm) Fetch(ctx context.Context, o render.Object, file string) error {
	err := f.stores.Blobs.Download(ctx, o, file)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, blob.ErrNotFound), errors.Is(err, blob.ErrChanged):
		return render.Errorf(render.CodeRenderFailed, render.BlameJob, "The farm lost a part of this render; submit it again.").WithCause(fmt.Errorf("%w: %w", ErrGone, err))
	case errors.Is(err, blob.ErrFile), errors.Is(err, blob.ErrMismatch):
		// A worker's disk, or a way to the store that changes bytes: another
		// worker may have better ones.
		return workerFault("fetch an object", err)
	default:
		return unavailable("fetch an object", err)
	}
}

// Store uploads a file that an attempt made, under a key that only this attempt
// uses.
func (c *Claim) Store(ctx context.Context, name, contentType string, body io.Reader, size int64) (render.Object, error) {
	o, err := c.farm.stores.Blobs.Put(ctx, blob.WorkKey(c.Work, c.Attempt, name), body, blob.PutOptions{ContentType: contentType, Size: size})
	switch {
	case err == nil:
		c.hit(failpoint.WorkStored)
		return o, nil
	case errors.Is(err, blob.ErrBody), errors.Is(err, blob.ErrMismatch):
		return o, workerFault("read "+name, err)
	default:
		return o, unavailable("store "+name, err)
	}
}

// workerFault is what this process could not do by itself.
func workerFault(doing string, err error) *render.Error {
	return render.Errorf(render.CodeRenderFailed, render.BlameWorker, "A worker of the farm could not do its work.").WithCause(fmt.Errorf("%s: %w", doing, err))
}

// Fetch is Farm.Fetch for the claim's worker.
func (c *Claim) Fetch(ctx context.Context, o render.Object, file string) error {
	return c.farm.Fetch(ctx, o, file)
}

// EncodeResults returns the results of the encode step: the segments in order,
// and the audio's, nil when silent.
func (c *Claim) EncodeResults(ctx context.Context) (segments []*render.StageResult, audio *render.StageResult, err error) {
	results, err := c.farm.stores.Ledger.Results(ctx, c.Work.Tenant, c.Work.Task, c.Work.Generation)
	if err != nil {
		return nil, nil, unavailable("read results", err)
	}
	segments = make([]*render.StageResult, len(c.Record.Plan.Segments))
	for _, r := range results {
		switch {
		case r.Work.Stage == render.StageAudio:
			audio = r
		case r.Work.Stage == render.StageSegment && r.Work.Index < len(segments):
			segments[r.Work.Index] = r
		}
	}
	for i, s := range segments {
		if s == nil {
			return nil, nil, unavailable("read results", fmt.Errorf("segment %d has none", i))
		}
	}
	if c.Record.Plan.HasAudio && audio == nil {
		return nil, nil, unavailable("read results", errors.New("the audio has none"))
	}
	return segments, audio, nil
}

// removeExcept deletes every object of a render's stages but those to keep.
func (f *Farm) removeExcept(ctx context.Context, rec *render.Record, keep map[string]bool) error {
	var keys []string
	for info, err := range f.stores.Blobs.List(ctx, blob.RenderPrefix(rec.Tenant, rec.ID)) {
		if err != nil {
			return fmt.Errorf("list leftovers: %w", err)
		}
		if !keep[info.Key] {
			keys = append(keys, info.Key)
		}
	}
	if err := f.stores.Blobs.Delete(ctx, keys...); err != nil {
		return fmt.Errorf("delete leftovers: %w", err)
	}
	return nil
}
