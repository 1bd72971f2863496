// Package farmtest is a farm in memory for tests of the gateway. It changes
// records only by render.Apply, as the real one does, and does what a test
// tells it instead of work.
package farmtest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

// Farm is the fake. Make it with New.
type Farm struct {
	mu       sync.Mutex
	now      func() time.Time
	renders  map[render.ID]*render.Record
	progress map[render.ID]farm.Progress
	logs     map[render.ID]string
	keys     map[string]render.ID
	assets   map[render.AssetID]*render.Asset
	objects  map[string][]byte
	changed  chan struct{} // closed and replaced at each change
	fail     map[string]error
	// Estimate is what Validate estimates.
	Estimate *time.Duration
	// Warnings are what Validate warns of.
	Warnings []string
	// Presign makes the URL of an object; nil refuses.
	Presign func(o render.Object) string
	// OnUpload is called when an upload has reached the farm.
	OnUpload func()
	// OnRequest decides on a tenant's requests; nil allows all.
	OnRequest func(tenant render.Tenant, perSecond float64, burst int) (bool, time.Duration)
	// Broken ends Run with what is sent.
	Broken chan error
	// MaxUpload in bytes.
	MaxUpload int64
	// Traces of the submissions, oldest first.
	Traces []render.TraceContext
	// Windows of the idempotency keys of the submissions, oldest first.
	Windows   []time.Duration
	watching  int
	ended     int
	opensLeft int
	openErr   error
	// Minted counts stored input requests.
	Minted int
}

// New makes an empty farm.
func New(now func() time.Time) *Farm {
	return &Farm{
		now: now, renders: map[render.ID]*render.Record{}, progress: map[render.ID]farm.Progress{}, logs: map[render.ID]string{},
		keys: map[string]render.ID{}, assets: map[render.AssetID]*render.Asset{}, objects: map[string][]byte{}, changed: make(chan struct{}),
		fail: map[string]error{}, Broken: make(chan error), MaxUpload: 1 << 20,
	}
}

// Fail makes a method return err until it is told otherwise with nil.
func (f *Farm) Fail(method string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[method] = err
}

// FailOpenAfter lets objects be opened n times more, and then fail.
func (f *Farm) FailOpenAfter(n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opensLeft, f.openErr = n, err
}

func (f *Farm) forced(method string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fail[method]
}

// bump wakes the watchers. f.mu is held.
func (f *Farm) bumpLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// Put stores an object and pins it.
func (f *Farm) Put(key string, b []byte) render.Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects[key] = b
	sum := sha256.Sum256(b)
	return render.Object{Key: key, ETag: "etag-" + key, Size: int64(len(b)), SHA256: hex.EncodeToString(sum[:])}
}

// AddAsset stores a ready asset.
func (f *Farm) AddAsset(tenant render.Tenant, name string, facts *render.Facts) render.AssetID {
	id := render.NewAssetID()
	o := f.Put("sources/"+string(id), []byte(name))
	f.mu.Lock()
	defer f.mu.Unlock()
	state := render.AssetReady
	if facts == nil {
		state = render.AssetProbing
	}
	f.assets[id] = &render.Asset{ID: id, Tenant: tenant, Name: name, MIMEType: "video/mp4", State: state, Object: o,
		Created: f.now(), Expires: f.now().Add(7 * 24 * time.Hour), Facts: facts}
	return id
}

// VideoFacts are those of a ten second film with every field known.
func VideoFacts() *render.Facts {
	return &render.Facts{
		Kind: "video", Container: "mov,mp4", Duration: 10 * time.Second, Renderable: true, Video: 0, Audio: 1,
		GridRate: render.Rational{Num: 30, Den: 1}, GridFrames: 300,
		Streams: []render.Stream{
			{Kind: "video", Codec: "hevc", Width: 720, Height: 576, FrameRate: render.Rational{Num: 30, Den: 1}, VariableFrameRate: true, Rotation: 90,
				PixelAspect: render.Rational{Num: 16, Den: 15}, BitDepth: 10, HDR: "hdr10"},
			{Kind: "audio", Codec: "aac", Channels: 2, SampleRate: 48000},
		},
	}
}

