// Package ledgertest is the suite that a ledger's JetStream must pass, embedded
// or real. It takes a connection, so that the module of the contract does not
// depend on a server.
package ledgertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/vidforge/vidforge/pkg/internal/hostile"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

const (
	alice render.Tenant = "alice@example.com"
	bob   render.Tenant = "bob > * . tenant"
)

// bench is a ledger of its own on a shared server.
type bench struct {
	ledger.Ledger
	nc     *nats.Conn
	js     jetstream.JetStream
	prefix string
	leases time.Duration

	replicas int
}

// setup opens a ledger under a prefix that nobody else uses, with two shards so
// that keys really are spread.
func setup(t *testing.T, connect func(*testing.T) *nats.Conn, replicas int) *bench {
	t.Helper()
	b := &bench{nc: connect(t), prefix: rand.Text(), leases: 2 * time.Second, replicas: replicas}
	var err error
	if b.js, err = jetstream.New(b.nc); err != nil {
		t.Fatal(err)
	}
	if replicas > 1 {
		// The replicas of hundreds of buckets are much work for a cluster that
		// has other tests to serve.
		t.Cleanup(func() { b.deleteStreams(t) })
	}
	b.Ledger = b.open(t, b.nc)
	return b
}

func (b *bench) deleteStreams(t *testing.T) {
	t.Helper()
	if b.nc.IsClosed() { // a test of what happens then
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	names := b.js.StreamNames(ctx, jetstream.WithStreamListSubject("$KV.>"))
	for name := range names.Name() {
		if strings.Contains(name, b.prefix) {
			if err := b.js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
				t.Error(err)
			}
		}
	}
	if err := names.Err(); err != nil {
		t.Error(err)
	}
}

// open opens the same ledger again, as another process would.
func (b *bench) open(t *testing.T, nc *nats.Conn) ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(t.Context(), nc, ledger.Config{Shards: 2, Replicas: b.replicas, LeaseTTL: b.leases, Prefix: b.prefix})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return l
}

// streams are the ledger's streams. Their names come from the meta leader alone,
// their states each from its own: a cluster that is asked for the states of all
// its streams at once may leave some out.
func (b *bench) streams(t *testing.T) (streams []jetstream.Stream) {
	t.Helper()
	names := b.js.StreamNames(t.Context(), jetstream.WithStreamListSubject("$KV.>"))
	for name := range names.Name() {
		if !strings.Contains(name, b.prefix) {
			continue
		}
		s, err := b.js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	if err := names.Err(); err != nil {
		t.Fatal(err)
	}
	return streams
}

// messages counts everything that the ledger's streams hold.
func (b *bench) messages(t *testing.T) (n uint64) {
	t.Helper()
	for _, s := range b.streams(t) {
		n += s.CachedInfo().State.Msgs
	}
	return n
}

// raw reads the stored message of the subject that ends in suffix.
func (b *bench) raw(t *testing.T, suffix string) *jetstream.RawStreamMsg {
	t.Helper()
	for _, s := range b.streams(t) {
		full, err := s.Info(t.Context(), jetstream.WithSubjectFilter(">"))
		if err != nil {
			t.Fatal(err)
		}
		for subject := range full.State.Subjects {
			if !strings.HasSuffix(subject, suffix) {
				continue
			}
			msg, err := s.GetLastMsgForSubject(t.Context(), subject)
			if err != nil {
				t.Fatal(err)
			}
			return msg
		}
	}
	t.Fatalf("no stored message for …%s", suffix)
	return nil
}

// wantTTL checks that the stored message expires in about d; 0 is never.
func (b *bench) wantTTL(t *testing.T, suffix string, d time.Duration) {
	t.Helper()
	header := b.raw(t, suffix).Header.Get(jetstream.MsgTTLHeader)
	if d == 0 {
		if header != "" {
			t.Errorf("…%s expires after %s, want never", suffix, header)
		}
		return
	}
	got, err := time.ParseDuration(header)
	if err != nil || got > d+time.Minute || got < d-time.Minute {
		t.Errorf("…%s expires after %q (%v), want %s", suffix, header, err, d)
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newRecord(tenant render.Tenant) *render.Record {
	now := time.Now().UTC()
	return render.New(render.NewID(), tenant, render.Spec{
		Source: render.NewAssetID(), Format: render.Format("mp4"), Resolution: render.Resolution("720p"), Quality: render.Quality("standard"),
	}, render.SourceRef{Asset: render.NewAssetID(), Object: render.Object{Key: "k", ETag: "e", Size: 1}}, nil, now)
}

func ended(t *testing.T, rec *render.Record) *render.Record {
	t.Helper()
	next, err := render.Apply(rec, render.Cancelled{By: "test"}, time.Now().UTC())
	ok(t, err)
	return next
}

func newAsset(tenant render.Tenant) *render.Asset {
	now := time.Now().UTC()
	return &render.Asset{ID: render.NewAssetID(), Tenant: tenant, Name: "a.mp4", State: render.AssetProbing, Created: now, Expires: now.Add(48 * time.Hour)}
}

func work(tenant render.Tenant, task render.ID, s render.Stage, index int) render.Work {
	return render.Work{Tenant: tenant, Task: task, Generation: 1, Stage: s, Index: index}
}

// Run runs the suite. connect returns a connection that lives as long as its
// test; the server may be shared.
func Run(t *testing.T, connect func(*testing.T) *nats.Conn) {
	RunReplicated(t, connect, 1)
}

// RunReplicated runs the suite with so many replicas of everything, which needs
// a cluster of as many servers.
func RunReplicated(t *testing.T, connect func(*testing.T) *nats.Conn, replicas int) {
	for name, test := range map[string]func(*testing.T, *bench){
		"Renders":             testRenders,
		"RenderConflict":      testRenderConflict,
		"TerminalRender":      testTerminalRender,
		"StateAlone":          testStateAlone,
		"SameRenderAtOnce":    testSameRenderAtOnce,
		"ForgedState":         testForgedState,
		"PauseEnds":           testPauseEndsInTheApproval,
		"UnknownFields":       testUnknownFields,
		"ForeignTenant":       testForeignTenant,
		"MalformedIDs":        testMalformedIDs,
		"WatchRenders":        testWatchRenders,
		"Assets":              testAssets,
		"ListAssets":          testListAssets,
		"Bind":                testBind,
		"BindAtOnce":          testBindAtOnce,
		"Slots":               testSlots,
		"SlotsAtOnce":         testSlotsAtOnce,
		"ScansLeaveNothing":   testScansLeaveNothing,
		"SameTaskSlotsAtOnce": testSameTaskSlotsAtOnce,
		"Results":             testResults,
		"FirstResultCounts":   testFirstResultCounts,
		"Attempts":            testAttempts,
		"AttemptsAreBounded":  testAttemptsAreBounded,
		"Leases":              testLeases,
		"LeaseExpires":        testLeaseExpires,
		"LeasesAtOnce":        testLeasesAtOnce,
		"Secrets":             testSecrets,
		"Epoch":               testEpoch,
		"Usage":               testUsage,
		"UsageAtOnce":         testUsageAtOnce,
		"ByTenantKey":         testByTenantKey,
		"Reopen":              testReopen,
		"ServerAway":          testServerAway,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, setup(t, connect, replicas))
		})
	}
}

