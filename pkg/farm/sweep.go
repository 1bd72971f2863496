package farm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

// SweepClass says what kind of thing is swept, and why it may go.
type SweepClass string

// Classes of what is swept.
const (
	// SweepLeftover is an object of a finished render that its record does not
	// name: of an attempt that was killed or came second.
	SweepLeftover SweepClass = "leftover"
	// SweepRender is an object of a render that is past its retention.
	SweepRender SweepClass = "render"
	// SweepSource is the bytes of an asset that was deleted, has expired, or
	// never got a record.
	SweepSource SweepClass = "source"
	// SweepIncoming is a presigned upload that was finalised, or never will be.
	SweepIncoming SweepClass = "incoming"
	// SweepUnfinished is a multipart upload that nobody ends.
	SweepUnfinished SweepClass = "unfinished"
	// SweepRecord is the record of an asset that has expired, or whose bytes
	// are gone.
	SweepRecord SweepClass = "record"
)

// SweepClasses lists every class.
func SweepClasses() []SweepClass {
	return []SweepClass{SweepLeftover, SweepRender, SweepSource, SweepIncoming, SweepUnfinished, SweepRecord}
}

var (
	// ErrEpochChanged stops a sweep: ledger and bucket do not belong together
	// as they did. The ledger was made anew or restored from a copy, or the
	// bucket is another. What looks like an orphan may be all that is left.
	ErrEpochChanged = errors.New("farm: the ledger's epoch is not that of the bucket")
	// ErrSweepsTooMuch stops a sweep that would delete more than a fifth of
	// everything.
	ErrSweepsTooMuch = errors.New("farm: the sweep would delete more than a fifth of everything")
)

const (
	// sweepFloor is how much a sweep may always delete: of a small farm all may
	// be old at once.
	sweepFloor = 100
	// sweepShare is the part of everything, one in so many, that a sweep may
	// delete beyond that.
	sweepShare = 5
	// sweepBatch is how many objects are deleted at once.
	sweepBatch = 200
)

// SweepItem is one thing that is or would be deleted.
type SweepItem struct {
	Class SweepClass
	// Key of the object, or the URI of an asset's record.
	Key  string
	Size int64 // bytes, 0 when unknown
}

// SweepOptions of one sweep.
type SweepOptions struct {
	// DryRun looks and deletes nothing.
	DryRun bool
	// ConfirmEpoch takes ledger and bucket as they now are for a pair: an
	// operator looked at them.
	ConfirmEpoch bool
	// AllowMany lets the sweep delete more than a fifth of everything.
	AllowMany bool
	// Found, if set, is called with each thing that may go, before anything is
	// deleted.
	Found func(SweepItem)
}

// SweepCount counts things of one class.
type SweepCount struct {
	Count int   `json:"count"`
	Bytes int64 `json:"bytes"`
}

// SweepReport is what a sweep saw and did.
type SweepReport struct {
	// Seen counts all objects, unfinished uploads and assets' records.
	Seen int `json:"seen"`
	// Found is what may go, Deleted what went.
	Found   map[SweepClass]SweepCount `json:"found"`
	Deleted map[SweepClass]SweepCount `json:"deleted"`
}

func total(counts map[SweepClass]SweepCount) int {
	n := 0
	for _, c := range counts {
		n += c.Count
	}
	return n
}

// Sweep deletes what nobody needs any more: see the classes. It deletes objects
// only when they are older than Config.OrphanAge and a leader read shows that
// their render has ended or is absent, or that their asset is absent and no
// unfinished render uses it. Each of these is for ever, so that a sweep that
// stood still between its look and the deletion does no harm, and nor do two at
// once. It looks at everything first, and then, unless an error named above
// stops it, once more while it deletes.
//
// Keys of other shapes than the farm's are not touched.
func (f *Farm) Sweep(ctx context.Context, o SweepOptions) (SweepReport, error) {
	s := &sweep{farm: f, now: f.now(), report: SweepReport{Found: map[SweepClass]SweepCount{}, Deleted: map[SweepClass]SweepCount{}}}
	err := s.run(ctx, o)
	switch {
	case errors.Is(err, ErrEpochChanged), errors.Is(err, ErrSweepsTooMuch):
		f.log.ErrorContext(ctx, "the sweep stopped; an operator must look", "error", err, "seen", s.report.Seen,
			"found", total(s.report.Found), "deleted", total(s.report.Deleted))
		if f.cfg.Metrics != nil {
			f.cfg.Metrics.SweepStopped(ctx, stopReason(err))
		}
	case err == nil && !o.DryRun && total(s.report.Found) > 0:
		f.log.InfoContext(ctx, "sweep ended", "seen", s.report.Seen, "deleted", total(s.report.Deleted))
	}
	if err != nil {
		return s.report, fmt.Errorf("sweep: %w", err)
	}
	return s.report, nil
}

