package farm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

// maxAssetName is the longest name of an asset in bytes.
const maxAssetName = 255

// Upload streams a file into the store as it arrives, then has it probed. It
// waits up to Config.ProbeWait for that; an asset that is returned in state
// probing will be ready later. After an error nothing is left.
func (f *Farm) Upload(ctx context.Context, tenant render.Tenant, u Upload) (*render.Asset, error) {
	name, err := assetName(u.Name)
	if err != nil {
		return nil, err
	}
	if u.Size == 0 {
		return nil, render.InvalidField("body", "", "The upload is empty; send the file's bytes as the request body.")
	}
	if u.Size > f.cfg.MaxAssetBytes {
		return nil, f.tooLarge()
	}
	id := render.NewAssetID()
	// What has no record is swept when it is old: the upload ends before that.
	ctx, cancelUpload := context.WithTimeout(ctx, f.cfg.OrphanAge/2)
	defer cancelUpload()
	o, err := f.stores.Blobs.Put(ctx, blob.SourceKey(tenant, id, render.NewAttemptID()), u.Body, blob.PutOptions{
		ContentType: "application/octet-stream", Size: u.Size, SHA256: u.SHA256, MaxSize: f.cfg.MaxAssetBytes,
	})
	switch {
	case errors.Is(err, blob.ErrTooLarge):
		return nil, f.tooLarge()
	case errors.Is(err, blob.ErrMismatch):
		return nil, render.InvalidField("body", "", "The body does not have the announced length or SHA-256; the upload was cut off or changed on its way. Upload it again.").WithCause(err)
	case errors.Is(err, blob.ErrBody), err != nil && ctx.Err() != nil:
		return nil, render.InvalidField("body", "", "The upload broke off before its end; nothing was kept. Upload it again.").WithCause(err)
	case err != nil:
		// Also what a store says for ever, such as that its disk is full: the
		// caller can do nothing else about it.
		return nil, unavailable("store the upload", err)
	case o.Size == 0:
		f.removeOrphan(ctx, o.Key)
		return nil, render.InvalidField("body", "", "The upload is empty; send the file's bytes as the request body.")
	}
	failpoint.Hit(failpoint.UploadStored)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.ProbeWait+settleTimeout)
	defer cancel()
	now := f.now()
	asset := &render.Asset{ID: id, Tenant: tenant, Name: name, MIMEType: u.MIMEType, State: render.AssetProbing, Object: o, Created: now, Expires: now.Add(f.cfg.AssetRetention)}
	entry, err := f.stores.Ledger.CreateAsset(ctx, asset)
	if err != nil {
		f.removeOrphan(ctx, o.Key)
		return nil, unavailable("store the asset's record", err)
	}
	failpoint.Hit(failpoint.UploadRecorded)
	if err := f.enqueueProbe(ctx, asset, u.Trace); err != nil {
		// Reconciliation publishes it again.
		f.log.WarnContext(ctx, "publish the probe", "asset", id, "error", err)
	}
	failpoint.Hit(failpoint.UploadPublished)
	return f.awaitProbe(ctx, entry.Asset), nil
}

func (f *Farm) tooLarge() *render.Error {
	e := render.Errorf(render.CodeSourceTooLarge, render.BlameCaller, "The upload exceeds this farm's limit of %d bytes; upload a smaller file.", f.cfg.MaxAssetBytes)
	e.Details = &render.Details{Field: "body", Reason: fmt.Sprintf("more than %d bytes", f.cfg.MaxAssetBytes)}
	return e
}

// assetName keeps names in any script and drops what no name should hold.
func assetName(name string) (string, error) {
	if !utf8.ValidString(name) {
		return "", render.InvalidField("name", "", "name is not valid UTF-8.")
	}
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || reorders(r) {
			return -1
		}
		return r
	}, name)
	name = strings.TrimSpace(name)
	switch {
	case name == "":
		return "upload", nil
	case len(name) > maxAssetName:
		return "", render.InvalidField("name", "", fmt.Sprintf("name is longer than %d bytes; shorten it.", maxAssetName))
	}
	return name, nil
}

// reorders reports whether a character turns the text around it: a name such as
// "film\u202e4pm.exe" would be shown as another one. Marks that only belong to a
// script's spelling stay.
func reorders(r rune) bool {
	return r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069'
}

func (f *Farm) removeOrphan(ctx context.Context, key string) {
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := f.stores.Blobs.Delete(ctx, key); err != nil {
		f.log.WarnContext(ctx, "remove an upload that is not kept", "error", err)
	}
}

func probeWork(a *render.Asset) render.Work {
	return render.Work{Tenant: a.Tenant, Asset: a.ID, Generation: 1, Stage: render.StageProbe}
}

func (f *Farm) enqueueProbe(ctx context.Context, a *render.Asset, trace render.TraceContext) error {
	if err := f.stores.Jobs.Enqueue(ctx, jobs.Message{Work: probeWork(a), Trace: trace}); err != nil {
		return fmt.Errorf("publish the probe of %s: %w", a.ID, err)
	}
	return nil
}