func testRenders(t *testing.T, b *bench) {
	ctx := t.Context()
	ok(t, b.Ping(ctx))
	want := map[render.ID]bool{}
	for _, tenant := range []render.Tenant{alice, bob} {
		for range 20 {
			rec := newRecord(tenant)
			made, err := b.CreateRender(ctx, rec)
			ok(t, err)
			want[rec.ID] = true
			// Another process reads it at once.
			got, err := b.GetRender(ctx, tenant, rec.ID)
			ok(t, err)
			if got.Revision != made.Revision || got.Record.SpecHash != rec.SpecHash || !got.Record.Created.Equal(rec.Created) || got.Record.Tenant != tenant {
				t.Fatalf("read %+v, created %+v", got.Record, rec)
			}
		}
	}
	_, err := b.GetRender(ctx, alice, render.NewID())
	wantErr(t, err, ledger.ErrNotFound)
	for e, err := range b.Renders(ctx) {
		ok(t, err)
		if !want[e.Record.ID] {
			t.Errorf("unexpected or repeated record %s", e.Record.ID)
		}
		delete(want, e.Record.ID)
		if e.Revision == 0 {
			t.Error("no revision")
		}
	}
	if len(want) > 0 {
		t.Errorf("%d records are missing", len(want))
	}
	for range b.Renders(ctx) {
		break // leaving early must not hang
	}
}