func stopReason(err error) string {
	if errors.Is(err, ErrEpochChanged) {
		return "epoch"
	}
	return "share"
}

// sweep is one Sweep on its way.
type sweep struct {
	farm   *Farm
	now    time.Time
	report SweepReport
	epoch  ledger.Epoch
	found  func(SweepItem)

	deleting bool
	limit    int // of deletions, -1 for none
	batch    []SweepItem

	// The last owner's verdict: keys of one owner stand together.
	owner   blob.Owner
	verdict verdict
	decided bool
}

func (s *sweep) run(ctx context.Context, o SweepOptions) error {
	s.found = o.Found
	var err error
	if s.epoch, err = s.farm.turnEpoch(ctx, o); err != nil {
		return err
	}
	if err := s.pass(ctx); err != nil {
		return err
	}
	s.limit = max(sweepFloor, s.report.Seen/sweepShare)
	if o.AllowMany {
		s.limit = -1
	}
	n := total(s.report.Found)
	switch {
	case s.limit >= 0 && n > s.limit:
		return fmt.Errorf("%w: %d of %d", ErrSweepsTooMuch, n, s.report.Seen)
	case o.DryRun || n == 0:
		return nil
	}
	s.deleting, s.decided = true, false
	return s.pass(ctx)
}

// pass goes over everything once. Records come first: the bytes of a record
// that went are looked at after it.
func (s *sweep) pass(ctx context.Context) error {
	if err := s.records(ctx); err != nil {
		return err
	}
	for _, area := range []string{blob.AreaIncoming, blob.AreaRenders, blob.AreaSources} {
		if err := s.objects(ctx, area+"/"); err != nil {
			return err
		}
	}
	return s.unfinished(ctx)
}

// old reports whether nobody can be about to write down what is of that time.
func (s *sweep) old(t time.Time) bool { return s.now.Sub(t) > s.farm.cfg.OrphanAge }

// take is called with everything that may go. It reports whether that is to be
// deleted now.
func (s *sweep) take(item SweepItem) (bool, error) {
	if !s.deleting {
		s.count(s.report.Found, item)
		if s.found != nil {
			s.found(item)
		}
		return false, nil
	}
	if s.limit >= 0 && total(s.report.Deleted)+len(s.batch) >= s.limit {
		return false, fmt.Errorf("%w: %d of %d, and more came", ErrSweepsTooMuch, s.limit, s.report.Seen)
	}
	return true, nil
}

func (s *sweep) count(counts map[SweepClass]SweepCount, item SweepItem) {
	c := counts[item.Class]
	c.Count++
	c.Bytes += item.Size
	counts[item.Class] = c
}

func (s *sweep) deleted(ctx context.Context, items ...SweepItem) {
	for _, item := range items {
		s.count(s.report.Deleted, item)
		s.farm.log.InfoContext(ctx, "swept", "class", item.Class, "key", item.Key, "bytes", item.Size)
		if s.farm.cfg.Metrics != nil {
			s.farm.cfg.Metrics.Swept(ctx, string(item.Class))
		}
	}
}

// sameEpoch makes sure, right before a deletion, that the ledger that was asked
// is still the same one.
func (s *sweep) sameEpoch(ctx context.Context) error {
	now, err := s.farm.stores.Ledger.Epoch(ctx)
	if err != nil {
		return fmt.Errorf("read the epoch: %w", err)
	}
	if now.ID != s.epoch.ID || now.Turn < s.epoch.Turn {
		return fmt.Errorf("%w: it changed during the sweep", ErrEpochChanged)
	}
	return nil
}

