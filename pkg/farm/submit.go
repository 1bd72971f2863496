package farm

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

const idempotencySecret = "idempotency"

// Submit accepts a render, durably, before it returns. With an idempotency key
// the same arguments give the same render; existing tells that it was there
// already. A definite refusal leaves nothing behind.
func (f *Farm) Submit(ctx context.Context, tenant render.Tenant, s Submission) (v *View, existing bool, err error) {
	spec, err := render.Normalize(s.Request)
	if err != nil {
		return nil, false, err
	}
	spec.Hardware = f.cfg.Hardware
	ctx, cancel := detached(ctx)
	defer cancel()
	sub := &submission{farm: f, tenant: tenant, spec: spec, trace: s.Trace, id: render.NewID(),
		window: cmp.Or(s.IdempotencyWindow, render.IdempotencyWindow), taskRetention: render.TaskRetentionFor(s.TaskRetention)}
	if s.Request.IdempotencyKey != nil {
		if err := sub.bind(ctx, *s.Request.IdempotencyKey); err != nil {
			return nil, false, err
		}
		failpoint.Hit(failpoint.SubmitBound)
		if sub.found != nil {
			return f.view(ctx, sub.found), true, nil
		}
	}
	entry, created, err := sub.create(ctx)
	if err != nil {
		sub.undo(ctx, err)
		return nil, false, err
	}
	failpoint.Hit(failpoint.SubmitRecorded)
	if entry, existing, err = sub.confirm(ctx, entry); err != nil {
		return nil, false, err
	}
	failpoint.Hit(failpoint.SubmitConfirmed)
	// From here on the render exists. What fails now is put right by
	// reconciliation, so the answer is yes.
	if err := f.settle(ctx, entry.Record); err != nil {
		f.log.WarnContext(ctx, "publish first stage", "render_id", entry.Record.ID, "error", err)
	}
	failpoint.Hit(failpoint.SubmitPublished)
	return f.view(ctx, entry.Record), existing || !created, nil
}

// submission is one Submit on its way.
type submission struct {
	farm   *Farm
	tenant render.Tenant
	spec   render.Spec
	trace  render.TraceContext
	id     render.ID
	window time.Duration
	// taskRetention is zero where the submitter asked for none.
	taskRetention time.Duration
	keyHash       string
	binding       ledger.Binding
	found         *render.Record
}

// bind binds the key to the new id, or finds the id that it is bound to. Whoever
// finds a binding without a render (the first caller died) makes that render.
func (s *submission) bind(ctx context.Context, key string) error {
	secret, err := s.farm.stores.Ledger.Secret(ctx, idempotencySecret)
	if err != nil {
		return unavailable("read the idempotency secret", err)
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(s.tenant.Key() + "\x00" + key))
	if s.window != render.IdempotencyWindow {
		mac.Write([]byte("\x00" + s.window.String()))
	}
	s.keyHash = hex.EncodeToString(mac.Sum(nil))
	return s.rebind(ctx)
}

func (s *submission) rebind(ctx context.Context) error {
	got, created, err := s.farm.stores.Ledger.Bind(ctx, s.tenant, s.keyHash, ledger.Binding{Task: s.id, SpecHash: s.spec.Hash()}, s.window)
	if err != nil {
		return unavailable("bind the idempotency key", err)
	}
	if got.SpecHash != s.spec.Hash() {
		e := render.Errorf(render.CodeIdempotencyKeyReused, render.BlameCaller,
			"This idempotency_key belongs to a render with other arguments. Send a new key, or the same arguments as before.")
		e.Details = &render.Details{Field: "idempotency_key", Reason: "bound to a render with other arguments",
			Extra: map[string]any{"render_id": string(got.Task)}}
		return e
	}
	s.binding, s.id = got, got.Task
	if created {
		return nil
	}
	entry, err := s.farm.stores.Ledger.GetRender(ctx, s.tenant, s.id)
	switch {
	case err == nil:
		s.found = entry.Record
	case !errors.Is(err, ledger.ErrNotFound):
		return unavailable("read the bound render", err)
	}
	return nil
}