func testRenderConflict(t *testing.T, b *bench) {
	ctx := t.Context()
	rec := newRecord(alice)
	e, err := b.CreateRender(ctx, rec)
	ok(t, err)
	_, err = b.CreateRender(ctx, rec)
	wantErr(t, err, ledger.ErrExists)

	next, err := render.Apply(rec, render.Claimed{}, time.Now())
	ok(t, err)
	e2, err := b.UpdateRender(ctx, e, next)
	ok(t, err)
	_, err = b.UpdateRender(ctx, e, next)
	wantErr(t, err, ledger.ErrConflict)
	b.wantTTL(t, string(rec.ID), 2*render.RenderRetention)

	other := *next
	other.ID = render.NewID()
	if _, err := b.UpdateRender(ctx, e2, &other); err == nil {
		t.Error("a record was replaced by another's")
	}
	_, err = b.UpdateRender(ctx, ledger.RenderEntry{Record: &other}, &other)
	wantErr(t, err, ledger.ErrConflict) // no revision must not create

	// Of many that decide on the same record one wins.
	var wg sync.WaitGroup
	won := make(chan int, 20)
	for i := range 20 {
		wg.Go(func() {
			mine := *next
			mine.RestartReason = strconv.Itoa(i)
			switch _, err := b.UpdateRender(ctx, e2, &mine); {
			case err == nil:
				won <- i
			case !errors.Is(err, ledger.ErrConflict):
				t.Errorf("update: %v", err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d updates won, want 1", len(won))
	}
	got, err := b.GetRender(ctx, alice, rec.ID)
	ok(t, err)
	if i := <-won; got.Record.RestartReason != strconv.Itoa(i) {
		t.Errorf("the record says %s, the winner wrote %d", got.Record.RestartReason, i)
	}
}

func testTerminalRender(t *testing.T, b *bench) {
	ctx := t.Context()
	rec := newRecord(alice)
	e, err := b.CreateRender(ctx, rec)
	ok(t, err)
	e, err = b.UpdateRender(ctx, e, ended(t, rec))
	ok(t, err)
	b.wantTTL(t, string(rec.ID), render.RenderRetention)
	_, err = b.UpdateRender(ctx, e, rec)
	wantErr(t, err, ledger.ErrConflict)
	e, err = b.GetRender(ctx, alice, rec.ID)
	ok(t, err)
	_, err = b.UpdateRender(ctx, e, rec)
	wantErr(t, err, ledger.ErrConflict)
	e, err = b.GetRender(ctx, alice, rec.ID)
	ok(t, err)
	if e.Record.State != render.StateCancelled {
		t.Errorf("a terminal record became %s", e.Record.State)
	}

	// Expiry is the server's: a record that ended long ago goes at once.
	old := newRecord(alice)
	e, err = b.CreateRender(ctx, old)
	ok(t, err)
	late := ended(t, old)
	late.Ended = time.Now().Add(-render.RenderRetention)
	_, err = b.UpdateRender(ctx, e, late)
	ok(t, err)
	eventually(t, "an expired record is not found", func() bool {
		_, err := b.GetRender(ctx, alice, old.ID)
		return errors.Is(err, ledger.ErrNotFound)
	})
}

// eventually polls for what the server does by itself.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("still waiting until %s", what)
		}
	}
}

func testUnknownFields(t *testing.T, b *bench) {
	ctx := t.Context()
	rec := newRecord(alice)
	_, err := b.CreateRender(ctx, rec)
	ok(t, err)
	// A newer version added a field.
	msg := b.raw(t, string(rec.ID))
	data := protowire.AppendTag(msg.Data, 9999, protowire.BytesType)
	data = protowire.AppendString(data, "from the future")
	_, err = b.js.Publish(ctx, msg.Subject, data)
	ok(t, err)

	e, err := b.GetRender(ctx, alice, rec.ID)
	ok(t, err)
	for _, ev := range []render.Event{render.Claimed{}, render.Cancelled{By: "test"}} {
		next, err := render.Apply(e.Record, ev, time.Now())
		ok(t, err)
		e, err = b.UpdateRender(ctx, e, next)
		ok(t, err)
	}
	p := &vidforgev1.RenderRecord{}
	ok(t, proto.Unmarshal(b.raw(t, string(rec.ID)).Data, p))
	if n := strings.Count(string(p.ProtoReflect().GetUnknown()), "from the future"); n != 1 {
		t.Errorf("the unknown field is there %d times, want once", n)
	}
}

func testForeignTenant(t *testing.T, b *bench) {
	ctx := t.Context()
	rec, a := newRecord(alice), newAsset(alice)
	_, err := b.CreateRender(ctx, rec)
	ok(t, err)
	_, err = b.CreateAsset(ctx, a)
	ok(t, err)
	w := work(alice, rec.ID, render.StagePlan, 0)
	_, _, err = b.PutResult(ctx, &render.StageResult{Work: w, Attempt: "a"})
	ok(t, err)
	_, created, err := b.Bind(ctx, alice, hash(1), ledger.Binding{Task: rec.ID, SpecHash: "s"}, time.Hour)
	if err != nil || !created {
		t.Fatal(created, err)
	}
	for _, foreign := range []render.Tenant{bob, "", "*", ">", "alice@example.com ", "alice@example.com.x"} {
		_, err = b.GetRender(ctx, foreign, rec.ID)
		wantErr(t, err, ledger.ErrNotFound)
		_, err = b.GetAsset(ctx, foreign, a.ID)
		wantErr(t, err, ledger.ErrNotFound)
		fw := w
		fw.Tenant = foreign
		_, err = b.GetResult(ctx, fw)
		wantErr(t, err, ledger.ErrNotFound)
		if list, _, err := b.ListAssets(ctx, foreign, "", 10); err != nil || len(list) > 0 {
			t.Errorf("tenant %q lists %d foreign assets (%v)", foreign, len(list), err)
		}
		if n, err := b.CountResults(ctx, foreign, rec.ID, 1); err != nil || n > 0 {
			t.Errorf("tenant %q counts %d foreign results (%v)", foreign, n, err)
		}
		got, created, err := b.Bind(ctx, foreign, hash(1), ledger.Binding{Task: render.NewID()}, time.Hour)
		if err != nil || !created || got.Task == rec.ID {
			t.Errorf("tenant %q met a foreign key: %+v %v %v", foreign, got, created, err)
		}
	}
}

func hash(n int) string { return fmt.Sprintf("%064x", n) }

// testMalformedIDs gives every method ids that are wildcards or reach into
// other keys: nothing is read, nothing is written.
func testMalformedIDs(t *testing.T, b *bench) {
	ctx := t.Context()
	rec, a := newRecord(alice), newAsset(alice)
	re, err := b.CreateRender(ctx, rec)
	ok(t, err)
	ae, err := b.CreateAsset(ctx, a)
	ok(t, err)
	good := work(alice, rec.ID, render.StagePlan, 0)
	_, _, err = b.PutResult(ctx, &render.StageResult{Work: good, Attempt: "a"})
	ok(t, err)
	_, err = b.OpenAttempt(ctx, good, ledger.Attempt{ID: "a", Worker: "w"})
	ok(t, err)
	_, err = b.TakeSlot(ctx, alice, rec.ID, 1)
	ok(t, err)
	bound, _, err := b.Bind(ctx, alice, hash(1), ledger.Binding{Task: rec.ID}, time.Hour)
	ok(t, err)
	before := b.messages(t)

	var tried []string
	for _, s := range append(hostile.Strings(string(rec.ID)), hostile.Strings(string(a.ID))...) {
		id, aid := render.ID(s), render.AssetID(s)
		badRec, badAsset := *rec, *a
		badRec.ID, badAsset.ID = id, aid
		bad := good
		bad.Task = id
		probe := render.Work{Tenant: alice, Asset: aid, Generation: 1, Stage: render.StageProbe}
		stage, foreign := good, good
		stage.Stage, foreign.Tenant = render.Stage(s), render.Tenant(s)
		badRender, badEntry := re, ae
		badRender.Record, badEntry.Asset = &badRec, &badAsset

		calls := map[string]func() error{
			"CreateRender": func() error { _, err := b.CreateRender(ctx, &badRec); return err },
			"GetRender":    func() error { _, err := b.GetRender(ctx, alice, id); return err },
			"UpdateRender": func() error { _, err := b.UpdateRender(ctx, badRender, &badRec); return err },
			"CreateAsset":  func() error { _, err := b.CreateAsset(ctx, &badAsset); return err },
			"GetAsset":     func() error { _, err := b.GetAsset(ctx, alice, aid); return err },
			"UpdateAsset":  func() error { _, err := b.UpdateAsset(ctx, badEntry, &badAsset); return err },
			"DeleteAsset":  func() error { return b.DeleteAsset(ctx, badEntry) },
			"ListAssets": func() error {
				if s == "" {
					return ledger.ErrNotFound // the start of the list
				}
				_, _, err := b.ListAssets(ctx, alice, aid, 10)
				return err
			},
			"Bind hash": func() error {
				_, _, err := b.Bind(ctx, alice, s, ledger.Binding{Task: rec.ID}, time.Hour)
				return err
			},
			"Bind task": func() error {
				_, _, err := b.Bind(ctx, alice, hash(2), ledger.Binding{Task: id}, time.Hour)
				return err
			},
			"Unbind":          func() error { return b.Unbind(ctx, alice, s, ledger.Binding{Task: rec.ID, Revision: 1}) },
			"TakeSlot":        func() error { _, err := b.TakeSlot(ctx, alice, id, 5); return err },
			"FreeSlot":        func() error { return b.FreeSlot(ctx, alice, 0, id) },
			"PutResult":       func() error { _, _, err := b.PutResult(ctx, &render.StageResult{Work: bad}); return err },
			"GetResult":       func() error { _, err := b.GetResult(ctx, bad); return err },
			"CountResults":    func() error { _, err := b.CountResults(ctx, alice, id, 1); return err },
			"Results":         func() error { _, err := b.Results(ctx, alice, id, 1); return err },
			"OpenAttempt":     func() error { _, err := b.OpenAttempt(ctx, bad, ledger.Attempt{ID: "b"}); return err },
			"CloseAttempt":    func() error { _, err := b.CloseAttempt(ctx, bad, "a", ledger.OutcomeDone, ""); return err },
			"AttemptHistory":  func() error { _, err := b.AttemptHistory(ctx, bad); return err },
			"LeaseWork":       func() error { _, err := b.LeaseWork(ctx, bad, "me"); return err },
			"LeaseName":       func() error { _, err := b.LeaseName(ctx, "x"+s+"*", "me"); return err },
			"LeaseHolder":     func() error { _, err := b.LeaseHolder(ctx, "x"+s+"*"); return err },
			"Secret":          func() error { _, err := b.Secret(ctx, "x"+s+"*"); return err },
			"LeaseWork stage": func() error { _, err := b.LeaseWork(ctx, stage, "me"); return err },
			"GetResult probe": func() error { _, err := b.GetResult(ctx, probe); return err },
			"Usage":           func() error { _, err := b.Usage(ctx, alice, "x"+s+"*"); return err },
			"ChangeUsage": func() error {
				_, err := b.ChangeUsage(ctx, alice, "x"+s+"*", time.Hour, func(u *render.Usage) (bool, error) { u.Used++; return true, nil })
				return err
			},
			"RenderOf id":     func() error { _, err := b.RenderOf(ctx, alice.Key(), id); return err },
			"AssetOf id":      func() error { _, err := b.AssetOf(ctx, alice.Key(), aid); return err },
			"RenderOf tenant": func() error { _, err := b.RenderOf(ctx, s, rec.ID); return err },
			"AssetOf tenant":  func() error { _, err := b.AssetOf(ctx, s, a.ID); return err },
			"SlotsOf tenant":  func() error { _, err := b.SlotsOf(ctx, s); return err },
			"CloseAttempt id": func() error { _, err := b.CloseAttempt(ctx, good, s, ledger.OutcomeDone, ""); return err },
			// A tenant may have any name, and then has nothing of another's.
			"GetRender tenant": func() error { _, err := b.GetRender(ctx, render.Tenant(s), rec.ID); return err },
			"GetAsset tenant":  func() error { _, err := b.GetAsset(ctx, render.Tenant(s), a.ID); return err },
			"GetResult tenant": func() error { _, err := b.GetResult(ctx, foreign); return err },
			"ListAssets tenant": func() error {
				list, _, err := b.ListAssets(ctx, render.Tenant(s), "", 10)
				return unlessFound(len(list), err)
			},
			"Results tenant": func() error {
				list, err := b.Results(ctx, render.Tenant(s), rec.ID, 1)
				return unlessFound(len(list), err)
			},
			"CountResults tenant": func() error {
				n, err := b.CountResults(ctx, render.Tenant(s), rec.ID, 1)
				return unlessFound(n, err)
			},
			"AttemptHistory tenant": func() error {
				h, err := b.AttemptHistory(ctx, foreign)
				return unlessFound(len(h.Attempts), err)
			},
			"FreeSlot tenant": func() error { return unlessFound(0, b.FreeSlot(ctx, render.Tenant(s), 0, rec.ID)) },
			"Unbind tenant": func() error {
				err := b.Unbind(ctx, render.Tenant(s), hash(1), bound)
				if errors.Is(err, ledger.ErrConflict) { // it is not as the caller says
					return ledger.ErrNotFound
				}
				return err
			},
		}
		tried = slices.Collect(maps.Keys(calls))
		for name, call := range calls {
			if err := call(); !errors.Is(err, ledger.ErrNotFound) {
				t.Errorf("%s with %.60q: %.200v, want ErrNotFound", name, s, err)
			}
		}
	}
	hostile.Complete[ledger.Ledger](t, tried, "Renders", "WatchRenders", "Assets", "Slots", "Accounts", "Epoch", "TurnEpoch", "Ping")
	negative := good
	negative.Index = -1
	_, err = b.GetResult(ctx, negative)
	wantErr(t, err, ledger.ErrNotFound)
	wantErr(t, b.FreeSlot(ctx, alice, -1, rec.ID), ledger.ErrNotFound)
	if after := b.messages(t); after != before {
		t.Errorf("%d messages before, %d after", before, after)
	}
}

// unlessFound is ErrNotFound when there was nothing.
func unlessFound(n int, err error) error {
	if n == 0 && err == nil {
		return ledger.ErrNotFound
	}
	return err
}

func testWatchRenders(t *testing.T, b *bench) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := make(chan render.ID, 1000)
	done := make(chan error, 1)
	go func() {
		done <- b.WatchRenders(ctx, func(sign ledger.Sign) { seen <- sign.ID })
	}()
	// The watch begins at a time that only its first sign shows.
	eventually(t, "the watch sees something", func() bool {
		_, err := b.CreateRender(ctx, newRecord(alice))
		ok(t, err)
		return len(seen) > 0
	})
	want := map[render.ID]bool{}
	for range 10 { // of both shards
		rec := newRecord(bob)
		_, err := b.CreateRender(ctx, rec)
		ok(t, err)
		want[rec.ID] = true
	}
	for len(want) > 0 {
		select {
		case id := <-seen:
			delete(want, id)
		case <-time.After(2 * time.Minute):
			t.Fatalf("%d records were not seen", len(want))
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the watch ended with %v", err)
	}
}

func testAssets(t *testing.T, b *bench) {
	ctx := t.Context()
	a := newAsset(bob)
	e, err := b.CreateAsset(ctx, a)
	ok(t, err)
	b.wantTTL(t, string(a.ID), 48*time.Hour)
	_, err = b.CreateAsset(ctx, a)
	wantErr(t, err, ledger.ErrExists)
	ready := *a
	ready.State, ready.Facts = render.AssetReady, &render.Facts{Kind: "video", Video: 0, Audio: -1}
	e2, err := b.UpdateAsset(ctx, e, &ready)
	ok(t, err)
	b.wantTTL(t, string(a.ID), 48*time.Hour) // an update keeps the expiry
	_, err = b.UpdateAsset(ctx, e, &ready)
	wantErr(t, err, ledger.ErrConflict)
	wantErr(t, b.DeleteAsset(ctx, e), ledger.ErrConflict)
	got, err := b.GetAsset(ctx, bob, a.ID)
	ok(t, err)
	if got.Revision != e2.Revision || got.Asset.State != render.AssetReady || got.Asset.Facts.Audio != -1 {
		t.Errorf("read %+v", got.Asset)
	}
	n := 0
	for e, err := range b.Assets(ctx) {
		ok(t, err)
		if n++; e.Asset.ID != a.ID {
			t.Errorf("unexpected asset %s", e.Asset.ID)
		}
	}
	if n != 1 {
		t.Errorf("%d assets, want 1", n)
	}
	ok(t, b.DeleteAsset(ctx, got))
	_, err = b.GetAsset(ctx, bob, a.ID)
	wantErr(t, err, ledger.ErrNotFound)
	_, err = b.UpdateAsset(ctx, got, &ready)
	wantErr(t, err, ledger.ErrConflict)
	wantErr(t, b.DeleteAsset(ctx, got), ledger.ErrConflict)
	for range b.Assets(ctx) {
		t.Error("a deleted asset is still iterated over")
	}
}

func testListAssets(t *testing.T, b *bench) {
	ctx := t.Context()
	var want []render.AssetID
	for range 7 {
		a := newAsset(alice)
		_, err := b.CreateAsset(ctx, a)
		ok(t, err)
		if len(want) == 3 { // a deleted one takes no place
			e, err := b.CreateAsset(ctx, newAsset(alice))
			ok(t, err)
			ok(t, b.DeleteAsset(ctx, e))
		}
		want = append(want, a.ID)
		_, err = b.CreateAsset(ctx, newAsset(bob))
		ok(t, err)
	}
	slices.Sort(want)
	for _, limit := range []int{1, 2, 3, 7, 100, 0} {
		var got []render.AssetID
		after := render.AssetID("")
		for {
			page, next, err := b.ListAssets(ctx, alice, after, limit)
			ok(t, err)
			if len(page) > max(limit, 1) {
				t.Fatalf("a page of %d, limit %d", len(page), limit)
			}
			for _, a := range page {
				got = append(got, a.ID)
			}
			if next == "" {
				break
			}
			after = next
		}
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: %v, want %v", limit, got, want)
		}
	}
	// Going on from an id that is not there any more.
	page, _, err := b.ListAssets(ctx, alice, "a_00000000000000000000000000", 100)
	if err != nil || len(page) != len(want) {
		t.Errorf("%d assets (%v), want %d", len(page), err, len(want))
	}
}

