package farm

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/filename"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

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
		return nil, f.uploadTooLarge()
	}
	id := render.NewAssetID()
	// What has no record is swept when it is old: the upload ends before that.
	ctx, cancelUpload := context.WithTimeout(ctx, f.cfg.OrphanAge/2)
	defer cancelUpload()
	o, held, err := f.receive(ctx, tenant, id, u)
	if err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.UploadStored)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.ProbeWait+settleTimeout)
	defer cancel()
	now := f.now()
	asset := &render.Asset{ID: id, Tenant: tenant, Name: name, MIMEType: u.MIMEType, State: render.AssetProbing, Object: o, Created: now, Expires: now.Add(f.cfg.AssetRetention)}
	entry, err := f.stores.Ledger.CreateAsset(ctx, asset)
	if err != nil {
		f.removeOrphan(ctx, o.Key)
		f.releaseStorage(ctx, tenant, held)
		return nil, unavailable("store the asset's record", err)
	}
	f.settleStorage(ctx, tenant, held)
	failpoint.Hit(failpoint.UploadRecorded)
	if err := f.enqueueProbe(ctx, asset, u.Trace); err != nil {
		// Reconciliation publishes it again.
		f.log.WarnContext(ctx, "publish the probe", "asset", id, "error", err)
	}
	failpoint.Hit(failpoint.UploadPublished)
	return f.awaitProbe(ctx, entry.Asset), nil
}

// receive streams an upload's bytes into the store, within what its tenant may
// store. After an error nothing is left.
func (f *Farm) receive(ctx context.Context, tenant render.Tenant, id render.AssetID, u Upload) (o render.Object, held render.Hold, err error) {
	most := f.cfg.MaxAssetBytes
	defer func() {
		if err != nil && held.ID != "" {
			f.releaseStorage(ctx, tenant, held)
		}
	}()
	if u.Size < 0 {
		most, err = f.storageRoom(ctx, tenant)
	} else {
		held, err = f.holdStorage(ctx, tenant, "body", id, u.Size)
	}
	if err != nil {
		return o, held, err
	}
	o, err = f.stores.Blobs.Put(ctx, blob.SourceKey(tenant, id, render.NewAttemptID()), u.Body, blob.PutOptions{
		ContentType: "application/octet-stream", Size: u.Size, SHA256: u.SHA256, MaxSize: most,
	})
	switch {
	case errors.Is(err, blob.ErrTooLarge) && most < f.cfg.MaxAssetBytes:
		return o, held, f.overRoom(ctx, tenant, most)
	case errors.Is(err, blob.ErrTooLarge):
		return o, held, f.uploadTooLarge()
	case errors.Is(err, blob.ErrMismatch):
		return o, held, render.InvalidField("body", "", "The body does not have the announced length or SHA-256; the upload was cut off or changed on its way. Upload it again.").WithCause(err)
	case errors.Is(err, blob.ErrBody), err != nil && ctx.Err() != nil:
		return o, held, render.InvalidField("body", "", "The upload broke off before its end; nothing was kept. Upload it again.").WithCause(err)
	case err != nil:
		// Also what a store says for ever, such as that its disk is full: the
		// caller can do nothing else about it.
		return o, held, unavailable("store the upload", err)
	case o.Size == 0:
		f.removeOrphan(ctx, o.Key)
		return o, held, render.InvalidField("body", "", "The upload is empty; send the file's bytes as the request body.")
	}
	if u.Size < 0 {
		if held, err = f.holdStorage(ctx, tenant, "body", id, o.Size); err != nil { // others were faster
			f.removeOrphan(ctx, o.Key)
		}
	}
	return o, held, err
}

func (f *Farm) uploadTooLarge() *render.Error {
	return tooLarge("body", f.cfg.MaxAssetBytes, "upload a smaller file")
}

// tooLarge names the field and the limit.
func tooLarge(field string, limit int64, wayOut string) *render.Error {
	e := render.Errorf(render.CodeSourceTooLarge, render.BlameCaller, "The file exceeds the limit of %d bytes; %s.", limit, wayOut)
	e.Details = &render.Details{Field: field, Reason: fmt.Sprintf("more than %d bytes", limit), Extra: map[string]any{"limit_bytes": limit}}
	return e
}

