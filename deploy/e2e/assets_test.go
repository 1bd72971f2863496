package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/embedded/embeddedtest"
	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

// put sends bytes to a presigned URL, as a plain client does.
func put(t *testing.T, url string, header map[string]string, body []byte) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		if k != "Content-Length" { // net/http's own
			req.Header.Set(k, v)
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(second(io.Copy(io.Discard, res.Body)), res.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode
}

func second(_ int64, err error) error { return err }

// presigned announces a film and puts it.
func (b *bundle) presigned(film string) *render.Asset {
	b.t.Helper()
	p, err := b.PresignUpload(context.Background(), b.tenant, farm.Announcement{Name: "a.mp4", MIMEType: "video/mp4", Size: int64(len(film))})
	if err != nil {
		b.t.Fatal(err)
	}
	if status := put(b.t, p.URL, map[string]string{"Content-Type": "video/mp4"}, []byte(film)); status != http.StatusOK {
		b.t.Fatalf("put: %d", status)
	}
	return p.Asset
}

// finalize ends the probe meanwhile.
func (b *bundle) finalize(id render.AssetID) *render.Asset {
	b.t.Helper()
	var (
		wg    sync.WaitGroup
		asset *render.Asset
		first bool
		err   error
	)
	wg.Go(func() {
		asset, first, err = b.FinalizeUpload(context.Background(), b.tenant, id, render.TraceContext{})
	})
	b.work(render.ClassPreview, func(*farm.Claim) (*render.StageResult, error) { return &render.StageResult{Facts: facts()}, nil })
	wg.Wait()
	if err != nil || !first || asset.State != render.AssetReady {
		b.t.Fatalf("finalize: %+v, %v, %v", asset, first, err)
	}
	return asset
}

func wantCode(t *testing.T, what string, err error, code render.Code) *render.Error {
	t.Helper()
	e := render.AsError(err)
	if err == nil || e.Code != code {
		t.Errorf("%s: %v, not %s", what, err, code)
	}
	return e
}

// TestPresignedUploadToVideo goes the whole way over HTTP and MCP.
func TestPresignedUploadToVideo(t *testing.T) {
	share := embeddedtest.Servers(t)
	url, _ := startGateway(t, share)
	startWorker(t, share, "w1")
	a := &agent{url: url, t: t, tasks: true}
	film, err := os.ReadFile(clip(t, 1, "320x240"))
	if err != nil {
		t.Fatal(err)
	}
	post := func(path, body string) (int, map[string]any) {
		res, err := http.Post(url+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var got map[string]any
		if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, got
	}
	_, got := post("/v1/assets:presign", fmt.Sprintf(`{"name":"סרט.mp4","size_bytes":%d,"mime_type":"video/mp4"}`, len(film)))
	uri, _ := got["asset_uri"].(string)
	upload, _ := got["upload_url"].(string)
	header := map[string]string{}
	for k, v := range got["headers"].(map[string]any) {
		header[k] = v.(string)
	}
	if got := a.call("vidforge_probe_asset", map[string]any{"asset_uri": uri}); got.code() != "asset_not_ready" {
		t.Errorf("probe before the upload: %+v", got)
	}
	if got := a.call("vidforge_render_video", args(uri, nil)); got.code() != "asset_not_ready" {
		t.Errorf("render before the upload: %+v", got)
	}
	finalize := "/v1/assets/" + strings.TrimPrefix(uri, "vidforge://assets/") + ":finalize"
	if status, got := post(finalize, ""); status != http.StatusServiceUnavailable || got["code"] != "asset_not_ready" {
		t.Errorf("finalize before the upload: %d %v", status, got)
	}
	for name, c := range map[string]struct {
		header map[string]string
		body   []byte
	}{"longer": {header, append(bytes.Clone(film), 0)}, "shorter": {header, film[1:]}, "another type": {map[string]string{"Content-Type": "text/html"}, film}} {
		if status := put(t, upload, c.header, c.body); status != http.StatusForbidden {
			t.Errorf("put of %s: %d", name, status)
		}
	}
	if status := put(t, upload, header, film); status != http.StatusOK {
		t.Fatalf("put: %d", status)
	}
	sum := sha256.Sum256(film)
	status, got := post(finalize, "")
	if status != http.StatusCreated || got["sha256"] != hex.EncodeToString(sum[:]) || got["renderable"] != true || got["name"] != "סרט.mp4" {
		t.Fatalf("finalize: %d %v", status, got)
	}
	task := a.call("vidforge_render_video", args(uri, nil))
	id, _ := task.Result["taskId"].(string)
	done := a.poll(id, "completed", "failed", "cancelled")
	result, _ := done.Result["result"].(map[string]any)
	if content, _ := result["structuredContent"].(map[string]any); content["status"] != "completed" || content["frame_count"] != 30.0 {
		t.Fatalf("completed with %+v", done)
	}
}

func TestPresignedUpload(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{MaxPresignBytes: 100, MaxAssetBytes: 1000})
	ctx := t.Context()
	asset := b.presigned("film")
	if got, err := b.Asset(ctx, b.tenant, asset.ID); err != nil || got.State != render.AssetPending || got.Object.Size != 4 {
		t.Errorf("pending: %+v, %v", got, err)
	}
	ready := b.finalize(asset.ID)
	sum := sha256.Sum256([]byte("film"))
	if ready.Object.SHA256 != hex.EncodeToString(sum[:]) || !strings.HasPrefix(ready.Object.Key, "sources/") || ready.Expires.Before(time.Now().Add(6*24*time.Hour)) {
		t.Errorf("ready: %+v", ready)
	}
	b.wantKeys("finalised", ready.Object.Key)
	again, first, err := b.FinalizeUpload(ctx, b.tenant, asset.ID, render.TraceContext{})
	if err != nil || first || again.Object != ready.Object {
		t.Errorf("again: %+v, %v, %v", again, first, err)
	}
	for name, c := range map[string]struct {
		a     farm.Announcement
		code  render.Code
		field string
	}{
		"nothing":       {farm.Announcement{}, render.CodeInvalidField, "size_bytes"},
		"negative":      {farm.Announcement{Size: -1}, render.CodeInvalidField, "size_bytes"},
		"for streaming": {farm.Announcement{Size: 101}, render.CodeSourceTooLarge, "size_bytes"},
		"too large":     {farm.Announcement{Size: 1001}, render.CodeSourceTooLarge, "size_bytes"},
		"name":          {farm.Announcement{Size: 1, Name: "\xff"}, render.CodeInvalidField, "name"},
		"type":          {farm.Announcement{Size: 1, MIMEType: "a\nb"}, render.CodeInvalidField, "mime_type"},
	} {
		_, err := b.PresignUpload(ctx, b.tenant, c.a)
		if e := wantCode(t, name, err, c.code); e.Details == nil || e.Details.Field != c.field {
			t.Errorf("%s: details %+v", name, e.Details)
		}
	}
	for _, id := range []render.AssetID{render.NewAssetID(), "a_*"} {
		_, _, err := b.FinalizeUpload(ctx, b.tenant, id, render.TraceContext{})
		wantCode(t, "unknown", err, render.CodeSourceNotFound)
	}
	pending := b.presigned("film")
	_, _, err = b.FinalizeUpload(ctx, "somebody else", pending.ID, render.TraceContext{})
	wantCode(t, "foreign", err, render.CodeSourceNotFound)
	// A pending upload can be deleted with its bytes.
	if err := b.DeleteAsset(ctx, b.tenant, pending.ID); err != nil {
		t.Error(err)
	}
	b.wantKeys("deleted", ready.Object.Key)
}

// hooks wrap a store so that something happens at one of its calls.
type hookedBlobs struct {
	blob.Store
	beforeCopy, afterCopy, beforeDelete func()
}

func (h hookedBlobs) Copy(ctx context.Context, from render.Object, to string) (render.Object, error) {
	if h.beforeCopy != nil {
		h.beforeCopy()
	}
	o, err := h.Store.Copy(ctx, from, to)
	if h.afterCopy != nil {
		h.afterCopy()
	}
	return o, err
}

func (h hookedBlobs) Delete(ctx context.Context, keys ...string) error {
	if h.beforeDelete != nil {
		h.beforeDelete()
	}
	return h.Store.Delete(ctx, keys...)
}

type hookedLedger struct {
	ledger.Ledger
	updateAsset func() error
}

func (h hookedLedger) UpdateAsset(ctx context.Context, prev ledger.AssetEntry, next *render.Asset) (ledger.AssetEntry, error) {
	if err := h.updateAsset(); err != nil {
		return ledger.AssetEntry{}, err
	}
	return h.Ledger.UpdateAsset(ctx, prev, next)
}

// hooked is a farm over the same stores, which answers at once.
func (b *bundle) hooked(change func(*farm.Stores)) *farm.Farm {
	stores := b.stores
	change(&stores)
	return farm.New(stores, farm.Config{ProbeWait: time.Nanosecond, Logger: quiet()})
}

// TestFinalizeMeetsOthers: whatever comes between its steps, what is hashed is
// what is used, and the next call ends what one left.
func TestFinalizeMeetsOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	ctx := t.Context()
	finalize := func(f *farm.Farm, id render.AssetID) (*render.Asset, bool, error) {
		return f.FinalizeUpload(ctx, b.tenant, id, render.TraceContext{})
	}
	replace := func(id render.AssetID, with string) func() {
		return func() {
			key := blob.IncomingKey(b.tenant, id)
			if err := b.stores.Blobs.Delete(ctx, key); err != nil {
				t.Error(err)
			}
			if _, err := b.stores.Blobs.Put(ctx, key, strings.NewReader(with), blob.PutOptions{Size: int64(len(with))}); err != nil {
				t.Error(err)
			}
		}
	}
	hash := func(s string) string { sum := sha256.Sum256([]byte(s)); return hex.EncodeToString(sum[:]) }

	a := b.presigned("film")
	_, _, err := finalize(b.hooked(func(s *farm.Stores) { s.Blobs = hookedBlobs{Store: s.Blobs, beforeCopy: replace(a.ID, "evil")} }), a.ID)
	if e := wantCode(t, "replaced before the copy", err, render.CodeAssetNotReady); e.RetryAfter == 0 {
		t.Errorf("no time to wait: %+v", e)
	}
	got, first, err := finalize(b.hooked(func(s *farm.Stores) { s.Blobs = hookedBlobs{Store: s.Blobs, afterCopy: replace(a.ID, "film")} }), a.ID)
	if err != nil || !first || got.Object.SHA256 != hash("evil") {
		t.Errorf("replaced after the copy: %+v, %v", got, err)
	}
	r, err := b.stores.Blobs.Get(ctx, got.Object.Key, blob.GetOptions{ETag: got.Object.ETag})
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(r); err != nil || string(body) != "evil" || r.Close() != nil {
		t.Errorf("stored is %q, %v", body, err)
	}

	a = b.presigned("film")
	replace(a.ID, "a longer film")()
	_, _, err = finalize(b.hooked(func(*farm.Stores) {}), a.ID)
	if e := wantCode(t, "another length", err, render.CodeInvalidField); e.Details.Field != "size_bytes" || !strings.Contains(e.Message, "13 bytes and not the announced 4") {
		t.Errorf("another length: %+v", e)
	}
	replace(a.ID, "film")()
	if _, first, err := finalize(b.hooked(func(*farm.Stores) {}), a.ID); err != nil || !first {
		t.Errorf("put again: %v, %v", first, err)
	}

	// It dies before its record is written: the next call begins anew, and the
	// sweep removes what it left.
	a = b.presigned("film")
	dies := b.hooked(func(s *farm.Stores) {
		s.Ledger = hookedLedger{s.Ledger, func() error { return errors.New("killed") }}
	})
	if _, _, err := finalize(dies, a.ID); render.CodeOf(err) != render.CodeUnavailable {
		t.Errorf("killed: %v", err)
	}
	got, first, err = finalize(b.hooked(func(*farm.Stores) {}), a.ID)
	if err != nil || !first {
		t.Errorf("after the kill: %v, %v", first, err)
	}
	sources := func() (n int) {
		for _, key := range b.keys() {
			if strings.HasPrefix(key, "sources/"+b.tenant.Key()+"/"+string(a.ID)+"/") {
				n++
			}
		}
		return n
	}
	if sources() != 2 {
		t.Errorf("%d copies", sources())
	}
	b.sweep(b.later(25*time.Hour), farm.SweepOptions{})
	if _, err := b.stores.Blobs.Stat(ctx, got.Object.Key); err != nil || sources() != 1 {
		t.Errorf("%d copies after the sweep, %v", sources(), err)
	}

	// Deleted while it is finalised.
	a = b.presigned("film")
	deleting := b.hooked(func(s *farm.Stores) {
		s.Blobs = hookedBlobs{Store: s.Blobs, afterCopy: func() {
			if err := b.DeleteAsset(ctx, b.tenant, a.ID); err != nil {
				t.Error(err)
			}
		}}
	})
	_, _, err = finalize(deleting, a.ID)
	wantCode(t, "deleted meanwhile", err, render.CodeSourceNotFound)
	if sources() != 0 {
		t.Error("the copy of a deleted asset stays")
	}

	// Two at once.
	a = b.presigned("film")
	firsts := make([]bool, 4)
	keys := make([]string, len(firsts))
	var wg sync.WaitGroup
	for i := range firsts {
		wg.Go(func() {
			got, first, err := finalize(b.hooked(func(*farm.Stores) {}), a.ID)
			if err != nil {
				t.Errorf("at once: %v", err)
				return
			}
			firsts[i], keys[i] = first, got.Object.Key
		})
	}
	wg.Wait()
	slices.Sort(keys)
	if n := len(slices.DeleteFunc(firsts, func(f bool) bool { return !f })); n != 1 || len(slices.Compact(keys)) != 1 || sources() != 1 {
		t.Errorf("%d were first, %q, %d copies", n, keys, sources())
	}
}