func testBind(t *testing.T, b *bench) {
	ctx := t.Context()
	first := ledger.Binding{Task: render.NewID(), SpecHash: "one"}
	got, created, err := b.Bind(ctx, alice, hash(1), first, 24*time.Hour)
	if err != nil || !created || got.Task != first.Task || got.Revision == 0 {
		t.Fatalf("bind: %+v %v %v", got, created, err)
	}
	b.wantTTL(t, hash(1), 24*time.Hour)
	again, created, err := b.Bind(ctx, alice, hash(1), ledger.Binding{Task: render.NewID(), SpecHash: "two"}, 24*time.Hour)
	if err != nil || created || again != got {
		t.Fatalf("the second bind got %+v %v %v, want %+v", again, created, err, got)
	}
	stale := got
	stale.Revision++
	wantErr(t, b.Unbind(ctx, alice, hash(1), stale), ledger.ErrConflict)
	ok(t, b.Unbind(ctx, alice, hash(1), got))
	wantErr(t, b.Unbind(ctx, alice, hash(1), got), ledger.ErrConflict)
	third := ledger.Binding{Task: render.NewID(), SpecHash: "three"}
	got, created, err = b.Bind(ctx, alice, hash(1), third, time.Second)
	if err != nil || !created || got.Task != third.Task {
		t.Fatalf("bind after unbind: %+v %v %v", got, created, err)
	}
	eventually(t, "an expired key can be bound anew", func() bool {
		_, created, err := b.Bind(ctx, alice, hash(1), first, time.Hour)
		ok(t, err)
		return created
	})
}