// Record returns the present record.
func (f *Farm) Record(id render.ID) *render.Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.renders[id]
}

// Replace stores a record as it is, for states that take days to reach.
func (f *Farm) Replace(rec *render.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.renders[rec.ID] = rec
	f.bumpLocked()
}

// SetProgress sets the live numbers of a render.
func (f *Farm) SetProgress(id render.ID, p farm.Progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.progress[id] = p
	f.bumpLocked()
}

// SetLog sets the log of a render.
func (f *Farm) SetLog(id render.ID, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.logs[id] = text
}

// Apply lets something happen to a render.
func (f *Farm) Apply(id render.ID, ev render.Event) error {
	_, err := f.apply("", id, ev)
	return err
}

func (f *Farm) apply(tenant render.Tenant, id render.ID, ev render.Event) (*farm.View, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rec := f.renders[id]
	if rec == nil || tenant != "" && rec.Tenant != tenant {
		return nil, notFound()
	}
	next, err := render.Apply(rec, ev, f.now())
	switch {
	case errors.Is(err, render.ErrNoChange):
		return f.viewLocked(rec), nil
	case err != nil:
		return nil, err
	}
	f.renders[id] = next
	f.bumpLocked()
	return f.viewLocked(next), nil
}

func (f *Farm) viewLocked(rec *render.Record) *farm.View {
	return &farm.View{Record: rec, Progress: f.progress[rec.ID]}
}

func notFound() *render.Error {
	return render.Errorf(render.CodeRenderNotFound, render.BlameCaller, "No render of yours has this id; it may be past its retention of 7 days.")
}