// assetName keeps names in any script and drops what no name should hold.
func assetName(name string) (string, error) {
	clean, err := filename.Clean(name)
	if err != nil {
		return "", render.InvalidField("name", "", fmt.Sprintf("name cannot be taken: %s; send another one, or leave it out.", err))
	}
	return cmp.Or(clean, "upload"), nil
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

// awaitProbe looks at the asset until it is ready, or until the wait or ctx is
// over.
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
		now, err := f.asset(ctx, a.Tenant, a.ID)
		if err != nil {
			continue
		}
		if a = now; a.State == render.AssetReady {
			return a
		}
	}
}

// asset reads an asset, after a look for its probe's result if it waits for one.
func (f *Farm) asset(ctx context.Context, tenant render.Tenant, id render.AssetID) (*render.Asset, error) {
	entry, err := f.assetEntry(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	return f.probed(ctx, entry)
}

// advanceAsset writes a probe's result into the asset. A worker may not: the
// gateway that waits for the result, or the next that reads the asset, does.
func (f *Farm) advanceAsset(ctx context.Context, w render.Work) error {
	if f.worker() {
		return nil
	}
	_, err := f.asset(ctx, w.Tenant, w.Asset)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil
	}
	if err != nil {
		return unavailable("bring the asset up to date", err)
	}
	return nil
}

// probed writes the result of an asset's probe into the asset, if there is one.
func (f *Farm) probed(ctx context.Context, entry ledger.AssetEntry) (*render.Asset, error) {
	for entry.Asset.State == render.AssetProbing {
		res, err := f.stores.Ledger.GetResult(ctx, probeWork(entry.Asset))
		if errors.Is(err, ledger.ErrNotFound) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the probe's result: %w", err)
		}
		next := *entry.Asset
		next.State, next.Facts = render.AssetReady, res.Facts
		written, err := f.stores.Ledger.UpdateAsset(ctx, entry, &next)
		if errors.Is(err, ledger.ErrConflict) && ctx.Err() == nil {
			if entry, err = f.stores.Ledger.GetAsset(ctx, entry.Asset.Tenant, entry.Asset.ID); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("write the asset: %w", err)
		}
		failpoint.Hit(failpoint.AssetChanged)
		return written.Asset, nil
	}
	return entry.Asset, nil
}

// assetEntry reads an asset. ledger.ErrNotFound also for one that has expired:
// the ledger forgets it a moment later.
func (f *Farm) assetEntry(ctx context.Context, tenant render.Tenant, id render.AssetID) (ledger.AssetEntry, error) {
	entry, err := f.stores.Ledger.GetAsset(ctx, tenant, id)
	if err == nil && !f.now().Before(entry.Asset.Expires) {
		err = fmt.Errorf("asset %s has expired: %w", id, ledger.ErrNotFound)
	}
	return entry, err
}

// assetError is what a client is told when an asset cannot be read:
// source_not_found for unknown, foreign and expired ones alike.
func assetError(field string, id render.AssetID, err error) *render.Error {
	if errors.Is(err, ledger.ErrNotFound) {
		return render.SourceNotFound(field, id.URI())
	}
	return unavailable("read the asset", err)
}

// Asset returns what is known of an asset: source_not_found for unknown and
// foreign ids alike.
func (f *Farm) Asset(ctx context.Context, tenant render.Tenant, id render.AssetID) (*render.Asset, error) {
	a, err := f.asset(ctx, tenant, id)
	if err != nil {
		return nil, assetError("asset_uri", id, err)
	}
	return a, nil
}

// MaxAssetPage is the most assets of one page.
const MaxAssetPage = 1000

// Assets lists a tenant's assets in order of id, up to limit (1 to MaxAssetPage)
// after the cursor, which is "" or what an earlier page of the same tenant
// returned. What comes or goes between two pages is or is not among them; every
// other asset is, once. next is "" after the last page.
func (f *Farm) Assets(ctx context.Context, tenant render.Tenant, cursor string, limit int) (page []*render.Asset, next string, err error) {
	if limit < 1 || limit > MaxAssetPage {
		return nil, "", render.InvalidField("limit", "", fmt.Sprintf("limit must be a number from 1 to %d.", MaxAssetPage))
	}
	secret, err := f.stores.Ledger.Secret(ctx, "cursor")
	if err != nil {
		return nil, "", unavailable("read the secret of cursors", err)
	}
	after := render.AssetID("")
	if cursor != "" {
		var ok bool
		if after, ok = readCursor(secret, tenant, cursor); !ok {
			return nil, "", render.InvalidField("cursor", "", "cursor is not one that a listing of yours returned; leave it out to start from the beginning.")
		}
	}
	all, last, err := f.stores.Ledger.ListAssets(ctx, tenant, after, limit)
	if err != nil {
		return nil, "", unavailable("list assets", err)
	}
	now := f.now()
	for _, a := range all {
		if now.Before(a.Expires) {
			page = append(page, a)
		}
	}
	if last != "" {
		next = makeCursor(secret, tenant, last)
	}
	return page, next, nil
}