func testBindAtOnce(t *testing.T, b *bench) {
	second := b.open(t, b.nc)
	var mu sync.Mutex
	tasks, winners := map[render.ID]bool{}, 0
	var wg sync.WaitGroup
	for i := range 50 {
		l := []ledger.Ledger{b.Ledger, second}[i%2]
		wg.Go(func() {
			got, created, err := l.Bind(t.Context(), alice, hash(7), ledger.Binding{Task: render.NewID()}, time.Hour)
			if err != nil {
				t.Errorf("bind: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			tasks[got.Task] = true
			if created {
				winners++
			}
		})
	}
	wg.Wait()
	if winners != 1 || len(tasks) != 1 {
		t.Errorf("%d winners and %d tasks, want one", winners, len(tasks))
	}
}

func testSlots(t *testing.T, b *bench) {
	ctx := t.Context()
	tasks := []render.ID{render.NewID(), render.NewID(), render.NewID()}
	for i, task := range tasks {
		for range 2 { // again: the same one
			n, err := b.TakeSlot(ctx, alice, task, 3)
			if err != nil || n != i {
				t.Fatalf("task %d got slot %d (%v)", i, n, err)
			}
		}
	}
	b.wantTTL(t, alice.Key()+".0", 8*24*time.Hour)
	fourth := render.NewID()
	_, err := b.TakeSlot(ctx, alice, fourth, 3)
	wantErr(t, err, ledger.ErrNoSlot)
	_, err = b.TakeSlot(ctx, alice, fourth, 0)
	wantErr(t, err, ledger.ErrNoSlot)
	if n, err := b.TakeSlot(ctx, bob, fourth, 3); err != nil || n != 0 {
		t.Errorf("another tenant got slot %d (%v)", n, err)
	}
	// A lower limit takes nothing away.
	if n, err := b.TakeSlot(ctx, alice, tasks[2], 1); err != nil || n != 2 {
		t.Errorf("a holder above the limit got %d (%v)", n, err)
	}
	ok(t, b.FreeSlot(ctx, alice, 1, tasks[0])) // not its own: no effect
	_, err = b.TakeSlot(ctx, alice, fourth, 3)
	wantErr(t, err, ledger.ErrNoSlot)
	ok(t, b.FreeSlot(ctx, alice, 1, tasks[1]))
	ok(t, b.FreeSlot(ctx, alice, 1, tasks[1]))
	if n, err := b.TakeSlot(ctx, alice, fourth, 3); err != nil || n != 1 {
		t.Errorf("the freed slot: got %d (%v)", n, err)
	}
	got := map[ledger.SlotHolder]bool{}
	for h, err := range b.Slots(ctx) {
		ok(t, err)
		if h.Taken.IsZero() {
			t.Error("no time of taking")
		}
		h.Taken = time.Time{}
		got[h] = true
	}
	want := []ledger.SlotHolder{{Tenant: alice, Slot: 0, Task: tasks[0]}, {Tenant: alice, Slot: 1, Task: fourth}, {Tenant: alice, Slot: 2, Task: tasks[2]}, {Tenant: bob, Slot: 0, Task: fourth}}
	for _, h := range want {
		if !got[h] {
			t.Errorf("slot %+v is missing in %v", h, got)
		}
	}
	if len(got) != len(want) {
		t.Errorf("slots %v, want %v", got, want)
	}
}

// testScansLeaveNothing: a scan, also one that is broken off, takes its consumer
// with it.
func testScansLeaveNothing(t *testing.T, b *bench) {
	ctx := t.Context()
	for range 3 {
		_, err := b.CreateRender(ctx, newRecord(alice))
		ok(t, err)
		_, err = b.TakeSlot(ctx, alice, render.NewID(), 10)
		ok(t, err)
	}
	for range b.Slots(ctx) {
		break
	}
	for _, err := range b.Slots(ctx) {
		ok(t, err)
	}
	for _, err := range b.Renders(ctx) {
		ok(t, err)
	}
	for _, err := range b.Assets(ctx) { // of which there are none
		ok(t, err)
	}
	streams := b.streams(t)
	for _, s := range streams {
		if info := s.CachedInfo(); info.State.Consumers != 0 {
			t.Errorf("%s has %d consumers", info.Config.Name, info.State.Consumers)
		}
	}
	if len(streams) < 5 {
		t.Errorf("saw %d buckets", len(streams))
	}
}

func testSlotsAtOnce(t *testing.T, b *bench) {
	const limit, tasks = 5, 40
	var mu sync.Mutex
	holders := map[int]render.ID{}
	refused := 0
	var wg sync.WaitGroup
	for range tasks {
		wg.Go(func() {
			task := render.NewID()
			n, err := b.TakeSlot(t.Context(), alice, task, limit)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, ledger.ErrNoSlot):
				refused++
			case err != nil:
				t.Errorf("take: %v", err)
			case holders[n] != "":
				t.Errorf("slot %d was given to two tasks", n)
			default:
				holders[n] = task
			}
		})
	}
	wg.Wait()
	if len(holders) != limit || refused != tasks-limit {
		t.Errorf("%d slots taken and %d refused, want %d and %d", len(holders), refused, limit, tasks-limit)
	}
}