// Submit implements the facade.
func (f *Farm) Submit(_ context.Context, tenant render.Tenant, s farm.Submission) (*farm.View, bool, error) {
	if err := f.forced("Submit"); err != nil {
		return nil, false, err
	}
	spec, err := render.Normalize(s.Request)
	if err != nil {
		return nil, false, fmt.Errorf("normalize: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Windows = append(f.Windows, s.IdempotencyWindow)
	src, logo, err := f.sourcesLocked(tenant, spec)
	if err != nil {
		return nil, false, err
	}
	key := ""
	if k := s.Request.IdempotencyKey; k != nil {
		key = fmt.Sprint(tenant, "\x00", *k, "\x00", s.IdempotencyWindow)
		if rec := f.renders[f.keys[key]]; rec != nil {
			if rec.SpecHash != spec.Hash() {
				return nil, false, render.Errorf(render.CodeIdempotencyKeyReused, render.BlameCaller, "The idempotency_key is bound to a render with other arguments.")
			}
			return f.viewLocked(rec), true, nil
		}
	}
	rec := render.New(render.NewID(), tenant, spec, *src, logo, f.now())
	rec.TaskRetention = render.TaskRetentionFor(s.TaskRetention)
	f.renders[rec.ID] = rec
	if key != "" {
		f.keys[key] = rec.ID
	}
	f.Traces = append(f.Traces, s.Trace)
	f.bumpLocked()
	return f.viewLocked(rec), false, nil
}

func (f *Farm) sourcesLocked(tenant render.Tenant, spec render.Spec) (src, logo *render.SourceRef, err error) {
	if src, err = f.sourceLocked(tenant, "source_asset_uri", spec.Source); err != nil {
		return nil, nil, err
	}
	if w := spec.Watermark; w != nil && w.Image != "" {
		logo, err = f.sourceLocked(tenant, "watermark.image_asset_uri", w.Image)
	}
	return src, logo, err
}

func (f *Farm) sourceLocked(tenant render.Tenant, field string, id render.AssetID) (*render.SourceRef, error) {
	a := f.assets[id]
	switch {
	case a == nil || a.Tenant != tenant:
		return nil, render.SourceNotFound(field, id.URI())
	case a.Facts == nil:
		e := render.Errorf(render.CodeAssetNotReady, render.BlameCaller, "The asset is not probed yet.")
		e.Details = &render.Details{Field: field}
		return nil, e
	case field == "source_asset_uri" && !a.Facts.Renderable:
		e := render.Errorf(cmp.Or(a.Facts.Code, render.CodeUnsupportedCodec), render.BlameSource, "%s", a.Facts.Reason)
		e.Details = &render.Details{Field: field, Value: id.URI(), Reason: a.Facts.Reason}
		return nil, e
	}
	return &render.SourceRef{Asset: id, Name: a.Name, MIMEType: a.MIMEType, Object: a.Object, Facts: a.Facts}, nil
}

// Validate implements the facade.
func (f *Farm) Validate(_ context.Context, tenant render.Tenant, req render.Request) (*farm.Validation, error) {
	if err := f.forced("Validate"); err != nil {
		return nil, err
	}
	spec, err := render.Normalize(req)
	if err != nil {
		return nil, fmt.Errorf("normalize: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	src, _, err := f.sourcesLocked(tenant, spec)
	if err != nil {
		return nil, err
	}
	return &farm.Validation{Spec: spec, Plan: render.MakePlan(src.Facts, spec, 1, render.Policy{}), Duration: src.Facts.Duration, Warnings: f.Warnings, Estimate: f.Estimate}, nil
}

// Get implements the facade.
func (f *Farm) Get(_ context.Context, tenant render.Tenant, id render.ID) (*farm.View, error) {
	if err := f.forced("Get"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	rec := f.renders[id]
	if rec == nil || rec.Tenant != tenant {
		return nil, notFound()
	}
	return f.viewLocked(rec), nil
}

// WaitWatched waits until n calls of Watch have shown the present view.
func (f *Farm) WaitWatched(ctx context.Context, n int) error {
	for {
		f.mu.Lock()
		changed, watching := f.changed, f.watching
		f.mu.Unlock()
		if watching >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// WaitEnded waits until n calls of Watch that showed a view have ended.
func (f *Farm) WaitEnded(ctx context.Context, n int) error {
	for {
		f.mu.Lock()
		changed, ended := f.changed, f.ended
		f.mu.Unlock()
		if ended >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (f *Farm) watched() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended++
	f.bumpLocked()
}

// Watch implements the facade.
func (f *Farm) Watch(ctx context.Context, tenant render.Tenant, id render.ID, fn func(*farm.View) error) error {
	shown := false
	defer func() {
		if shown {
			f.watched()
		}
	}()
	for first := true; ; first = false {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()
		v, err := f.Get(ctx, tenant, id)
		if err != nil {
			return err
		}
		if err := fn(v); err != nil {
			return err
		}
		if v.Record.State.Terminal() {
			return nil
		}
		if first {
			f.mu.Lock()
			f.watching++
			f.bumpLocked()
			f.mu.Unlock()
			shown = true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Decide implements the facade.
func (f *Farm) Decide(_ context.Context, tenant render.Tenant, id render.ID, d render.Decision) (*farm.View, error) {
	if err := f.forced("Decide"); err != nil {
		return nil, err
	}
	return f.apply(tenant, id, render.Decided{Decision: d})
}

// MintInput implements the facade.
func (f *Farm) MintInput(_ context.Context, tenant render.Tenant, id render.ID, in render.InputRequest) (*farm.View, error) {
	v, err := f.apply(tenant, id, render.InputMinted{Input: in})
	if err == nil {
		f.mu.Lock()
		f.Minted++
		f.mu.Unlock()
	}
	return v, err
}

// AnswerInput implements the facade.
func (f *Farm) AnswerInput(_ context.Context, tenant render.Tenant, id render.ID, key, action string) (*farm.View, error) {
	return f.apply(tenant, id, render.InputAnswered{Key: key, Action: action})
}

// Cancel implements the facade.
func (f *Farm) Cancel(ctx context.Context, tenant render.Tenant, id render.ID, by string) (*farm.View, error) {
	if err := f.forced("Cancel"); err != nil {
		return nil, err
	}
	v, err := f.apply(tenant, id, render.Cancelled{By: by})
	if errors.Is(err, render.ErrIllegal) {
		return f.Get(ctx, tenant, id)
	}
	return v, err
}

// content is an object of a record.
func (f *Farm) content(tenant render.Tenant, id render.ID, pick func(*render.Record) (*render.Object, string, string)) (*farm.Content, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rec := f.renders[id]
	if rec == nil || rec.Tenant != tenant {
		return nil, notFound()
	}
	o, name, mime := pick(rec)
	switch {
	case o != nil:
	case rec.State.Terminal():
		return nil, render.Errorf(render.CodeResourceNotFound, render.BlameCaller, "The render has no such thing.")
	default:
		return nil, render.Errorf(render.CodeResourceNotReady, render.BlameCaller, "It is not made yet.")
	}
	c := &farm.Content{Object: *o, Name: name, MIMEType: mime, Modified: rec.Updated, Open: func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
		if err := f.forced("Open"); err != nil {
			return nil, err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.opensLeft--; f.openErr != nil && f.opensLeft < 0 {
			return nil, f.openErr
		}
		b := f.objects[o.Key][offset:]
		if length > 0 {
			b = b[:min(length, int64(len(b)))]
		}
		return io.NopCloser(bytes.NewReader(b)), nil
	}}
	if f.Presign != nil {
		c.Presign = func(_ context.Context, ttl time.Duration) (string, time.Time, error) {
			return f.Presign(*o), f.now().Add(ttl), nil
		}
	}
	return c, nil
}

// Video implements the facade.
func (f *Farm) Video(_ context.Context, tenant render.Tenant, id render.ID) (*farm.Content, error) {
	return f.content(tenant, id, func(r *render.Record) (*render.Object, string, string) {
		if r.Output == nil {
			return nil, "", ""
		}
		return &r.Output.Object, strings.TrimSuffix(r.Source.Name, ".mov") + ".mp4", "video/mp4"
	})
}

// Preview implements the facade.
func (f *Farm) Preview(_ context.Context, tenant render.Tenant, id render.ID) (*farm.Content, error) {
	return f.content(tenant, id, func(r *render.Record) (*render.Object, string, string) {
		if r.Preview == nil {
			return nil, "", ""
		}
		return &r.Preview.Object, "watermark-preview.png", "image/png"
	})
}

// Log implements the facade.
func (f *Farm) Log(ctx context.Context, tenant render.Tenant, id render.ID) (string, error) {
	if _, err := f.Get(ctx, tenant, id); err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.logs[id], nil
}

// Upload implements the facade.
func (f *Farm) Upload(_ context.Context, tenant render.Tenant, u farm.Upload) (*render.Asset, error) {
	if err := f.forced("Upload"); err != nil {
		return nil, err
	}
	if f.OnUpload != nil {
		f.OnUpload()
	}
	b, err := io.ReadAll(io.LimitReader(u.Body, f.MaxUpload+1))
	sum := sha256.Sum256(b)
	switch {
	case err != nil:
		return nil, render.InvalidField("body", "", "The upload broke off before its end.").WithCause(err)
	case int64(len(b)) > f.MaxUpload:
		return nil, render.Errorf(render.CodeSourceTooLarge, render.BlameCaller, "The upload exceeds this farm's limit of %d bytes.", f.MaxUpload)
	case len(b) == 0:
		return nil, render.InvalidField("body", "", "The upload is empty.")
	case u.SHA256 != "" && u.SHA256 != hex.EncodeToString(sum[:]):
		return nil, render.InvalidField("body", "", "The body does not have the announced SHA-256.")
	}
	id := f.AddAsset(tenant, u.Name, VideoFacts())
	o := f.Put("sources/"+string(id), b)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.assets[id].Object, f.assets[id].MIMEType = o, u.MIMEType
	return f.assets[id], nil
}

// PresignUpload implements the facade: bytes arrive by PutIncoming.
func (f *Farm) PresignUpload(_ context.Context, tenant render.Tenant, a farm.Announcement) (*farm.Presigned, error) {
	if err := f.forced("PresignUpload"); err != nil {
		return nil, err
	}
	id := f.AddAsset(tenant, a.Name, nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	asset := f.assets[id]
	asset.State, asset.MIMEType, asset.Object = render.AssetPending, a.MIMEType, render.Object{Key: "incoming/" + string(id), Size: a.Size}
	return &farm.Presigned{
		Asset: asset, URL: "https://store.example.org/incoming/" + string(id) + "?X-Amz-Signature=secret",
		Header: http.Header{"Content-Length": {strconv.FormatInt(a.Size, 10)}, "Content-Type": {a.MIMEType}}, Expires: f.now().Add(time.Hour),
	}, nil
}

// PutIncoming is the client's put of a presigned upload.
func (f *Farm) PutIncoming(id render.AssetID, b []byte) { f.Put("incoming/"+string(id), b) }

// FinalizeUpload implements the facade.
func (f *Farm) FinalizeUpload(ctx context.Context, tenant render.Tenant, id render.AssetID, _ render.TraceContext) (*render.Asset, bool, error) {
	a, err := f.Asset(ctx, tenant, id)
	if err != nil || a.State != render.AssetPending {
		return a, false, err
	}
	f.mu.Lock()
	b, ok := f.objects[a.Object.Key]
	f.mu.Unlock()
	if !ok {
		return nil, false, render.Errorf(render.CodeAssetNotReady, render.BlameCaller, "No file has arrived yet.")
	}
	o := f.Put("sources/"+string(id), b)
	f.mu.Lock()
	defer f.mu.Unlock()
	done := *a
	done.State, done.Object, done.Facts = render.AssetReady, o, VideoFacts()
	f.assets[id] = &done
	return &done, true, nil
}

// Asset implements the facade.
func (f *Farm) Asset(_ context.Context, tenant render.Tenant, id render.AssetID) (*render.Asset, error) {
	if err := f.forced("Asset"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.assets[id]
	if a == nil || a.Tenant != tenant {
		return nil, render.SourceNotFound("asset_uri", id.URI())
	}
	return a, nil
}

// Assets implements the facade.
func (f *Farm) Assets(_ context.Context, tenant render.Tenant, cursor string, limit int) ([]*render.Asset, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var page []*render.Asset
	for _, a := range f.assets {
		if a.Tenant == tenant && string(a.ID) > cursor {
			page = append(page, a)
		}
	}
	slices.SortFunc(page, func(a, b *render.Asset) int { return cmp.Compare(a.ID, b.ID) })
	if len(page) > limit {
		return page[:limit], string(page[limit-1].ID), nil
	}
	return page, "", nil
}

// DeleteAsset implements the facade.
func (f *Farm) DeleteAsset(ctx context.Context, tenant render.Tenant, id render.AssetID) error {
	if _, err := f.Asset(ctx, tenant, id); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.assets, id)
	return nil
}

// Run implements the facade.
func (f *Farm) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-f.Broken:
		return err
	}
}

// Ready implements the facade.
func (f *Farm) Ready(context.Context) error { return f.forced("Ready") }

// AllowRequest implements the facade by OnRequest.
func (f *Farm) AllowRequest(_ context.Context, tenant render.Tenant, perSecond float64, burst int) (bool, time.Duration) {
	if f.OnRequest == nil {
		return true, 0
	}
	return f.OnRequest(tenant, perSecond, burst)
}

// LimitsOf implements the facade.
func (f *Farm) LimitsOf(render.Tenant) farm.Limits {
	return farm.Limits{MaxConcurrent: 16, RenderTime: 90 * time.Minute, Window: render.WindowMonth, StorageBytes: 5_000_000}
}

// Limits implements the facade.
func (f *Farm) Limits() farm.Config {
	return farm.Config{MaxConcurrent: 16, MaxAssetBytes: f.MaxUpload, AssetRetention: 7 * 24 * time.Hour}
}