func TestPresignedUploadExpires(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	p, err := b.PresignUpload(t.Context(), b.tenant, farm.Announcement{Size: 4})
	if err != nil {
		t.Fatal(err)
	}
	arrived := b.presigned("film")
	finalize := func(d time.Duration, id render.AssetID) error {
		_, _, err := b.later(d).FinalizeUpload(t.Context(), b.tenant, id, render.TraceContext{})
		return err
	}
	wantCode(t, "in time", finalize(0, p.Asset.ID), render.CodeAssetNotReady)
	if e := wantCode(t, "too late to put", finalize(2*time.Hour, p.Asset.ID), render.CodeSourceNotFound); !strings.Contains(e.Message, "expired") {
		t.Error(e.Message)
	}
	wantCode(t, "too late for all", finalize(8*time.Hour, arrived.ID), render.CodeSourceNotFound)
	b.sweep(b.later(25*time.Hour), farm.SweepOptions{})
	b.wantKeys("swept")
	if _, err := b.Asset(t.Context(), b.tenant, arrived.ID); render.CodeOf(err) != render.CodeSourceNotFound {
		t.Errorf("the record stays: %v", err)
	}
}

func TestDeleteAsset(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	ctx := t.Context()
	source, other := b.upload(b.tenant), b.upload(b.tenant)
	logo := b.upload(b.tenant)
	entry, err := b.stores.Ledger.GetAsset(ctx, b.tenant, logo.ID)
	if err != nil {
		t.Fatal(err)
	}
	picture := *entry.Asset
	picture.Facts = &render.Facts{Kind: "image", Container: "png", Width: 4, Height: 4, Video: -1, Audio: -1}
	if _, err := b.stores.Ledger.UpdateAsset(ctx, entry, &picture); err != nil {
		t.Fatal(err)
	}
	s := request(source, "", "")
	uri := logo.ID.URI()
	s.Request.Watermark = &render.WatermarkRequest{ImageAssetURI: &uri}
	live := b.submit(s).Record
	for name, id := range map[string]render.AssetID{"source": source.ID, "watermark": logo.ID} {
		err := b.DeleteAsset(ctx, b.tenant, id)
		e := wantCode(t, name, err, render.CodeAssetNotReady)
		if !errors.Is(err, farm.ErrInUse) || e.Details.Extra["render_id"] != string(live.ID) {
			t.Errorf("%s: %v", name, err)
		}
		wantCode(t, "foreign", b.DeleteAsset(ctx, "somebody else", id), render.CodeSourceNotFound)
	}
	if err := b.DeleteAsset(ctx, b.tenant, other.ID); err != nil {
		t.Error(err)
	}
	wantCode(t, "deleted twice", b.DeleteAsset(ctx, b.tenant, other.ID), render.CodeSourceNotFound)
	wantCode(t, "unknown", b.DeleteAsset(ctx, b.tenant, render.NewAssetID()), render.CodeSourceNotFound)
	if _, err := b.Cancel(ctx, b.tenant, live.ID, "me"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []render.AssetID{source.ID, logo.ID} {
		if err := b.DeleteAsset(ctx, b.tenant, id); err != nil {
			t.Error(err)
		}
	}
	b.wantKeys("all deleted")
}

// TestDeleteMeetsSubmit: in whichever order a deletion and a submit come, no
// render that goes on has lost its source.
func TestDeleteMeetsSubmit(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	ctx := t.Context()
	both, refused, missed := 0, 0, 0
	for range 12 {
		asset := b.upload(b.tenant)
		var (
			wg         sync.WaitGroup
			view       *farm.View
			serr, derr error
		)
		wg.Go(func() { view, _, serr = b.Submit(ctx, b.tenant, request(asset, "", "")) })
		wg.Go(func() { derr = b.DeleteAsset(ctx, b.tenant, asset.ID) })
		wg.Wait()
		switch {
		case serr != nil:
			wantCode(t, "submit", serr, render.CodeSourceNotFound)
			missed++
			continue
		case derr != nil:
			if !errors.Is(derr, farm.ErrInUse) {
				t.Errorf("delete: %v", derr)
			}
			refused++
		default:
			both++
		}
		rec := view.Record
		if rec.State == render.StateFailed {
			if rec.Failure.Code != render.CodeSourceNotFound {
				t.Errorf("failed by %+v", rec.Failure)
			}
			continue
		}
		b.sweep(b.later(25*time.Hour), farm.SweepOptions{})
		if _, err := b.stores.Blobs.Stat(ctx, rec.Source.Object.Key); err != nil {
			t.Errorf("a render lost its source: %v", err)
		}
		if _, err := b.Cancel(ctx, b.tenant, rec.ID, "me"); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d both accepted, %d deletions refused, %d submits found nothing", both, refused, missed)
}

// TestAssetOutlivesItsRender: a render that was submitted shortly before the
// expiry of its source keeps it, and so does the record.
func TestAssetOutlivesItsRender(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{AssetRetention: 2 * time.Hour})
	ctx := t.Context()
	asset, idle := b.upload(b.tenant), b.upload(b.tenant)
	b.clock.advance(2*time.Hour - time.Minute)
	live := b.submit(request(asset, "", "")).Record
	for range 5 { // longer than any hold
		b.clock.advance(50 * time.Minute)
		if err := b.Reconcile(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Asset(ctx, b.tenant, asset.ID); err != nil {
		t.Errorf("the record of a source in use: %v", err)
	}
	_, err := b.Asset(ctx, b.tenant, idle.ID)
	wantCode(t, "an expired asset", err, render.CodeSourceNotFound)
	_, _, err = b.Submit(ctx, b.tenant, request(idle, "", ""))
	wantCode(t, "a render of an expired asset", err, render.CodeSourceNotFound)
	wantCode(t, "deletion of an expired asset", b.DeleteAsset(ctx, b.tenant, idle.ID), render.CodeSourceNotFound)
	if page, _, err := b.Assets(ctx, b.tenant, "", 10); err != nil || len(page) != 1 || page[0].ID != asset.ID {
		t.Errorf("listed %v, %v", page, err)
	}
	b.sweep(b.later(30*time.Hour), farm.SweepOptions{})
	b.wantKeys("a sweep", live.Source.Object.Key)
	rec := b.finish(live.ID)
	b.wantKeys("finished", live.Source.Object.Key, rec.Output.Object.Key)
	b.sweep(b.later(30*time.Hour), farm.SweepOptions{})
	b.wantKeys("after its end", rec.Output.Object.Key)
}

func TestListAssets(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	ctx := t.Context()
	var want []render.AssetID
	for range 5 {
		p, err := b.PresignUpload(ctx, b.tenant, farm.Announcement{Size: 4})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, p.Asset.ID)
	}
	slices.Sort(want)
	var got []render.AssetID
	cursor := ""
	for page := 0; page == 0 || cursor != ""; page++ {
		list, next, err := b.Assets(ctx, b.tenant, cursor, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			got = append(got, a.ID)
		}
		if page == 0 { // what the cursor names may go
			if strings.Contains(next, string(list[1].ID)) {
				t.Error("the cursor shows what it names")
			}
			if _, _, err := b.Assets(ctx, "somebody else", next, 2); render.CodeOf(err) != render.CodeInvalidField {
				t.Errorf("a foreign cursor: %v", err)
			}
			if err := b.DeleteAsset(ctx, b.tenant, list[1].ID); err != nil {
				t.Fatal(err)
			}
		}
		cursor = next
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed %v, not %v", got, want)
	}
	for _, bad := range []string{"x", string(want[0]), "AAAA", strings.Repeat("A", 1000)} {
		_, _, err := b.Assets(ctx, b.tenant, bad, 2)
		wantCode(t, bad, err, render.CodeInvalidField)
	}
	for _, limit := range []int{0, -1, farm.MaxAssetPage + 1} {
		_, _, err := b.Assets(ctx, b.tenant, "", limit)
		wantCode(t, "limit", err, render.CodeInvalidField)
	}
}

// TestPresignedURLIsNotKept: neither records nor logs hold the credential.
func TestPresignedURLIsNotKept(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	p, err := b.PresignUpload(t.Context(), b.tenant, farm.Announcement{Size: 4})
	if err != nil {
		t.Fatal(err)
	}
	if logged := p.LogValue().String(); strings.Contains(logged, "Signature") || !strings.Contains(logged, string(p.Asset.ID)) {
		t.Error(logged)
	}
	entry, err := b.stores.Ledger.GetAsset(t.Context(), b.tenant, p.Asset.ID)
	if kept := fmt.Sprintf("%+v", entry.Asset); err != nil || strings.Contains(kept, "Signature") || filepath.Base(entry.Asset.Object.Key) != string(p.Asset.ID) {
		t.Errorf("%s, %v", kept, err)
	}
}