func testSameTaskSlotsAtOnce(t *testing.T, b *bench) {
	task := render.NewID()
	var mu sync.Mutex
	got := map[int]int{}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			n, err := b.TakeSlot(t.Context(), alice, task, 8)
			if err != nil {
				t.Errorf("take: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			got[n]++
		})
	}
	wg.Wait()
	taken := 0
	for range b.Slots(t.Context()) {
		taken++
	}
	if len(got) != 1 || taken != 1 {
		t.Errorf("one task was given %v and holds %d slots", got, taken)
	}
}

func testResults(t *testing.T, b *bench) {
	ctx := t.Context()
	task := render.NewID()
	_, err := b.GetResult(ctx, work(alice, task, render.StagePlan, 0))
	wantErr(t, err, ledger.ErrNotFound)
	if n, err := b.CountResults(ctx, alice, task, 1); err != nil || n != 0 {
		t.Errorf("count of nothing: %d %v", n, err)
	}
	works := []render.Work{
		work(alice, task, render.StageAssemble, 0), work(alice, task, render.StageSegment, 10), work(alice, task, render.StageSegment, 2), work(alice, task, render.StageAudio, 0),
		work(alice, task, render.StagePlan, 0), work(alice, task, render.StagePreview, 0), work(alice, task, render.StageSegment, 0),
	}
	for _, w := range works {
		res := &render.StageResult{Work: w, Attempt: render.NewAttemptID(), Worker: "w1", Frames: 48, Object: render.Object{Key: "k", Size: 3}, Elapsed: time.Second}
		counts, first, err := b.PutResult(ctx, res)
		if err != nil || !first || counts.Attempt != res.Attempt {
			t.Fatalf("put: %v %v", first, err)
		}
		got, err := b.GetResult(ctx, w)
		ok(t, err)
		if got.Work != w || got.Attempt != res.Attempt || got.Frames != 48 || got.Object != res.Object || got.Elapsed != time.Second {
			t.Errorf("read %+v, want %+v", got, res)
		}
	}
	b.wantTTL(t, string(task)+".1.audio.0", 8*24*time.Hour)
	// Another generation, another task and another tenant do not count.
	later := work(alice, task, render.StageSegment, 0)
	later.Generation = 11
	for _, w := range []render.Work{later, work(alice, render.NewID(), render.StageSegment, 0), work(bob, task, render.StageSegment, 0)} {
		_, _, err := b.PutResult(ctx, &render.StageResult{Work: w})
		ok(t, err)
	}
	if n, err := b.CountResults(ctx, alice, task, 1); err != nil || n != 4 {
		t.Errorf("count %d (%v), want 3 segments and the audio", n, err)
	}
	results, err := b.Results(ctx, alice, task, 1)
	ok(t, err)
	want := []render.Work{works[5], works[4], works[6], works[2], works[1], works[3], works[0]}
	if len(results) != len(want) {
		t.Fatalf("%d results, want %d", len(results), len(want))
	}
	for i, res := range results {
		if res.Work != want[i] {
			t.Errorf("result %d is %+v, want %+v", i, res.Work, want[i])
		}
	}
	probe := render.Work{Tenant: alice, Asset: render.NewAssetID(), Generation: 1, Stage: render.StageProbe}
	_, first, err := b.PutResult(ctx, &render.StageResult{Work: probe, Facts: &render.Facts{Kind: "image"}})
	if err != nil || !first {
		t.Errorf("probe result: %v %v", first, err)
	}
	if got, err := b.GetResult(ctx, probe); err != nil || got.Facts == nil || got.Facts.Kind != "image" {
		t.Errorf("probe result: %+v %v", got, err)
	}
}

func testFirstResultCounts(t *testing.T, b *bench) {
	w := work(alice, render.NewID(), render.StageSegment, 3)
	var mu sync.Mutex
	var firsts []string
	counts := map[string]bool{}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			res := &render.StageResult{Work: w, Attempt: render.NewAttemptID()}
			got, first, err := b.PutResult(t.Context(), res)
			if err != nil {
				t.Errorf("put: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			counts[got.Attempt] = true
			if first {
				firsts = append(firsts, res.Attempt)
			}
		})
	}
	wg.Wait()
	if len(firsts) != 1 || len(counts) != 1 || !counts[firsts[0]] {
		t.Errorf("first: %v; what was returned as counting: %v", firsts, counts)
	}
}