// awaitProbe looks at the asset until it is ready or the wait is over.
func (f *Farm) awaitProbe(ctx context.Context, a *render.Asset) *render.Asset {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.ProbeWait)
	defer cancel()
	for delay := 20 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		timer := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			timer.Stop()
			return a
		case <-timer.C:
		}
		entry, err := f.stores.Ledger.GetAsset(ctx, a.Tenant, a.ID)
		if err != nil {
			continue
		}
		if a = entry.Asset; a.State == render.AssetReady {
			return a
		}
	}
}

// advanceAsset writes a probe's result into the asset.
func (f *Farm) advanceAsset(ctx context.Context, w render.Work) error {
	for {
		entry, err := f.stores.Ledger.GetAsset(ctx, w.Tenant, w.Asset)
		if errors.Is(err, ledger.ErrNotFound) {
			return nil
		}
		if err != nil {
			return unavailable("read the asset", err)
		}
		if entry.Asset.State != render.AssetProbing {
			return nil
		}
		res, err := f.stores.Ledger.GetResult(ctx, w)
		if errors.Is(err, ledger.ErrNotFound) {
			return nil
		}
		if err != nil {
			return unavailable("read the probe's result", err)
		}
		next := *entry.Asset
		next.State, next.Facts = render.AssetReady, res.Facts
		_, err = f.stores.Ledger.UpdateAsset(ctx, entry, &next)
		if errors.Is(err, ledger.ErrConflict) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return unavailable("write the asset", err)
		}
		failpoint.Hit(failpoint.AssetChanged)
		return nil
	}
}

// Asset returns what is known of an asset: source_not_found for unknown and
// foreign ids alike.
func (f *Farm) Asset(ctx context.Context, tenant render.Tenant, id render.AssetID) (*render.Asset, error) {
	entry, err := f.stores.Ledger.GetAsset(ctx, tenant, id)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, render.SourceNotFound("asset_uri", id.URI())
	}
	if err != nil {
		return nil, unavailable("read the asset", err)
	}
	return entry.Asset, nil
}

// Assets lists a tenant's assets, up to limit (1 to 1000) after the cursor.
func (f *Farm) Assets(ctx context.Context, tenant render.Tenant, cursor string, limit int) (page []*render.Asset, next string, err error) {
	after := render.AssetID("")
	if cursor != "" {
		id, ok := render.ParseAssetID(cursor)
		if !ok {
			return nil, "", render.InvalidField("cursor", "", "cursor is not one that a listing returned; leave it out to start from the beginning.")
		}
		after = id
	}
	if limit < 1 || limit > 1000 {
		return nil, "", render.InvalidField("limit", "", "limit must be from 1 to 1000.")
	}
	page, last, err := f.stores.Ledger.ListAssets(ctx, tenant, after, limit)
	if err != nil {
		return nil, "", unavailable("list assets", err)
	}
	return page, string(last), nil
}

// ErrInUse is the cause when an asset cannot be deleted because a render that
// is not finished uses it.
var ErrInUse = errors.New("farm: the asset is in use")

// DeleteAsset removes an asset and its bytes. While a render uses it, the error
// is asset_not_ready with ErrInUse as its cause (409 on the HTTP API).
func (f *Farm) DeleteAsset(ctx context.Context, tenant render.Tenant, id render.AssetID) error {
	entry, err := f.stores.Ledger.GetAsset(ctx, tenant, id)
	if errors.Is(err, ledger.ErrNotFound) {
		return render.SourceNotFound("asset_id", id.URI())
	}
	if err != nil {
		return unavailable("read the asset", err)
	}
	using, err := f.user(ctx, tenant.Key(), id)
	if err != nil {
		return err
	}
	if using != "" {
		e := render.Errorf(render.CodeAssetNotReady, render.BlameCaller, "A render that is not finished uses this asset; wait for it or cancel it first.")
		e.Details = &render.Details{Field: "asset_id", Value: id.URI(), Reason: "in use", Extra: map[string]any{"render_id": string(using)}}
		e.RetryAfter = 30 * time.Second
		return e.WithCause(ErrInUse)
	}
	if err := f.stores.Ledger.DeleteAsset(ctx, entry); err != nil {
		return unavailable("delete the asset's record", err)
	}
	failpoint.Hit(failpoint.DeleteRecorded)
	// A render may have been accepted in between; then its bytes stay.
	if using, err = f.user(ctx, tenant.Key(), id); err != nil || using != "" {
		return err
	}
	if err := f.stores.Blobs.Delete(ctx, entry.Asset.Object.Key); err != nil {
		f.log.WarnContext(ctx, "delete the asset's bytes", "asset", id, "error", err)
	}
	return nil
}

// user returns a render that is not finished and uses the asset, or "". Every
// such render holds a slot.
func (f *Farm) user(ctx context.Context, tenantKey string, id render.AssetID) (render.ID, error) {
	holders, err := f.stores.Ledger.SlotsOf(ctx, tenantKey)
	if err != nil {
		return "", unavailable("read the slots", err)
	}
	for _, holder := range holders {
		entry, err := f.stores.Ledger.RenderOf(ctx, tenantKey, holder.Task)
		if errors.Is(err, ledger.ErrNotFound) {
			continue
		}
		if err != nil {
			return "", unavailable("read a render", err)
		}
		rec := entry.Record
		if !rec.State.Terminal() && (rec.Source.Asset == id || (rec.Logo != nil && rec.Logo.Asset == id)) {
			return rec.ID, nil
		}
	}
	return "", nil
}
