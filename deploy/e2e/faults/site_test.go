package faults

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/vidforge/vidforge/deploy/e2e/servers"
	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

// tuning makes a dead process's work free soon.
var tuning = farm.Tuning{AckWait: 2 * time.Second, LeaseTime: 2 * time.Second, ReconcileEvery: time.Second}

// site is a farm of its own on servers that others use, too.
type site struct {
	t      testing.TB
	env    []string // what its programs are told
	stores farm.Stores
	farm   *farm.Farm // sweeps
	js     jetstream.JetStream
	prefix string

	mu   sync.Mutex
	urls map[*process]string
	born int
	// clients are those that the test made, one render each.
	clients int
}

func newSite(t testing.TB, on *servers.Servers) *site {
	t.Helper()
	e := on.Endpoints()
	stores := servers.Dial(t, e, farm.DialOptions{Tuning: tuning}).Stores
	nc, err := nats.Connect(e.NATSURL)
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return &site{
		t: t, stores: stores, js: js,
		// Its clock is ahead: what is left over is old to it at once.
		farm: farm.New(stores, farm.Config{
			Tuning: tuning, OrphanAge: time.Second, Now: func() time.Time { return time.Now().Add(time.Minute) }, Logger: slog.New(slog.DiscardHandler),
		}),
		prefix: e.Prefix + "vidforge_", urls: map[*process]string{},
		env: []string{
			"VIDFORGE_NATS_URL=" + e.NATSURL, "VIDFORGE_REDIS_URL=" + e.RedisURL, "VIDFORGE_PREFIX=" + e.Prefix,
			"VIDFORGE_S3_ENDPOINT=" + e.S3.Endpoint, "VIDFORGE_S3_BUCKET=" + e.S3.Bucket, "VIDFORGE_S3_PATH_STYLE=true",
			"VIDFORGE_S3_REGION=" + e.S3.Region, "VIDFORGE_S3_ACCESS_KEY=" + e.S3.AccessKey, "VIDFORGE_S3_SECRET_KEY=" + e.S3.SecretKey,
			"VIDFORGE_ACK_WAIT=" + tuning.AckWait.String(), "VIDFORGE_LEASE_TIME=" + tuning.LeaseTime.String(),
			"VIDFORGE_RECONCILE_EVERY=" + tuning.ReconcileEvery.String(),
		},
	}
}

func (s *site) name(of string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.born++
	return fmt.Sprintf("%s%d", of, s.born)
}

// gateways are the URLs of those that listen.
func (s *site) gateways() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Values(s.urls))
}

// gateway starts a gateway and waits until it listens; one that dies before is
// returned all the same.
func (s *site) gateway(env []string, points ...string) *process {
	s.t.Helper()
	p := launch(s.t, "vidforge-gateway", s.name("gateway"), points, slices.Concat(s.env, []string{
		"VIDFORGE_LISTEN=127.0.0.1:0", "VIDFORGE_OPS_LISTEN=127.0.0.1:0", "VIDFORGE_SHUTDOWN_TIMEOUT=1s", "VIDFORGE_SWEEP_EVERY=2s", "VIDFORGE_RENDER_MINUTES=1000000",
	}, env))
	if record := p.logged("gateway listens"); record != nil {
		s.mu.Lock()
		s.urls[p] = fmt.Sprintf("http://%v", record["address"])
		s.mu.Unlock()
		go func() {
			<-p.done
			s.mu.Lock()
			delete(s.urls, p)
			s.mu.Unlock()
		}()
	}
	return p
}

// worker starts a worker with one slot of each class and waits until it takes
// work.
func (s *site) worker(env []string, points ...string) *process {
	s.t.Helper()
	name := s.name("worker")
	p := launch(s.t, "vidforge-worker", name, points, slices.Concat(s.env, []string{
		"VIDFORGE_ID=" + name, "VIDFORGE_SLOTS=1", "VIDFORGE_OPS_LISTEN=127.0.0.1:0", "VIDFORGE_SCRATCH_DIR=" + s.t.TempDir(),
	}, env))
	p.logged("worker takes work")
	return p
}

// mortal is a program that is started again whenever it has died at a point,
// without that point, as a supervisor would.
type mortal struct {
	t     testing.TB
	start func(points []string) *process

	mu    sync.Mutex
	left  []string // points at which it will still die
	now   *process
	ended bool
	done  chan struct{}
}

