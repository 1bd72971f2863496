package farm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"time"

	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

const (
	// finalizeGrace is how long after its URL has expired an upload may still
	// be finalised: one that began in time may take long.
	finalizeGrace = 6 * time.Hour
	// finalizeLimit bounds the copying and hashing of one upload.
	finalizeLimit = time.Hour
	// plainType is the media type of what nobody named.
	plainType = "application/octet-stream"
	// maxMIMEType is the longest media type in bytes.
	maxMIMEType = 127
)

// Announcement is a file that a client wants to put into the store itself.
type Announcement struct {
	Name     string
	MIMEType string // "" is application/octet-stream
	Size     int64  // bytes
}

// Presigned is the right to put one file into the store. The URL is a
// credential: it is neither stored nor logged.
type Presigned struct {
	Asset *render.Asset
	URL   string
	// Header is what the client must send: it is part of the signature.
	Header  http.Header
	Expires time.Time
}

var _ slog.LogValuer = Presigned{}

// LogValue keeps the URL out of logs.
func (p Presigned) LogValue() slog.Value {
	return slog.GroupValue(slog.Any("asset", p.Asset.ID), slog.Time("expires", p.Expires))
}

// PresignUpload makes a pending asset and signs a URL at which a client puts its
// bytes. FinalizeUpload makes it an asset like any other.
func (f *Farm) PresignUpload(ctx context.Context, tenant render.Tenant, a Announcement) (*Presigned, error) {
	name, err := assetName(a.Name)
	if err != nil {
		return nil, err
	}
	if a.MIMEType, err = mediaType(a.MIMEType); err != nil {
		return nil, err
	}
	switch {
	case a.Size <= 0:
		return nil, render.InvalidField("size_bytes", "", "size_bytes must be the file's length in bytes, at least 1.")
	case a.Size > f.cfg.MaxAssetBytes:
		return nil, tooLarge("size_bytes", f.cfg.MaxAssetBytes, "upload a smaller file")
	case a.Size > f.cfg.MaxPresignBytes:
		return nil, tooLarge("size_bytes", f.cfg.MaxPresignBytes, "a presigned upload is a single request; send a larger file to POST /v1/assets, which streams")
	}
	id := render.NewAssetID()
	held, err := f.holdStorage(ctx, tenant, "size_bytes", id, a.Size)
	if err != nil {
		return nil, err
	}
	key := blob.IncomingKey(tenant, id)
	p := &Presigned{}
	p.URL, p.Header, p.Expires, err = f.stores.Blobs.PresignPut(ctx, key, blob.PresignOptions{TTL: f.cfg.PresignTTL, Size: a.Size, ContentType: a.MIMEType})
	if err != nil {
		f.releaseStorage(ctx, tenant, held)
		return nil, unavailable("sign an upload", err)
	}
	now := f.now()
	p.Asset = &render.Asset{
		ID: id, Tenant: tenant, Name: name, MIMEType: a.MIMEType, State: render.AssetPending, Object: render.Object{Key: key, Size: a.Size},
		Created: now, Expires: now.Add(f.cfg.PresignTTL + finalizeGrace),
	}
	if _, err := f.stores.Ledger.CreateAsset(ctx, p.Asset); err != nil {
		return nil, unavailable("store the asset's record", err) // perhaps written: its bytes stay held
	}
	f.settleStorage(ctx, tenant, held)
	return p, nil
}

func mediaType(s string) (string, error) {
	if s == "" {
		return plainType, nil
	}
	t, _, err := mime.ParseMediaType(s)
	if err != nil || len(s) > maxMIMEType {
		return "", render.InvalidField("mime_type", "", "mime_type must be a media type such as video/mp4; leave it out when it is unknown.")
	}
	return t, nil
}

// FinalizeUpload makes a pending asset whose bytes have arrived an asset like
// any other: it copies them to a key that nobody else writes, hashes what is
// stored there, and has it probed, as Upload does. It may be called again at any
// time, also after it was interrupted and by two at once: then it returns the
// asset that is there, and first is false.
//
// Before the bytes have arrived the error is asset_not_ready, and source_not_found
// once they cannot arrive any more, since the URL has expired.
func (f *Farm) FinalizeUpload(ctx context.Context, tenant render.Tenant, id render.AssetID, trace render.TraceContext) (a *render.Asset, first bool, err error) {
	entry, err := f.assetEntry(ctx, tenant, id)
	if err != nil {
		return nil, false, assetError("asset_id", id, err)
	}
	if entry.Asset.State == render.AssetPending {
		// A caller that goes away leaves a finished asset behind, not a half one.
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(finalizeLimit, f.cfg.OrphanAge/2))
		defer cancel()
		if entry, first, err = f.finalize(work, entry, trace); err != nil {
			return nil, false, err
		}
	}
	return f.awaitProbe(ctx, entry.Asset), first, nil
}