func (s *sweep) objects(ctx context.Context, prefix string) error {
	for info, err := range s.farm.stores.Blobs.List(ctx, prefix) {
		if err != nil {
			return fmt.Errorf("list objects: %w", err)
		}
		if !s.deleting {
			s.report.Seen++
		}
		owner, ok := blob.OwnerOf(info.Key)
		if !ok || !s.old(info.Modified) {
			continue
		}
		v, err := s.judge(ctx, owner)
		if err != nil {
			return err
		}
		if v.class == "" || v.keep[info.Key] {
			continue
		}
		item := SweepItem{Class: v.class, Key: info.Key, Size: info.Size}
		now, err := s.take(item)
		if err != nil {
			return errors.Join(err, s.flush(ctx))
		}
		if !now {
			continue
		}
		if s.batch = append(s.batch, item); len(s.batch) == sweepBatch {
			if err := s.flush(ctx); err != nil {
				return err
			}
		}
	}
	return s.flush(ctx)
}

// flush deletes the batch.
func (s *sweep) flush(ctx context.Context) error {
	if len(s.batch) == 0 {
		return nil
	}
	if err := s.sameEpoch(ctx); err != nil {
		return err
	}
	keys := make([]string, 0, len(s.batch))
	for _, item := range s.batch {
		keys = append(keys, item.Key)
	}
	if err := s.farm.stores.Blobs.Delete(ctx, keys...); err != nil {
		return fmt.Errorf("delete objects: %w", err)
	}
	s.deleted(ctx, s.batch...)
	s.batch = s.batch[:0]
	return nil
}

func (s *sweep) unfinished(ctx context.Context) error {
	for u, err := range s.farm.stores.Blobs.ListUnfinished(ctx, "") {
		if err != nil {
			return fmt.Errorf("list unfinished uploads: %w", err)
		}
		if !s.deleting {
			s.report.Seen++
		}
		owner, ok := blob.OwnerOf(u.Key)
		if !ok || !s.old(u.Begun) {
			continue
		}
		if owner.Area == blob.AreaRenders { // nobody uploads to another area for so long
			v, err := s.judge(ctx, owner)
			if err != nil {
				return err
			}
			if v.class == "" {
				continue
			}
		}
		item := SweepItem{Class: SweepUnfinished, Key: u.Key}
		now, err := s.take(item)
		if err != nil {
			return err
		}
		if !now {
			continue
		}
		if err := s.sameEpoch(ctx); err != nil {
			return err
		}
		if err := s.farm.stores.Blobs.Abort(ctx, u); err != nil {
			return fmt.Errorf("end an unfinished upload: %w", err)
		}
		s.deleted(ctx, item)
	}
	return nil
}

// records looks at the assets' records. The scan may lag; the compare-and-set
// of the deletion does not.
func (s *sweep) records(ctx context.Context) error {
	for entry, err := range s.farm.stores.Ledger.Assets(ctx) {
		if err != nil {
			return fmt.Errorf("read assets: %w", err)
		}
		if !s.deleting {
			s.report.Seen++
		}
		gone, err := s.recordMayGo(ctx, entry.Asset)
		if err != nil {
			return err
		}
		if !gone {
			continue
		}
		item := SweepItem{Class: SweepRecord, Key: entry.Asset.ID.URI()}
		now, err := s.take(item)
		if err != nil {
			return err
		}
		if !now {
			continue
		}
		if err := s.sameEpoch(ctx); err != nil {
			return err
		}
		err = s.farm.stores.Ledger.DeleteAsset(ctx, entry)
		if errors.Is(err, ledger.ErrConflict) {
			continue // it changed: the next sweep looks again
		}
		if err != nil {
			return fmt.Errorf("delete an asset's record: %w", err)
		}
		s.deleted(ctx, item)
	}
	return nil
}