func newMortal(t testing.TB, points []string, start func(points []string) *process) *mortal {
	t.Helper()
	m := &mortal{t: t, start: start, left: slices.Clone(points), done: make(chan struct{})}
	go m.run()
	t.Cleanup(m.end)
	return m
}

func (m *mortal) run() {
	defer close(m.done)
	for {
		m.mu.Lock()
		var arms []string
		for _, p := range m.left {
			arms = append(arms, p+"=kill")
		}
		ended := m.ended
		m.mu.Unlock()
		if ended {
			return
		}
		now := m.start(arms)
		m.mu.Lock()
		m.now = now
		if m.ended {
			now.ending.Store(true)
			now.signal(syscall.SIGKILL)
		}
		m.mu.Unlock()
		<-now.done
		if now.ending.Load() {
			return
		}
		fired := now.fired()
		m.mu.Lock()
		known := slices.Contains(m.left, fired)
		m.left = slices.DeleteFunc(m.left, func(p string) bool { return p == fired })
		m.mu.Unlock()
		if !known {
			m.t.Errorf("%s died by itself: %v", now.name, now.cmd.ProcessState)
			return
		}
	}
}

// end stops the program for good and waits.
func (m *mortal) end() {
	m.mu.Lock()
	m.ended = true
	if m.now != nil {
		m.now.ending.Store(true)
		m.now.signal(syscall.SIGKILL)
	}
	m.mu.Unlock()
	<-m.done
}

// unmet are the points at which the program did not die within the time: some
// it meets in its own time.
func (m *mortal) unmet(within time.Duration) (left []string) {
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) { // it is another process
		m.mu.Lock()
		left = slices.Clone(m.left)
		m.mu.Unlock()
		if len(left) == 0 {
			break
		}
	}
	return left
}

// left says what a story may leave behind.
type left struct {
	// litter are objects and uploads that only a sweep finds; some says that
	// there may be such, or none.
	litter, some bool
	// letter is one dead letter.
	letter bool
	// noSource says that somebody removed the source's bytes.
	noSource bool
}

// quiet waits until nothing but records and the objects that they name is left,
// sweeps what may be left, and says what is there all the same.
func (s *site) quiet(may left) {
	s.t.Helper()
	s.settled(may)
	if may.litter && s.objects(may) == nil {
		s.t.Error("there is nothing to sweep")
	}
	if _, err := s.farm.Sweep(s.t.Context(), farm.SweepOptions{AllowMany: true}); err != nil {
		s.t.Error(err)
	}
	if err := s.objects(may); err != nil {
		s.t.Errorf("after the sweep there is left:\n%v", err)
	}
}

// settled waits until nobody holds, waits for or does anything.
func (s *site) settled(may left) {
	s.t.Helper()
	var found error
	for deadline := time.Now().Add(patience / 2); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) { // others tidy up
		found = errors.Join(s.leases(), s.messages(may), s.slots(), s.usage(), s.records())
		if !may.litter && !may.some {
			found = errors.Join(found, s.objects(may))
		}
		if found == nil {
			return
		}
	}
	s.t.Errorf("after the end there is left:\n%v", found)
}

func (s *site) slots() error {
	var errs []error
	for holder, err := range s.stores.Ledger.Slots(s.t.Context()) {
		errs = append(errs, err, fmt.Errorf("slot %d is held by %s", holder.Slot, holder.Task))
	}
	return errors.Join(errs...)
}

// usage looks for render time that is set aside for nobody, and for videos that
// were counted twice or not at all.
func (s *site) usage() error {
	var errs []error
	want := map[render.Tenant]int64{}
	for entry, err := range s.stores.Ledger.Renders(s.t.Context()) {
		if errs = append(errs, err); err == nil && entry.Record.State == render.StateSucceeded {
			want[entry.Record.Tenant] += entry.Record.Output.Duration.Milliseconds()
		}
	}
	got := map[render.Tenant]int64{}
	for account, err := range s.stores.Ledger.Accounts(s.t.Context()) {
		errs = append(errs, err)
		for _, h := range account.Usage.Holds {
			errs = append(errs, fmt.Errorf("%s holds %d for %s", account.Name, h.Amount, h.ID))
		}
		got[account.Usage.Tenant] += account.Usage.Used
	}
	for tenant, n := range want {
		if got[tenant] != n {
			errs = append(errs, fmt.Errorf("%s made videos of %d ms, of which %d are counted", tenant, n, got[tenant]))
		}
	}
	return errors.Join(errs...)
}