func (s *submission) create(ctx context.Context) (entry ledger.RenderEntry, created bool, err error) {
	f := s.farm
	source, logo, err := f.inputs(ctx, s.tenant, s.spec)
	if err != nil {
		return entry, false, err
	}
	if err := f.holdFor(ctx, s.tenant, source, logo); err != nil {
		return entry, false, err
	}
	rec := render.New(s.id, s.tenant, s.spec, *source, logo, f.now())
	length := f.length(source, s.spec)
	if err := f.hasTime(ctx, rec, length); err != nil {
		return entry, false, err
	}
	slots := f.LimitsOf(s.tenant).MaxConcurrent
	slot, err := f.stores.Ledger.TakeSlot(ctx, s.tenant, s.id, slots)
	if errors.Is(err, ledger.ErrNoSlot) {
		// One that a worker ended holds its slot until a gateway has looked.
		if err := f.reconcileSlotsOf(ctx, s.tenant); err != nil {
			return entry, false, unavailable("look for slots of ended renders", err)
		}
		slot, err = f.stores.Ledger.TakeSlot(ctx, s.tenant, s.id, slots)
	}
	if errors.Is(err, ledger.ErrNoSlot) {
		return entry, false, noSlot(slots)
	}
	if err != nil {
		return entry, false, unavailable("take a slot", err)
	}
	failpoint.Hit(failpoint.SubmitSlotted)
	if err := f.reserveTime(ctx, rec, length); err != nil {
		s.giveUpSlot(ctx, slot, err)
		return entry, false, err
	}
	rec.Slot, rec.Trace, rec.IdempotencyKeyHash, rec.TaskRetention = slot, s.trace, s.keyHash, s.taskRetention
	entry, err = f.stores.Ledger.CreateRender(ctx, rec)
	if errors.Is(err, ledger.ErrExists) { // another holder of the same key was faster
		entry, err = f.stores.Ledger.GetRender(ctx, s.tenant, s.id)
		if err != nil {
			return entry, false, unavailable("read the render that another made", err)
		}
		// Of two that came in the same millisecond, both have the same hold.
		if !entry.Record.Created.Equal(rec.Created) {
			f.releaseTime(ctx, rec)
		}
		return entry, false, nil
	}
	if err != nil {
		return entry, false, unavailable("store the render", err)
	}
	if gone := f.vanished(ctx, s.tenant, source, logo); gone != nil {
		// A deletion came between: the render says so itself.
		entry, _, err = f.change(ctx, s.tenant, s.id, func(*render.Record) render.Event { return render.Failed{Failure: *gone} })
		if err != nil {
			return entry, false, err
		}
	}
	return entry, true, nil
}

// giveUpSlot frees the slot of a render that is refused after all. With a key,
// another caller may use the slot for the same render just now: then it is left
// to reconciliation, which frees it when no render came of it.
func (s *submission) giveUpSlot(ctx context.Context, slot int, cause error) {
	if render.CodeOf(cause) == render.CodeUnavailable || s.keyHash != "" {
		return
	}
	if err := s.farm.stores.Ledger.FreeSlot(ctx, s.tenant, slot, s.id); err != nil {
		s.farm.log.WarnContext(ctx, "free a slot, left to reconciliation", "render_id", s.id, "error", err)
	}
}

// undo takes back what a definite refusal must not leave. What cannot be taken
// back is found by reconciliation (slots) or expires (bindings).
func (s *submission) undo(ctx context.Context, cause error) {
	if render.CodeOf(cause) == render.CodeUnavailable || s.keyHash == "" {
		return
	}
	failpoint.Hit(failpoint.SubmitRefused)
	if err := s.farm.stores.Ledger.Unbind(ctx, s.tenant, s.keyHash, s.binding); err != nil {
		s.farm.log.WarnContext(ctx, "unbind idempotency key", "render_id", s.id, "error", err)
	}
}

// confirm closes a gap: another caller of the same key may have been refused,
// and have unbound the key, while this one made the render. Then the key is bound
// again; if a third caller was faster, its render counts and ours is cancelled.
func (s *submission) confirm(ctx context.Context, entry ledger.RenderEntry) (ledger.RenderEntry, bool, error) {
	if s.keyHash == "" {
		return entry, false, nil
	}
	mine := s.id
	if err := s.rebind(ctx); err != nil {
		return entry, false, err
	}
	if s.id == mine {
		return entry, false, nil
	}
	if _, err := s.farm.Cancel(ctx, s.tenant, mine, "superseded by the same idempotency key"); err != nil {
		return entry, false, err
	}
	if s.found == nil {
		return entry, false, unavailable("read the render of the idempotency key", fmt.Errorf("render %s: %w", s.id, ledger.ErrNotFound))
	}
	return ledger.RenderEntry{Record: s.found}, true, nil
}

// inputs pins the spec's assets.
func (f *Farm) inputs(ctx context.Context, tenant render.Tenant, spec render.Spec) (source, logo *render.SourceRef, err error) {
	source, err = f.pin(ctx, tenant, "source_asset_uri", spec.Source)
	if err != nil {
		return nil, nil, err
	}
	if !source.Facts.Renderable {
		return nil, nil, notRenderable("source_asset_uri", source.Facts)
	}
	if spec.Watermark == nil || spec.Watermark.Mode != render.WatermarkImage {
		return source, nil, nil
	}
	logo, err = f.pin(ctx, tenant, "watermark.image_asset_uri", spec.Watermark.Image)
	if err != nil {
		return nil, nil, err
	}
	if logo.Facts.Kind != "image" {
		return nil, nil, notDrawable(logo.Facts)
	}
	return source, logo, nil
}