func testAttempts(t *testing.T, b *bench) {
	ctx := t.Context()
	w := work(alice, render.NewID(), render.StageSegment, 0)
	h, err := b.AttemptHistory(ctx, w)
	if err != nil || len(h.Attempts) != 0 {
		t.Fatalf("history of nothing: %v %v", h, err)
	}
	_, err = b.CloseAttempt(ctx, w, "a1", ledger.OutcomeDone, "")
	wantErr(t, err, ledger.ErrNotFound)
	open := func(id, worker string) {
		t.Helper()
		h, err = b.OpenAttempt(ctx, w, ledger.Attempt{ID: id, Worker: worker, Opened: time.Now()})
		ok(t, err)
		if last := h.Attempts[len(h.Attempts)-1]; last.ID != id || last.Outcome != ledger.OutcomeOpen {
			t.Fatalf("the history ends in %+v", last)
		}
	}
	closed := func(id string, o ledger.Outcome) {
		t.Helper()
		h, err = b.CloseAttempt(ctx, w, id, o, "because")
		ok(t, err)
	}
	open("a1", "w1")
	open("a2", "w2") // a1 is lost
	closed("a1", ledger.OutcomeDone)
	if h.Attempts[0].Outcome != ledger.OutcomeLost {
		t.Errorf("a lost attempt was closed as %s", h.Attempts[0].Outcome)
	}
	closed("a2", ledger.OutcomeFailed)
	open("a3", "w2")
	closed("a3", ledger.OutcomeFailed)
	open("a4", "w3")
	closed("a4", ledger.OutcomeHandback)
	open("a5", "w3")
	_, err = b.CloseAttempt(ctx, w, "a9", ledger.OutcomeDone, "")
	wantErr(t, err, ledger.ErrNotFound)
	closed("a5", ledger.OutcomeDone)
	h, err = b.AttemptHistory(ctx, w)
	ok(t, err)
	for o, want := range map[ledger.Outcome][2]int{ledger.OutcomeLost: {1, 1}, ledger.OutcomeFailed: {2, 1}, ledger.OutcomeHandback: {1, 1}, ledger.OutcomeDone: {1, 1}, ledger.OutcomeOpen: {0, 0}} {
		if h.Count(o) != want[0] || h.Workers(o) != want[1] {
			t.Errorf("%s: %d attempts of %d workers, want %v", o, h.Count(o), h.Workers(o), want)
		}
	}
	if h.Attempts[1].Reason != "because" || h.Attempts[1].Worker != "w2" || h.Attempts[1].Opened.IsZero() {
		t.Errorf("attempt reads %+v", h.Attempts[1])
	}
	b.wantTTL(t, "attempts."+mustKey(t, w), 8*24*time.Hour)
	if h, err := b.AttemptHistory(ctx, work(alice, w.Task, render.StageSegment, 1)); err != nil || len(h.Attempts) != 0 {
		t.Errorf("another work's history: %v %v", h, err)
	}
}

func mustKey(t *testing.T, w render.Work) string {
	t.Helper()
	key, valid := w.Key()
	if !valid {
		t.Fatalf("no key for %+v", w)
	}
	return key
}

func testAttemptsAreBounded(t *testing.T, b *bench) {
	ctx := t.Context()
	w := work(alice, render.NewID(), render.StageSegment, 0)
	var h ledger.History
	attempt := func(i int, worker string, o ledger.Outcome) {
		id := fmt.Sprintf("a%d", i)
		_, err := b.OpenAttempt(ctx, w, ledger.Attempt{ID: id, Worker: worker})
		ok(t, err)
		h, err = b.CloseAttempt(ctx, w, id, o, "")
		ok(t, err)
	}
	for i := range 3 {
		attempt(i, fmt.Sprintf("w%d", i), ledger.OutcomeFailed)
	}
	for i := range 250 {
		attempt(100+i, "w0", ledger.OutcomeHandback)
	}
	if len(h.Attempts) > 200 {
		t.Errorf("the history grew to %d", len(h.Attempts))
	}
	if h.Workers(ledger.OutcomeFailed) != 3 {
		t.Errorf("%d workers failed, want 3 as before", h.Workers(ledger.OutcomeFailed))
	}
}

func testLeases(t *testing.T, b *bench) {
	ctx := t.Context()
	w := work(alice, render.NewID(), render.StageSegment, 0)
	for name, take := range map[string]func(holder string) (ledger.Lease, error){
		"work": func(holder string) (ledger.Lease, error) { return b.LeaseWork(ctx, w, holder) },
		"name": func(holder string) (ledger.Lease, error) { return b.LeaseName(ctx, "reconcile", holder) },
	} {
		first, err := take("w1")
		ok(t, err)
		ok(t, first.Renew(ctx))
		_, err = take("w2")
		wantErr(t, err, ledger.ErrLeased)
		// The same holder starts anew, its earlier lease is lost.
		second, err := take("w1")
		ok(t, err)
		wantErr(t, first.Renew(ctx), ledger.ErrLeaseLost)
		ok(t, first.Release(ctx)) // and harms nobody
		ok(t, second.Renew(ctx))
		ok(t, second.Release(ctx))
		ok(t, second.Release(ctx))
		wantErr(t, second.Renew(ctx), ledger.ErrLeaseLost)
		third, err := take("w2")
		if err != nil {
			t.Fatalf("%s: a released lease cannot be taken: %v", name, err)
		}
		ok(t, second.Release(ctx))
		ok(t, third.Renew(ctx))
		ok(t, third.Release(ctx))
	}
	_, err := b.LeaseHolder(ctx, "home")
	wantErr(t, err, ledger.ErrNotFound)
	home, err := b.LeaseName(ctx, "home", "10.0.0.1:80 of g1")
	ok(t, err)
	if holder, err := b.LeaseHolder(ctx, "home"); err != nil || holder != "10.0.0.1:80 of g1" {
		t.Errorf("the holder is %q, %v", holder, err)
	}
	ok(t, home.Release(ctx))
	_, err = b.LeaseHolder(ctx, "home")
	wantErr(t, err, ledger.ErrNotFound)
	other := w
	other.Index = 1
	_, err = b.LeaseWork(ctx, w, "w1")
	ok(t, err)
	_, err = b.LeaseWork(ctx, other, "w2") // another work
	ok(t, err)
}