func (f *Farm) finalize(ctx context.Context, entry ledger.AssetEntry, trace render.TraceContext) (ledger.AssetEntry, bool, error) {
	pending := entry.Asset
	o, err := f.settleIncoming(ctx, pending)
	if err != nil {
		// Another call may have finalised it and removed what came in.
		again, rerr := f.assetEntry(ctx, pending.Tenant, pending.ID)
		if rerr == nil && again.Asset.State != render.AssetPending {
			return again, false, nil
		}
		return entry, false, err
	}
	failpoint.Hit(failpoint.FinalizeCopied)
	asset := *pending
	asset.State, asset.Object, asset.Expires = render.AssetProbing, o, f.now().Add(f.cfg.AssetRetention)
	next, err := f.stores.Ledger.UpdateAsset(ctx, entry, &asset)
	if errors.Is(err, ledger.ErrConflict) { // finalised by another call, or deleted
		f.removeOrphan(ctx, o.Key)
		next, err = f.assetEntry(ctx, pending.Tenant, pending.ID)
		if err != nil {
			return entry, false, assetError("asset_id", pending.ID, err)
		}
		return next, false, nil
	}
	if err != nil {
		return entry, false, unavailable("write the asset", err) // perhaps written: the copy is not removed
	}
	failpoint.Hit(failpoint.FinalizeRecorded)
	if err := f.enqueueProbe(ctx, next.Asset, trace); err != nil {
		// Reconciliation publishes it again.
		f.log.WarnContext(ctx, "publish the probe", "asset", pending.ID, "error", err)
	}
	failpoint.Hit(failpoint.FinalizePublished)
	f.removeOrphan(ctx, pending.Object.Key)
	return next, true, nil
}

// settleIncoming copies what a client put into the store, and hashes the copy:
// whatever the client does to its own key meanwhile, the hash is that of the
// bytes that are used.
func (f *Farm) settleIncoming(ctx context.Context, a *render.Asset) (render.Object, error) {
	var none render.Object
	in, err := f.stores.Blobs.Stat(ctx, a.Object.Key)
	if errors.Is(err, blob.ErrNotFound) {
		return none, f.notArrived(a)
	}
	if err != nil {
		return none, unavailable("look for the upload", err)
	}
	if in.Size != a.Object.Size {
		return none, render.InvalidField("size_bytes", "",
			fmt.Sprintf("The stored file has %d bytes and not the announced %d; put it again, whole, or presign again with its real size_bytes.", in.Size, a.Object.Size))
	}
	o, err := f.stores.Blobs.Copy(ctx, in, blob.SourceKey(a.Tenant, a.ID, render.NewAttemptID()))
	switch {
	case errors.Is(err, blob.ErrChanged):
		e := render.Errorf(render.CodeAssetNotReady, render.BlameCaller, "The file was put again while it was finalised; finalize once it is whole.")
		e.RetryAfter = 2 * time.Second
		e.Details = &render.Details{Field: "asset_id", Value: a.ID.URI(), Reason: "replaced meanwhile"}
		return none, e.WithCause(err)
	case errors.Is(err, blob.ErrNotFound):
		return none, f.notArrived(a)
	case err != nil:
		return none, unavailable("copy the upload", err)
	}
	if o.SHA256, err = f.hash(ctx, o); err != nil {
		f.removeOrphan(ctx, o.Key)
		return none, unavailable("hash the upload", err)
	}
	return o, nil
}

// notArrived is the error of an upload without bytes.
func (f *Farm) notArrived(a *render.Asset) *render.Error {
	if !f.now().Before(a.Expires.Add(-finalizeGrace)) {
		e := render.SourceNotFound("asset_id", a.ID.URI())
		e.Message = "The upload URL expired before a file arrived; presign again and put the file to the new URL."
		e.Details.Reason = "the upload URL expired unused"
		return e
	}
	e := render.Errorf(render.CodeAssetNotReady, render.BlameCaller, "No file has arrived yet; put it to upload_url with the headers of the presign answer, then finalize again.")
	e.RetryAfter = 2 * time.Second
	e.Details = &render.Details{Field: "asset_id", Value: a.ID.URI(), Reason: "no file has arrived"}
	return e
}

// hash reads a pinned object and returns its SHA-256 in hex.
func (f *Farm) hash(ctx context.Context, o render.Object) (string, error) {
	r, err := f.stores.Blobs.Get(ctx, o.Key, blob.GetOptions{ETag: o.ETag})
	if err != nil {
		return "", fmt.Errorf("open: %w", err)
	}
	sum := sha256.New()
	n, err := io.Copy(sum, r)
	if err = errors.Join(err, r.Close()); err != nil {
		return "", fmt.Errorf("read: %w", err)
	}
	if n != o.Size {
		return "", fmt.Errorf("read %d bytes, not %d", n, o.Size)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