// leases looks for leases of works. The reconcilers' own comes and goes.
func (s *site) leases() error {
	stream, err := s.js.Stream(s.t.Context(), "KV_"+s.prefix+"leases")
	if err != nil {
		return err
	}
	info, err := stream.Info(s.t.Context(), jetstream.WithSubjectFilter("$KV."+s.prefix+"leases.work.>"))
	if err != nil {
		return err
	}
	var errs []error
	for subject := range info.State.Subjects {
		msg, err := stream.GetLastMsgForSubject(s.t.Context(), subject)
		if err == nil && msg.Header.Get("KV-Operation") == "" {
			errs = append(errs, fmt.Errorf("lease %s: %s", subject, msg.Data))
		}
	}
	return errors.Join(errs...)
}

// messages looks for messages in the streams and at what their consumers wait
// for. A pause's timer that is not due stays until it is.
func (s *site) messages(may left) error {
	ctx := s.t.Context()
	var errs []error
	for name, filter := range map[string]string{"backlog": ">", "work": ">", "dead": ">", "timers": strings.TrimSuffix(s.prefix, "_") + ".timer.due.>"} {
		stream, err := s.js.Stream(ctx, s.prefix+name)
		if err != nil {
			return err
		}
		info, err := stream.Info(ctx, jetstream.WithSubjectFilter(filter))
		if err != nil {
			return err
		}
		if may.letter && name == "dead" && len(info.State.Subjects) == 1 {
			continue
		}
		for subject := range info.State.Subjects {
			errs = append(errs, fmt.Errorf("stream %s: %s", name, subject))
		}
		consumers := stream.ListConsumers(ctx)
		for c := range consumers.Info() {
			if c.NumAckPending > 0 || c.NumPending > 0 {
				errs = append(errs, fmt.Errorf("stream %s, consumer %s: %d pending, %d not acknowledged", name, c.Name, c.NumPending, c.NumAckPending))
			}
		}
		errs = append(errs, consumers.Err())
	}
	return errors.Join(errs...)
}

// records looks for renders and assets that are not what they are to become.
func (s *site) records() error {
	var errs []error
	for e, err := range s.stores.Ledger.Assets(s.t.Context()) {
		if err != nil {
			return err
		}
		if e.Asset.State != render.AssetReady {
			errs = append(errs, fmt.Errorf("asset %s is %s", e.Asset.ID, e.Asset.State)) // also pending: every client came back
		}
	}
	for _, rec := range s.renders() {
		if !rec.State.Terminal() {
			errs = append(errs, fmt.Errorf("render %s is %s at %s", rec.ID, rec.State, rec.Step))
		}
	}
	return errors.Join(errs...)
}

// objects compares what is stored with what the records name.
func (s *site) objects(may left) error {
	ctx := s.t.Context()
	var errs []error
	named := map[string]bool{}
	for e, err := range s.stores.Ledger.Assets(ctx) {
		if err != nil {
			return err
		}
		named[e.Asset.Object.Key] = !may.noSource
	}
	for _, rec := range s.renders() {
		if rec.Output != nil {
			named[rec.Output.Object.Key] = true
		}
		if rec.Preview != nil {
			named[rec.Preview.Object.Key] = true
		}
	}
	for info, err := range s.stores.Blobs.List(ctx, "") {
		if err != nil {
			return err
		}
		if _, ok := named[info.Key]; !ok && !strings.HasPrefix(info.Key, blob.EpochPrefix) {
			errs = append(errs, fmt.Errorf("object %s of %s, which no record names", info.Key, info.Modified))
		}
		delete(named, info.Key)
	}
	for key, there := range named {
		if there {
			errs = append(errs, fmt.Errorf("object %s is gone", key))
		}
	}
	for u, err := range s.stores.Blobs.ListUnfinished(ctx, "") {
		if err != nil {
			return err
		}
		errs = append(errs, fmt.Errorf("unfinished upload of %s", u.Key))
	}
	return errors.Join(errs...)
}

// renders are the records of all renders.
func (s *site) renders() (list []*render.Record) {
	s.t.Helper()
	for e, err := range s.stores.Ledger.Renders(s.t.Context()) {
		if err != nil {
			s.t.Fatal(err)
		}
		list = append(list, e.Record)
	}
	return list
}