func (s *sweep) recordMayGo(ctx context.Context, a *render.Asset) (bool, error) {
	if s.now.Before(a.Expires) {
		if a.State == render.AssetPending || !s.old(a.Created) {
			return false, nil
		}
		_, err := s.farm.stores.Blobs.Stat(ctx, a.Object.Key)
		if err == nil {
			return false, nil
		}
		if !errors.Is(err, blob.ErrNotFound) {
			return false, fmt.Errorf("look for an asset's bytes: %w", err)
		}
	}
	user, err := s.farm.user(ctx, a.Tenant.Key(), a.ID)
	return err == nil && user == "", err
}

// verdict is what may become of the objects of an owner: of class "" nothing,
// else all but those to keep.
type verdict struct {
	class SweepClass
	keep  map[string]bool
}

func (s *sweep) judge(ctx context.Context, o blob.Owner) (verdict, error) {
	if s.decided && s.owner == o {
		return s.verdict, nil
	}
	v, err := s.decide(ctx, o)
	s.owner, s.verdict, s.decided = o, v, err == nil
	return v, err
}

func (s *sweep) decide(ctx context.Context, o blob.Owner) (verdict, error) {
	if o.Render != "" {
		return s.decideRender(ctx, o)
	}
	entry, err := s.farm.stores.Ledger.AssetOf(ctx, o.TenantKey, o.Asset)
	absent := errors.Is(err, ledger.ErrNotFound)
	if err != nil && !absent {
		return verdict{}, fmt.Errorf("read an asset: %w", err)
	}
	if !absent && !s.deleting && !s.now.Before(entry.Asset.Expires) {
		absent = true // by the time of the deletion it will be
	}
	class := SweepSource
	switch {
	case o.Area == blob.AreaIncoming:
		class = SweepIncoming
		if !absent && entry.Asset.State == render.AssetPending {
			return verdict{}, nil
		}
	case o.Area == blob.AreaRenders:
		class = SweepLeftover
	case !absent:
		return verdict{class: class, keep: map[string]bool{entry.Asset.Object.Key: true}}, nil
	}
	// What a render pinned outlives the asset.
	user, err := s.farm.user(ctx, o.TenantKey, o.Asset)
	if err != nil || user != "" {
		return verdict{}, err
	}
	return verdict{class: class}, nil
}

func (s *sweep) decideRender(ctx context.Context, o blob.Owner) (verdict, error) {
	entry, err := s.farm.stores.Ledger.RenderOf(ctx, o.TenantKey, o.Render)
	if errors.Is(err, ledger.ErrNotFound) {
		return verdict{class: SweepRender}, nil
	}
	if err != nil {
		return verdict{}, fmt.Errorf("read a render: %w", err)
	}
	rec := entry.Record
	switch {
	case !rec.State.Terminal():
		return verdict{}, nil
	case !s.now.Before(rec.Expires()):
		return verdict{class: SweepRender}, nil
	default:
		return verdict{class: SweepLeftover, keep: named(rec)}, nil
	}
}

// turnEpoch makes sure that ledger and bucket belong together, and marks the
// bucket with the next turn of the ledger's epoch. The ledger turns first: a
// mark that is ahead of it means that the ledger went back in time.
func (f *Farm) turnEpoch(ctx context.Context, o SweepOptions) (ledger.Epoch, error) {
	for {
		epoch, err := f.stores.Ledger.Epoch(ctx)
		if err != nil {
			return epoch, fmt.Errorf("read the epoch: %w", err)
		}
		marks, ahead, foreign, err := f.epochMarks(ctx, epoch)
		if err != nil {
			return epoch, err
		}
		if wrong := unpaired(epoch, len(marks), ahead, foreign); wrong != nil && (o.DryRun || !o.ConfirmEpoch) {
			now, err := f.stores.Ledger.Epoch(ctx)
			if err == nil && now.ID == epoch.ID && now.Turn > epoch.Turn {
				continue // another sweep turned and marked between the two looks
			}
			return epoch, wrong
		}
		if o.DryRun {
			return epoch, nil
		}
		if len(marks) == 0 { // from the first turn on there always is one
			if marks, err = f.markEpoch(ctx, epoch); err != nil {
				return epoch, err
			}
		}
		next, err := f.stores.Ledger.TurnEpoch(ctx, epoch, max(ahead, epoch.Turn)+1)
		if errors.Is(err, ledger.ErrConflict) && ctx.Err() == nil {
			continue // another sweep
		}
		if err != nil {
			return epoch, fmt.Errorf("turn the epoch: %w", err)
		}
		failpoint.Hit(failpoint.SweepTurned)
		if _, err := f.markEpoch(ctx, next); err != nil {
			return epoch, err
		}
		failpoint.Hit(failpoint.SweepMarked)
		if err := f.stores.Blobs.Delete(ctx, marks...); err != nil {
			return epoch, fmt.Errorf("remove old marks: %w", err)
		}
		return next, nil
	}
}