// A cursor is where a page ended, with a MAC that binds it to its tenant.
const cursorMAC = 12 // bytes

func makeCursor(secret []byte, tenant render.Tenant, at render.AssetID) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(tenant.Key() + string(at)))
	return base64.RawURLEncoding.EncodeToString(append(mac.Sum(nil)[:cursorMAC], at...))
}

func readCursor(secret []byte, tenant render.Tenant, cursor string) (render.AssetID, bool) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) < cursorMAC {
		return "", false
	}
	at, ok := render.ParseAssetID(string(b[cursorMAC:]))
	return at, ok && hmac.Equal([]byte(cursor), []byte(makeCursor(secret, tenant, at)))
}

// ErrInUse is the cause when an asset cannot be deleted because a render that
// is not finished uses it.
var ErrInUse = errors.New("farm: the asset is in use")

// DeleteAsset removes an asset and its bytes. While a render that is not
// finished uses it, as its source or its watermark, the error is asset_not_ready
// with ErrInUse as its cause (409 on the HTTP API). A deletion and a submit that
// meet may both succeed: then the asset is gone and its bytes stay until the
// render's end. What is deleted already is not found.
func (f *Farm) DeleteAsset(ctx context.Context, tenant render.Tenant, id render.AssetID) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	for {
		entry, err := f.assetEntry(ctx, tenant, id)
		if err != nil {
			return assetError("asset_id", id, err)
		}
		using, err := f.user(ctx, tenant.Key(), id)
		if err != nil {
			return err
		}
		if using != "" {
			return inUse(id, using)
		}
		err = f.stores.Ledger.DeleteAsset(ctx, entry)
		if errors.Is(err, ledger.ErrConflict) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return unavailable("delete the asset's record", err)
		}
		failpoint.Hit(failpoint.DeleteRecorded)
		// A render that was accepted in between keeps its bytes: see Submit.
		if using, err = f.user(ctx, tenant.Key(), id); err != nil || using != "" {
			f.log.InfoContext(ctx, "a deleted asset's bytes stay for now", "asset", id, "render_id", using, "error", err)
			return nil // the asset is deleted; its bytes are swept
		}
		f.removeOrphan(ctx, entry.Asset.Object.Key)
		return nil
	}
}

func inUse(id render.AssetID, using render.ID) *render.Error {
	e := render.Errorf(render.CodeAssetNotReady, render.BlameCaller, "A render that is not finished uses this asset; wait for it or cancel it first.")
	e.Details = &render.Details{Field: "asset_id", Value: id.URI(), Reason: "in use", Extra: map[string]any{"render_id": string(using)}}
	e.RetryAfter = 30 * time.Second
	return e.WithCause(ErrInUse)
}

// holdTime is how long an asset is kept at least after a render began to use it,
// and while the render is under way.
func (f *Farm) holdTime() time.Duration {
	return max(30*time.Minute, min(24*time.Hour, f.cfg.AssetRetention))
}

// hold puts an asset's expiry off if it is near. ledger.ErrNotFound when it is
// too late.
func (f *Farm) hold(ctx context.Context, tenant render.Tenant, id render.AssetID) error {
	for {
		entry, err := f.assetEntry(ctx, tenant, id)
		if err != nil {
			return err
		}
		now := f.now()
		if entry.Asset.Expires.Sub(now) >= f.holdTime()/2 {
			return nil
		}
		held := *entry.Asset
		held.Expires = now.Add(f.holdTime())
		_, err = f.stores.Ledger.UpdateAsset(ctx, entry, &held)
		if errors.Is(err, ledger.ErrConflict) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("hold asset %s: %w", id, err)
		}
		return nil
	}
}

// holdInputs puts off the expiry of what a render uses.
func (f *Farm) holdInputs(ctx context.Context, rec *render.Record) error {
	ids := []render.AssetID{rec.Source.Asset}
	if rec.Logo != nil {
		ids = append(ids, rec.Logo.Asset)
	}
	for _, id := range ids {
		if err := f.hold(ctx, rec.Tenant, id); err != nil && !errors.Is(err, ledger.ErrNotFound) {
			return err
		}
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