func testLeaseExpires(t *testing.T, b *bench) {
	ctx := t.Context()
	w := work(alice, render.NewID(), render.StageSegment, 0)
	_, err := b.LeaseName(ctx, "home", "g1")
	ok(t, err)
	held, err := b.LeaseWork(ctx, w, "w1")
	ok(t, err)
	// Renewal keeps it for longer than it would have lived.
	tick := time.NewTicker(b.leases / 4)
	defer tick.Stop()
	for range 6 {
		<-tick.C
		ok(t, held.Renew(ctx))
		_, err := b.LeaseWork(ctx, w, "w2")
		wantErr(t, err, ledger.ErrLeased)
	}
	// Then its holder falls silent.
	var taken ledger.Lease
	eventually(t, "an expired lease can be taken", func() bool {
		taken, err = b.LeaseWork(ctx, w, "w2")
		if err != nil {
			wantErr(t, err, ledger.ErrLeased)
		}
		return err == nil
	})
	wantErr(t, held.Renew(ctx), ledger.ErrLeaseLost)
	ok(t, held.Release(ctx))
	ok(t, taken.Renew(ctx))
	_, err = b.LeaseHolder(ctx, "home")
	wantErr(t, err, ledger.ErrNotFound) // it was not renewed either, and is older
}

func testLeasesAtOnce(t *testing.T, b *bench) {
	w := work(alice, render.NewID(), render.StagePlan, 0)
	won := make(chan ledger.Lease, 20)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			l, err := b.LeaseWork(t.Context(), w, fmt.Sprintf("w%d", i))
			switch {
			case err == nil:
				won <- l
			case !errors.Is(err, ledger.ErrLeased):
				t.Errorf("lease: %v", err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Errorf("%d of 20 hold the lease", len(won))
	}
}

// testEpoch: everybody sees one epoch, and its turn only rises.
func testEpoch(t *testing.T, b *bench) {
	ctx := t.Context()
	second := b.open(t, b.nc)
	first, err := b.Epoch(ctx)
	ok(t, err)
	if same, err := second.Epoch(ctx); err != nil || same != first || first.ID == "" || first.Turn != 0 {
		t.Errorf("%+v and %+v, %v", first, same, err)
	}
	turned, err := second.TurnEpoch(ctx, first, 3)
	ok(t, err)
	if turned.ID != first.ID || turned.Turn != 3 || turned.Turned.Before(first.Turned) {
		t.Errorf("turned to %+v", turned)
	}
	_, err = b.TurnEpoch(ctx, first, 4)
	wantErr(t, err, ledger.ErrConflict)
	for _, turn := range []uint64{0, 2, 3} {
		_, err = b.TurnEpoch(ctx, turned, turn)
		wantErr(t, err, ledger.ErrConflict)
	}
	_, err = b.TurnEpoch(ctx, ledger.Epoch{ID: first.ID}, 9)
	wantErr(t, err, ledger.ErrConflict)
	var wg sync.WaitGroup
	won := make(chan bool, 8)
	for range cap(won) {
		wg.Go(func() {
			_, err := b.TurnEpoch(ctx, turned, 4)
			if err != nil && !errors.Is(err, ledger.ErrConflict) {
				t.Error(err)
			}
			won <- err == nil
		})
	}
	wg.Wait()
	close(won)
	n := 0
	for w := range won {
		if w {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d of those at once turned it", n)
	}
}

func testByTenantKey(t *testing.T, b *bench) {
	ctx := t.Context()
	rec, a := newRecord(alice), newAsset(alice)
	re, err := b.CreateRender(ctx, rec)
	ok(t, err)
	ae, err := b.CreateAsset(ctx, a)
	ok(t, err)
	slot, err := b.TakeSlot(ctx, alice, rec.ID, 5)
	ok(t, err)
	_, err = b.TakeSlot(ctx, bob, render.NewID(), 5)
	ok(t, err)
	if got, err := b.RenderOf(ctx, alice.Key(), rec.ID); err != nil || got.Revision != re.Revision || got.Record.ID != rec.ID {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := b.AssetOf(ctx, alice.Key(), a.ID); err != nil || got.Revision != ae.Revision || got.Asset.ID != a.ID {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := b.SlotsOf(ctx, alice.Key()); err != nil || len(got) != 1 || got[0].Task != rec.ID || got[0].Slot != slot || got[0].Tenant != alice {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = b.RenderOf(ctx, bob.Key(), rec.ID)
	wantErr(t, err, ledger.ErrNotFound)
	_, err = b.AssetOf(ctx, bob.Key(), a.ID)
	wantErr(t, err, ledger.ErrNotFound)
	if got, err := b.SlotsOf(ctx, render.Tenant("nobody").Key()); err != nil || len(got) > 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func testSecrets(t *testing.T, b *bench) {
	second := b.open(t, b.nc)
	var mu sync.Mutex
	got := map[string]bool{}
	var wg sync.WaitGroup
	for i := range 20 {
		l := []ledger.Ledger{b.Ledger, second}[i%2]
		wg.Go(func() {
			s, err := l.Secret(t.Context(), "idempotency")
			if err != nil || len(s) != 32 {
				t.Errorf("secret of %d bytes: %v", len(s), err)
			}
			mu.Lock()
			defer mu.Unlock()
			got[string(s)] = true
		})
	}
	wg.Wait()
	if len(got) != 1 {
		t.Errorf("%d secrets of one name", len(got))
	}
	other, err := b.Secret(t.Context(), "sessions")
	ok(t, err)
	if got[string(other)] {
		t.Error("two names have the same secret")
	}
}

func testReopen(t *testing.T, b *bench) {
	rec := newRecord(alice)
	_, err := b.CreateRender(t.Context(), rec)
	ok(t, err)
	again := b.open(t, b.nc)
	_, err = again.GetRender(t.Context(), alice, rec.ID)
	ok(t, err)
	for _, cfg := range []ledger.Config{
		{Prefix: b.prefix, Shards: 3, LeaseTTL: b.leases}, // keys would not be found any more
		{Prefix: "a.b"},
		{Prefix: b.prefix, Shards: -1},
		{Prefix: b.prefix, Shards: 2, LeaseTTL: time.Millisecond},
	} {
		if _, err := ledger.Open(t.Context(), b.nc, cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}

// testServerAway shows that calls end with their context, and with an error,
// when nobody answers.
func testServerAway(t *testing.T, b *bench) {
	rec := newRecord(alice)
	e, err := b.CreateRender(t.Context(), rec)
	ok(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.GetRender(ctx, alice, rec.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled read: %v", err)
	}
	if _, err := b.UpdateRender(ctx, e, ended(t, rec)); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled write: %v", err)
	}
	b.nc.Close()
	if _, err := b.GetRender(t.Context(), alice, rec.ID); err == nil || errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("a read over a closed connection: %v", err)
	}
	if err := b.Ping(t.Context()); err == nil {
		t.Error("a closed connection gave a sign of life")
	}
}