// notDrawable is the error of a watermark image that is none.
func notDrawable(facts *render.Facts) *render.Error {
	const field = "watermark.image_asset_uri"
	reason := facts.Reason
	if facts.Kind == "video" {
		reason = "The asset is a video."
	}
	code := render.CodeUnsupportedCodec
	if facts.Code == render.CodeSourceTooLarge {
		code = facts.Code
	}
	e := render.Errorf(code, render.BlameSource, "%s is not a still PNG, JPEG or WebP picture that can be drawn; upload one. %s", field, reason)
	e.Details = &render.Details{Field: field, Reason: reason}
	return e
}

func notRenderable(field string, facts *render.Facts) *render.Error {
	code := facts.Code
	if code == "" {
		code = render.CodeUnsupportedCodec
	}
	e := render.Errorf(code, render.BlameSource, "%s", facts.Reason)
	e.Details = &render.Details{Field: field, Reason: facts.Reason}
	return e
}

func (f *Farm) pin(ctx context.Context, tenant render.Tenant, field string, id render.AssetID) (*render.SourceRef, error) {
	a, err := f.asset(ctx, tenant, id)
	if err != nil {
		return nil, assetError(field, id, err)
	}
	if a.State != render.AssetReady {
		e := render.Errorf(render.CodeAssetNotReady, render.BlameCaller, "The asset is still being examined; send the same request again in a few seconds.")
		if a.State == render.AssetPending {
			e.Message = "The upload of this asset is not finalised: put the file to its upload_url, finalize it by POST /v1/assets/{id}:finalize, then send the same request again."
		}
		e.RetryAfter = 2 * time.Second
		e.Details = &render.Details{Field: field, Value: id.URI(), Reason: "state is " + string(a.State)}
		return nil, e
	}
	return &render.SourceRef{Asset: a.ID, Name: a.Name, MIMEType: a.MIMEType, Object: a.Object, Facts: a.Facts}, nil
}

// holdFor keeps the inputs from expiring under the render.
func (f *Farm) holdFor(ctx context.Context, tenant render.Tenant, source, logo *render.SourceRef) error {
	if err := f.hold(ctx, tenant, source.Asset); err != nil {
		return assetError("source_asset_uri", source.Asset, err)
	}
	if logo == nil {
		return nil
	}
	if err := f.hold(ctx, tenant, logo.Asset); err != nil {
		return assetError("watermark.image_asset_uri", logo.Asset, err)
	}
	return nil
}

// vanished reports the failure of a render whose source or logo was deleted
// between the pin and the record.
func (f *Farm) vanished(ctx context.Context, tenant render.Tenant, source, logo *render.SourceRef) *render.Failure {
	refs := []*render.SourceRef{source, logo}
	fields := []string{"source_asset_uri", "watermark.image_asset_uri"}
	for i, ref := range refs {
		if ref == nil {
			continue
		}
		if _, err := f.stores.Ledger.GetAsset(ctx, tenant, ref.Asset); errors.Is(err, ledger.ErrNotFound) {
			return &render.Failure{Code: render.CodeSourceNotFound, Message: "The asset was deleted while the render was submitted. Upload it again.",
				Field: fields[i], Reason: "deleted"}
		}
	}
	return nil
}

// Validate checks a request against everything that the farm knows, changing
// nothing. What Submit would refuse for its arguments comes as the same error.
func (f *Farm) Validate(ctx context.Context, tenant render.Tenant, req render.Request) (*Validation, error) {
	spec, err := render.Normalize(req)
	if err != nil {
		return nil, err
	}
	source, _, err := f.inputs(ctx, tenant, spec)
	if err != nil {
		return nil, err
	}
	v := &Validation{Spec: spec, Plan: render.MakePlan(source.Facts, spec, 1, f.cfg.Policy)}
	v.Duration = planLength(v.Plan)
	v.Warnings = append(warnings(source.Facts, spec, v.Plan), f.hardwareWarnings(ctx, v.Plan)...)
	return v, nil
}

// warnings tells what will differ from what a person may expect.
func warnings(facts *render.Facts, spec render.Spec, plan render.Plan) []string {
	var out []string
	vs := facts.VideoStream()
	if vs.Height > 0 && plan.Height > 2*vs.Height {
		out = append(out, fmt.Sprintf("The source is %d×%d; it is scaled up to %d×%d.", vs.Width, vs.Height, plan.Width, plan.Height))
	}
	if vs.VariableFrameRate {
		out = append(out, fmt.Sprintf("The source has a variable frame rate; the output has a constant %.3g frames per second.", plan.FrameRate.Float()))
	}
	if vs.HDR != "" {
		out = append(out, "The source is HDR; the output is tone-mapped to standard dynamic range.")
	}
	if !plan.HasAudio {
		out = append(out, "The source has no sound; the output is silent.")
	}
	if spec.Watermark != nil && spec.Watermark.Opacity == 0 {
		out = append(out, "watermark.opacity is 0: the watermark will not be visible.")
	}
	return out
}