// unpaired tells why a ledger's epoch and a bucket's marks do not belong
// together, of which ahead is the greatest turn.
func unpaired(epoch ledger.Epoch, marks int, ahead uint64, foreign bool) error {
	switch {
	case foreign:
		return fmt.Errorf("%w: the bucket belongs to another ledger", ErrEpochChanged)
	case ahead > epoch.Turn:
		return fmt.Errorf("%w: the ledger is older than the bucket", ErrEpochChanged)
	case marks == 0 && epoch.Turn > 0:
		return fmt.Errorf("%w: the bucket is not the one that was swept before", ErrEpochChanged)
	}
	return nil
}

// markEpoch marks the bucket with the epoch and returns the mark.
func (f *Farm) markEpoch(ctx context.Context, epoch ledger.Epoch) ([]string, error) {
	mark := blob.EpochKey(epoch.ID, epoch.Turn)
	if _, err := f.stores.Blobs.Put(ctx, mark, strings.NewReader(""), blob.PutOptions{Size: 0}); err != nil && !errors.Is(err, blob.ErrExists) {
		return nil, fmt.Errorf("mark the bucket: %w", err)
	}
	return []string{mark}, nil
}

// epochMarks lists the bucket's marks: the greatest turn among those of the
// epoch, and whether one is of another epoch.
func (f *Farm) epochMarks(ctx context.Context, epoch ledger.Epoch) (marks []string, ahead uint64, foreign bool, err error) {
	for info, err := range f.stores.Blobs.List(ctx, blob.EpochPrefix) {
		if err != nil {
			return nil, 0, false, fmt.Errorf("list the epoch's marks: %w", err)
		}
		marks = append(marks, info.Key)
		id, turn, _ := strings.Cut(strings.TrimPrefix(info.Key, blob.EpochPrefix), "/")
		n, err := strconv.ParseUint(turn, 10, 64)
		if id != epoch.ID || err != nil {
			foreign = true
			continue
		}
		ahead = max(ahead, n)
	}
	return marks, ahead, foreign, nil
}

// sweepForever sweeps about every Config.SweepEvery, however many processes
// run it.
func (f *Farm) sweepForever(ctx context.Context) error {
	look := max(f.cfg.SweepEvery/8, time.Second)
	for sleep(ctx, look+rand.N(look)) { //nolint:gosec // jitter
		if err := f.sweepIfDue(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (f *Farm) sweepIfDue(ctx context.Context) error {
	epoch, err := f.stores.Ledger.Epoch(ctx)
	if err != nil {
		return fmt.Errorf("read the epoch: %w", err)
	}
	if epoch.Turn > 0 && f.now().Sub(epoch.Turned) < f.cfg.SweepEvery {
		return nil
	}
	lease, err := f.stores.Ledger.LeaseName(ctx, "sweep", f.cfg.Holder)
	if errors.Is(err, ledger.ErrLeased) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lease the sweep: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		for sleep(ctx, f.cfg.Tuning.BeatEvery) {
			if err := lease.Renew(ctx); err != nil {
				cancel(err) // another may sweep
				return
			}
		}
	}()
	_, err = f.Sweep(ctx, SweepOptions{})
	cancel(nil)
	<-renewed
	if rerr := lease.Release(context.WithoutCancel(ctx)); rerr != nil {
		f.log.WarnContext(ctx, "release the sweep", "error", rerr)
	}
	if errors.Is(err, ErrEpochChanged) || errors.Is(err, ErrSweepsTooMuch) {
		return nil // said already
	}
	return err
}
