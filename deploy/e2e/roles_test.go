package e2e

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/vidforge/vidforge/deploy/e2e/servers"
	"github.com/vidforge/vidforge/gateway"
	"github.com/vidforge/vidforge/pkg/access"
	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/progress"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/wire"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
	"github.com/vidforge/vidforge/worker"
)

// rolesFarm is a farm on real servers whose gateway and workers each have their
// own restricted credentials.
type rolesFarm struct {
	t               *testing.T
	nats            *servers.NATS
	redis           *servers.Redis
	s3              *servers.S3
	admin           *redis.Client
	gateway, worker farm.Endpoints
	prefix, bucket  string
	refusals        atomic.Int64 // of the object store
	agent           *agent
	workerNC        *nats.Conn
	violations      chan string
	stores          *farm.Backends // with the gateway's rights
	gatewayNC       *nats.Conn
	gatewayJS       jetstream.JetStream
	workerS3        *minio.Client
}

const otherBucket = "another"

var rolesUsers = []access.User{{Name: "gateway", Role: access.Gateway}, {Name: "worker", Role: access.Worker}, {Name: "mole", Role: access.Worker}}

func newRolesFarm(t *testing.T) *rolesFarm {
	t.Helper()
	f := &rolesFarm{t: t, prefix: "F1", bucket: "roles", violations: make(chan string, 100)}
	secrets := map[string]string{}
	for _, server := range []string{"NATS", "REDIS"} {
		for _, u := range []string{"GATEWAY", "WORKER", "MOLE"} {
			name := server + "_PASSWORD_" + u
			secrets[name] = strings.ToLower(name)
			t.Setenv(name, secrets[name]) // the server reads it
		}
	}
	config, err := access.NATSConfig(f.prefix, func(r access.Role) access.NATS { return farm.NATSRights(f.prefix, 1, r) }, rolesUsers)
	if err != nil {
		t.Fatal(err)
	}
	f.nats = servers.StartNATS(t, servers.NATSOptions{Config: config})
	acl, err := access.RedisACL(func(r access.Role) []string { return progress.ACL(f.prefix, r) }, rolesUsers)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(os.Expand(acl, func(name string) string { return secrets[name] })), "\n")
	f.redis = servers.StartRedis(t, servers.RedisOptions{ACL: append(lines, "user admin on >admin ~* &* +@all")})
	f.admin = redis.NewClient(&redis.Options{Addr: f.redis.Addr, Username: "admin", Password: "admin"})
	t.Cleanup(func() { _ = f.admin.Close() })
	f.startS3()
	f.gateway, f.worker = f.endpoints("gateway"), f.endpoints("worker")
	f.worker.NATS.API = access.WorkerAPI
	return f
}

// startS3 makes accounts, buckets and the policy as an operator would. What
// programs send goes through a proxy that counts what is refused.
func (f *rolesFarm) startS3() {
	t := f.t
	t.Helper()
	f.s3 = servers.StartS3(t, servers.S3Options{Accounts: []servers.Account{
		{Access: "gateway", Secret: "gateway-secret", Role: "user"},
		{Access: "worker", Secret: "worker-secret", Role: "user"},
		{Access: "mole", Secret: "mole-secret", Role: "user"},
	}})
	root := f.minio(f.s3.Root.Access, f.s3.Root.Secret)
	policy, err := access.S3Policy(func(r access.Role) []access.Statement { return blob.Access(f.bucket, r) }, rolesUsers)
	if err != nil {
		t.Fatal(err)
	}
	for _, bucket := range []string{f.bucket, otherBucket} {
		if err := root.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{Region: servers.S3Region}); err != nil {
			t.Fatal(err)
		}
	}
	if err := root.SetBucketPolicy(t.Context(), f.bucket, policy); err != nil {
		t.Fatal(err)
	}
	if _, err := root.PutObject(t.Context(), otherBucket, "x", strings.NewReader("x"), 1, minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	f.workerS3 = f.minio("mole", "mole-secret")
}

func (f *rolesFarm) minio(access, secret string) *minio.Client {
	f.t.Helper()
	c, err := minio.New(strings.TrimPrefix(f.s3.URL, "http://"), &minio.Options{
		Creds: credentials.NewStaticV4(access, secret, ""), Region: servers.S3Region, BucketLookup: minio.BucketLookupPath,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// counted is the object store behind a proxy that counts refusals.
func (f *rolesFarm) counted() string {
	f.t.Helper()
	target, err := url.Parse(f.s3.URL)
	if err != nil {
		f.t.Fatal(err)
	}
	counting := httptest.NewServer(proxy(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // it is signed
		},
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode == http.StatusForbidden {
				f.refusals.Add(1)
				f.t.Logf("the object store refused %s %s", r.Request.Method, r.Request.URL.Path)
			}
			return nil
		},
	}))
	f.t.Cleanup(counting.Close)
	return counting.URL
}

func (f *rolesFarm) endpoints(user string) farm.Endpoints {
	e := farm.Endpoints{NATSURL: f.nats.URL, RedisURL: f.redis.URL, Prefix: f.prefix}
	e.NATS.User, e.NATS.Password, e.NATS.Inbox = user, "nats_password_"+user, access.Inbox(user)
	e.Redis.User, e.Redis.Password = user, "redis_password_"+user
	e.S3 = f.s3.Config(f.bucket)
	e.S3.Endpoint, e.S3.PublicEndpoint, e.S3.CreateBucket = f.counted(), f.s3.URL, false
	e.S3.AccessKey, e.S3.SecretKey = user, user+"-secret"
	return e
}

// TestRoles renders with restricted programs, then tries with a worker's
// credentials what a worker must not do.
func TestRoles(t *testing.T) {
	f := newRolesFarm(t)
	// The worker comes first and waits.
	spawn(t, role{Worker: &worker.Config{Endpoints: f.worker, ID: "w1", ScratchDir: t.TempDir()}})
	gateways := newReplicas(t, 2, gateway.Config{Endpoints: f.gateway})
	f.agent = &agent{url: gateways.all[0].url, t: t, tasks: true, forms: true}
	f.connect()
	// Gateways find each other and know each other's key.
	old := &oldAgent{url: gateways.url, t: t}
	for range 4 {
		if tools := old.ask("tools/list", map[string]any{}); tools.Result == nil || old.sessions != 1 {
			t.Fatalf("a session at two gateways: %+v, %d sessions", tools, old.sessions)
		}
	}

	source := f.agent.upload(clip(t, 1, "160x120"))
	ids := map[string]string{}
	for _, name := range []string{"approved", "forged"} {
		got := f.agent.call("vidforge_render_video", args(source, map[string]any{"watermark": map[string]any{"text": name}}))
		ids[name], _ = got.Result["taskId"].(string)
		f.agent.poll(ids[name], "input_required")
	}
	f.approve(ids["approved"])
	f.agent.poll(ids["approved"], "completed")
	if result := f.agent.poll(ids["approved"], "completed").Result["result"].(map[string]any); result["isError"] == true {
		t.Fatalf("the render failed: %+v", result)
	}
	f.noViolations()

	t.Run("a decision is not the worker's", func(t *testing.T) { f.forgesADecision(t, ids["forged"]) })
	f.approve(ids["forged"])
	f.agent.poll(ids["forged"], "completed")
	t.Run("nor is a render", f.makesARender)
	t.Run("nats", f.natsRefuses)
	t.Run("answers of others' requests", f.deputies)
	t.Run("redis", f.redisRefuses)
	t.Run("s3", func(t *testing.T) { f.s3Refuses(t, render.ID(ids["approved"])) })
}

func (f *rolesFarm) approve(id string) {
	f.t.Helper()
	got := f.agent.ask("tools/call", map[string]any{"name": "vidforge_approve_watermark", "arguments": map[string]any{"render_id": id, "approved": true}})
	if got.code() != "" {
		f.t.Fatalf("approve: %+v", got)
	}
}

// noViolations: no server refused anything so far.
func (f *rolesFarm) noViolations() {
	f.t.Helper()
	if log := f.nats.Log(); strings.Contains(log, "iolation") {
		f.t.Error("nats-server refused something")
	}
	entries, err := f.admin.ACLLog(f.t.Context(), 10).Result()
	if err != nil || len(entries) > 0 {
		f.t.Errorf("redis refused %+v, %v", entries, err)
	}
	if n := f.refusals.Load(); n > 0 {
		f.t.Errorf("the object store refused %d requests", n)
	}
}

// connect makes the connections of a mole, who has a worker's credentials, and
// of the one who looks whether it got anywhere, with a gateway's.
func (f *rolesFarm) connect() {
	t := f.t
	t.Helper()
	f.stores = servers.Dial(t, f.gateway, farm.DialOptions{Role: access.Gateway})
	f.workerNC = f.nats.Connect(t, nats.UserInfo("mole", "nats_password_mole"), nats.CustomInboxPrefix(access.Inbox("mole")),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { f.violations <- err.Error() }))
	f.gatewayNC = f.nats.Connect(t, nats.UserInfo("gateway", "nats_password_gateway"), nats.CustomInboxPrefix(access.Inbox("gateway")))
	var err error
	if f.gatewayJS, err = jetstream.New(f.gatewayNC); err != nil {
		t.Fatal(err)
	}
}

func (f *rolesFarm) kv(bucket, key string) string {
	return "$KV." + f.prefix + "vidforge_" + bucket + "." + key
}

// forgesADecision writes with a worker's rights that a paused render was
// approved.
func (f *rolesFarm) forgesADecision(t *testing.T, id string) {
	entry, err := f.stores.Ledger.GetRender(t.Context(), render.LocalTenant, render.ID(id))
	if err != nil {
		t.Fatal(err)
	}
	forged := *entry.Record
	forged.State, forged.Step = render.StateRendering, render.StepPlan
	forged.Decision = &render.Decision{Approved: true, By: "the boss", Channel: render.ChannelPage, At: time.Now()}
	f.writes(t, f.kv("renders_0", render.LocalTenant.Key()+"."+id), wire.FromRender(&forged))
	f.enqueues(t, render.Work{Tenant: render.LocalTenant, Task: render.ID(id), Generation: 1, Stage: render.StagePlan})
	got := f.agent.poll(id, "input_required", "completed", "failed", "working")
	if got.Result["status"] != "input_required" {
		t.Errorf("the gateway believes a forged decision: %+v", got)
	}
	if entry, err = f.stores.Ledger.GetRender(t.Context(), render.LocalTenant, render.ID(id)); err != nil || entry.Record.Decision != nil {
		t.Errorf("decision %+v, %v", entry.Record.Decision, err)
	}
}

// makesARender writes a record and a message with a worker's rights.
func (f *rolesFarm) makesARender(t *testing.T) {
	rec := render.New(render.NewID(), render.LocalTenant, render.Spec{Format: "mp4", Resolution: "720p", Quality: "draft"}, render.SourceRef{}, nil, time.Now())
	f.writes(t, f.kv("renders_0", render.LocalTenant.Key()+"."+string(rec.ID)), wire.FromRender(rec))
	w := render.Work{Tenant: render.LocalTenant, Task: rec.ID, Generation: 1, Stage: render.StagePlan}
	f.enqueues(t, w)
	if h, err := f.stores.Ledger.AttemptHistory(t.Context(), w); err != nil || len(h.Attempts) > 0 {
		t.Errorf("a worker worked on what no gateway submitted: %+v, %v", h, err)
	}
	if got := f.agent.ask("tasks/get", map[string]any{"taskId": string(rec.ID)}); got.Error == nil {
		t.Errorf("the gateway shows a render that nobody submitted: %+v", got)
	}
	for entry, err := range f.stores.Ledger.Renders(t.Context()) {
		if err != nil || entry.Record.ID == rec.ID {
			t.Errorf("reconciliation sees %+v, %v", entry.Record, err)
		}
	}
}

// writes writes a record over whatever is there.
func (f *rolesFarm) writes(t *testing.T, subject string, p *vidforgev1.RenderRecord) {
	t.Helper()
	data, err := wire.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(f.workerNC)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), subject, data); err != nil {
		t.Fatalf("a worker cannot write states any more: %v", err)
	}
}

// enqueues publishes work with a worker's rights and waits until it is gone.
func (f *rolesFarm) enqueues(t *testing.T, w render.Work) {
	t.Helper()
	q, err := jobs.Open(t.Context(), f.workerNC, jobs.Config{Role: access.Worker, API: access.WorkerAPI, Prefix: f.prefix})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Enqueue(t.Context(), jobs.Message{Work: w}); err != nil {
		t.Fatal(err)
	}
	class := w.Stage.Class()
	if _, err := q.Unfinished(t.Context(), class); err != nil {
		t.Errorf("a worker cannot count works: %v", err)
	}
	for deadline := time.Now().Add(time.Minute); ; <-time.After(50 * time.Millisecond) {
		d, err := f.stores.Jobs.Depth(t.Context(), class)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the work is still there: %+v, %v", d, err)
		}
		if d.Backlog+d.Ready+d.Running == 0 {
			return
		}
	}
}

// refused waits for the server's word that it refused a subject.
func (f *rolesFarm) refused(t *testing.T, subject string) {
	t.Helper()
	for {
		select {
		case v := <-f.violations:
			if strings.Contains(v, `"`+subject+`"`) {
				return
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("%s was not refused", subject)
		}
	}
}

func (f *rolesFarm) natsRefuses(t *testing.T) {
	owner := render.LocalTenant.Key() + "." + string(render.NewID())
	stream := func(bucket string) string { return "KV_" + f.prefix + "vidforge_" + bucket }
	subjects := map[string]string{
		"a submission":               f.kv("intents_0", owner+".submission"),
		"a decision":                 f.kv("intents_0", owner+".approval"),
		"an asset":                   f.kv("assets", owner),
		"an idempotency key":         f.kv("idem", owner),
		"a slot":                     f.kv("slots", render.LocalTenant.Key()+".0"),
		"a secret":                   f.kv("secrets", "idempotency"),
		"a leadership":               f.kv("leases", "name.reconcile"),
		"a gateway's address":        f.kv("leases", "name.gateway-x"),
		"work past the dispatcher":   f.prefix + "vidforge.work.cpu.x",
		"a timer":                    f.prefix + "vidforge.timer.set.x",
		"a cancellation":             f.prefix + "vidforge.cancel.x",
		"another farm's state":       "$KV.F2vidforge_renders_0." + owner,
		"another user's answer":      access.Inbox("worker") + ".x.y",
		"a gateway's answer":         access.Inbox("gateway") + ".x.y",
		"the system":                 "$SYS.REQ.SERVER.PING",
		"an export that is not made": f.prefix + "vidforge.anything",
	}
	for _, api := range []string{access.DefaultAPI, access.WorkerAPI} {
		for what, call := range map[string]string{
			"make a stream":             "STREAM.CREATE.X",
			"change a stream":           "STREAM.UPDATE." + stream("renders_0"),
			"delete a stream":           "STREAM.DELETE." + stream("renders_0"),
			"purge a stream":            "STREAM.PURGE." + stream("works_0"),
			"delete a message":          "STREAM.MSG.DELETE." + f.prefix + "vidforge_backlog",
			"list streams":              "STREAM.LIST",
			"read a secret":             "STREAM.MSG.GET." + stream("secrets"),
			"read a secret directly":    "DIRECT.GET." + stream("secrets"),
			"look for secrets":          "STREAM.INFO." + stream("secrets"),
			"read idempotency keys":     "STREAM.MSG.GET." + stream("idem"),
			"watch records":             "CONSUMER.CREATE." + stream("renders_0") + ".spy",
			"make a push consumer":      "CONSUMER.DURABLE.CREATE." + stream("intents_0") + ".spy",
			"delete a consumer":         "CONSUMER.DELETE." + f.prefix + "vidforge_work.cpu",
			"fetch timers":              "CONSUMER.MSG.NEXT." + f.prefix + "vidforge_timers.due",
			"read another farm's state": "STREAM.MSG.GET.KV_F2vidforge_renders_0",
			"snapshot a stream":         "STREAM.SNAPSHOT." + stream("renders_0"),
			"restore a stream":          "STREAM.RESTORE." + stream("renders_0"),
		} {
			subjects[what+" by "+api] = api + "." + call
		}
	}
	for what, subject := range subjects {
		t.Run(what, func(t *testing.T) {
			if err := f.workerNC.PublishRequest(subject, access.Inbox("mole")+".x", []byte("{}")); err != nil {
				t.Fatal(err)
			}
			if err := f.workerNC.Flush(); err != nil {
				t.Fatal(err)
			}
			f.refused(t, subject)
		})
	}
	for _, subject := range []string{">", "$KV.>", "$JS.>", "_INBOX.>", access.Inbox("worker") + ".>", access.Inbox("gateway") + ".>", f.prefix + "vidforge.>", f.prefix + "vidforge.wake.*", "$SYS.>"} {
		t.Run("listen to "+subject, func(t *testing.T) {
			sub, err := f.workerNC.SubscribeSync(subject)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.workerNC.Flush(); err != nil {
				t.Fatal(err)
			}
			f.refused(t, subject)
			_ = sub.Unsubscribe() // there is none
		})
	}
	t.Run("roll all keys of a bucket up", func(t *testing.T) {
		subject := f.kv("works_0", "junk")
		before := f.count(t, stream("works_0"))
		msg := nats.NewMsg(subject)
		msg.Header.Set("Nats-Rollup", "all")
		answer, err := f.workerNC.RequestMsgWithContext(t.Context(), msg)
		if err != nil || !strings.Contains(string(answer.Data), "error") {
			t.Errorf("answered %+v, %v", answer, err)
		}
		if after := f.count(t, stream("works_0")); after != before {
			t.Errorf("%d messages before, %d after", before, after)
		}
	})
}

func (f *rolesFarm) count(t *testing.T, stream string) uint64 {
	t.Helper()
	s, err := f.gatewayJS.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.LastSeq
}

// deputies has the server send answers to requests that a worker may make to
// subjects that it may not write.
func (f *rolesFarm) deputies(t *testing.T) {
	buckets := []string{"intents_0", "assets", "slots", "secrets", "idem"}
	before := map[string]uint64{}
	for _, b := range buckets {
		before[b] = f.count(t, "KV_"+f.prefix+"vidforge_"+b)
	}
	renders := access.WorkerAPI + ".STREAM.MSG.GET.KV_" + f.prefix + "vidforge_renders_0"
	next := access.WorkerAPI + ".CONSUMER.MSG.NEXT." + f.prefix + "vidforge_work.gpu" // nobody else pulls
	for _, b := range buckets {
		for request, body := range map[string]string{renders: `{"seq":1}`, next: `{"batch":1,"expires":1000000}`} {
			if err := f.workerNC.PublishRequest(request, f.kv(b, "evil"), []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A request of its own comes back after those: the server took them in turn.
	if _, err := f.workerNC.RequestWithContext(t.Context(), renders, []byte(`{"seq":1}`)); err != nil {
		t.Fatal(err)
	}
	for _, b := range buckets {
		if after := f.count(t, "KV_"+f.prefix+"vidforge_"+b); after != before[b] {
			t.Errorf("an answer was written into %s", b)
		}
	}
	// To the API itself, on the user's behalf.
	if err := f.workerNC.PublishRequest(renders, access.DefaultAPI+".STREAM.PURGE.KV_"+f.prefix+"vidforge_renders_0", []byte(`{"seq":1}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.workerNC.RequestWithContext(t.Context(), renders, []byte(`{"seq":1}`)); err != nil {
		t.Fatal(err)
	}
	s, err := f.gatewayJS.Stream(t.Context(), "KV_"+f.prefix+"vidforge_renders_0")
	if err != nil || s.CachedInfo().State.Msgs == 0 {
		t.Errorf("the records are gone: %v", err)
	}
}

func (f *rolesFarm) redisRefuses(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: f.redis.Addr, Username: "mole", Password: "redis_password_mole"})
	t.Cleanup(func() { _ = c.Close() })
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]any{
		{"FLUSHALL"}, {"FLUSHDB"}, {"KEYS", "*"}, {"SCAN", "0"}, {"CONFIG", "GET", "*"}, {"ACL", "SETUSER", "mole", "allcommands"}, {"ACL", "LIST"},
		{"SHUTDOWN", "NOSAVE"}, {"MONITOR"}, {"EVAL", "return 1", "0"}, {"SUBSCRIBE", "x"}, {"CLIENT", "KILL", "TYPE", "normal"},
		{"SET", f.prefix + "rate:{t}:submit", "0"}, {"GET", f.prefix + "rate:{t}:submit"}, {"DEL", f.prefix + "live:{x}"}, {"HGETALL", f.prefix + "live:{x}"},
		{"SET", "F2{workers}:x", "0"}, {"HSET", "F2live:{x}", "a", "b"}, {"SET", "x", "y"},
	} {
		err := c.Do(t.Context(), command...).Err()
		if err == nil || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("%v: %v", command, err)
		}
	}
	anonymous := redis.NewClient(&redis.Options{Addr: f.redis.Addr})
	t.Cleanup(func() { _ = anonymous.Close() })
	if err := anonymous.Ping(t.Context()).Err(); err == nil {
		t.Error("Redis answers strangers")
	}
}

func (f *rolesFarm) s3Refuses(t *testing.T, id render.ID) {
	ctx, c := t.Context(), f.workerS3
	entry, err := f.stores.Ledger.GetRender(ctx, render.LocalTenant, id)
	if err != nil {
		t.Fatal(err)
	}
	source, video := entry.Record.Source.Object, entry.Record.Output.Object
	put := func(bucket, key string) error {
		_, err := c.PutObject(ctx, bucket, key, strings.NewReader("evil"), 4, minio.PutObjectOptions{DisableMultipart: true})
		return err
	}
	core := minio.Core{Client: c}
	for what, act := range map[string]func() error{
		"put a source":       func() error { return put(f.bucket, "sources/x/y/z") },
		"overwrite a source": func() error { return put(f.bucket, source.Key) },
		"begin a multipart source": func() error {
			_, err := core.NewMultipartUpload(ctx, f.bucket, source.Key, minio.PutObjectOptions{})
			return err
		},
		"copy over a source": func() error {
			_, err := c.CopyObject(ctx, minio.CopyDestOptions{Bucket: f.bucket, Object: source.Key}, minio.CopySrcOptions{Bucket: f.bucket, Object: video.Key})
			return err
		},
		"delete a source":      func() error { return c.RemoveObject(ctx, f.bucket, source.Key, minio.RemoveObjectOptions{}) },
		"delete a video":       func() error { return c.RemoveObject(ctx, f.bucket, video.Key, minio.RemoveObjectOptions{}) },
		"put an upload":        func() error { return put(f.bucket, "incoming/x/y") },
		"mark the bucket":      func() error { return put(f.bucket, blob.EpochPrefix+"x/1") },
		"put beside all areas": func() error { return put(f.bucket, "x") },
		"put beside renders":   func() error { return put(f.bucket, "renders") },
		"delete the bucket":    func() error { return c.RemoveBucket(ctx, f.bucket) },
		"make a bucket":        func() error { return c.MakeBucket(ctx, "mine", minio.MakeBucketOptions{}) },
		"change the policy":    func() error { return c.SetBucketPolicy(ctx, f.bucket, "") },
		"list unfinished":      func() error { return list(c.ListIncompleteUploads(ctx, f.bucket, "", true)) },
		"read another bucket":  func() error { _, err := c.StatObject(ctx, otherBucket, "x", minio.StatObjectOptions{}); return err },
		"write to another":     func() error { return put(otherBucket, "renders/x") },
		"tag a source": func() error {
			return c.RemoveObjectTagging(ctx, f.bucket, source.Key, minio.RemoveObjectTaggingOptions{})
		},
		"put by a presigned URL": func() error { return f.presignedPut(t, source.Key) },
		"delete many": func() error {
			objects := make(chan minio.ObjectInfo, 1)
			objects <- minio.ObjectInfo{Key: source.Key}
			close(objects)
			for e := range c.RemoveObjects(ctx, f.bucket, objects, minio.RemoveObjectsOptions{}) {
				return e.Err
			}
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			err := act()
			if code := minio.ToErrorResponse(err).Code; err == nil || code != "AccessDenied" && !strings.Contains(err.Error(), "403") {
				t.Errorf("answered %v", err)
			}
		})
	}
	// What it may: read a source, write below renders.
	o, err := c.GetObject(ctx, f.bucket, source.Key, minio.GetObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if n, err := got.ReadFrom(o); err != nil || n != source.Size {
		t.Errorf("read %d bytes of a source of %d, %v", n, source.Size, err)
	}
	if err := put(f.bucket, "renders/x/y/z"); err != nil {
		t.Errorf("a worker cannot store what it made: %v", err)
	}
	if _, err := f.stores.Blobs.Stat(ctx, video.Key); err != nil {
		t.Errorf("the video: %v", err)
	}
	if o, err := f.stores.Blobs.Stat(ctx, source.Key); err != nil || o.ETag != source.ETag {
		t.Errorf("the source is %+v, was %+v, %v", o, source, err)
	}
}

func list(uploads <-chan minio.ObjectMultipartInfo) error {
	for u := range uploads {
		if u.Err != nil {
			return u.Err
		}
	}
	return nil
}

// presignedPut sends what a worker's own signature would allow, if it might.
func (f *rolesFarm) presignedPut(t *testing.T, key string) error {
	t.Helper()
	u, err := f.workerS3.PresignedPutObject(t.Context(), f.bucket, key, time.Minute)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, u.String(), strings.NewReader("evil"))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return nil
	}
	return errors.New(res.Status)
}

// TestWorkersStoresRefuseBeforeTheServerHasTo: a call that a worker has no right
// to would wait for an answer that does not come.
func TestWorkersStoresRefuseBeforeTheServerHasTo(t *testing.T) {
	t.Parallel()
	n := servers.StartNATS(t, servers.NATSOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := ledger.Open(ctx, n.Connect(t), ledger.Config{Role: access.Worker}); !errors.Is(err, ledger.ErrNotReady) {
		t.Fatalf("a ledger that is not there: %v", err)
	}
	if _, err := jobs.Open(ctx, n.Connect(t), jobs.Config{Role: access.Worker}); !errors.Is(err, jobs.ErrNotReady) {
		t.Fatalf("a queue that is not there: %v", err)
	}
	if _, err := ledger.Open(ctx, n.Connect(t), ledger.Config{Shards: 3}); err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.Open(ctx, n.Connect(t), jobs.Config{}); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(ctx, n.Connect(t), ledger.Config{Role: access.Worker})
	if err != nil {
		t.Fatal(err)
	}
	q, err := jobs.Open(ctx, n.Connect(t), jobs.Config{Role: access.Worker})
	if err != nil {
		t.Fatal(err)
	}
	id, now := render.NewID(), time.Now()
	rec := render.New(id, "t", render.Spec{}, render.SourceRef{}, nil, now)
	for name, call := range map[string]func() error{
		"CreateRender": func() error { _, err := l.CreateRender(ctx, rec); return err },
		"CreateAsset": func() error {
			_, err := l.CreateAsset(ctx, &render.Asset{ID: render.NewAssetID(), Tenant: "t", Expires: now})
			return err
		},
		"ListAssets is read only": func() error {
			if _, _, err := l.ListAssets(ctx, "t", "", 1); err != nil {
				return err
			}
			return ledger.ErrForbidden
		},
		"Bind": func() error {
			_, _, err := l.Bind(ctx, "t", strings.Repeat("a", 64), ledger.Binding{Task: id}, time.Hour)
			return err
		},
		"TakeSlot":     func() error { _, err := l.TakeSlot(ctx, "t", id, 1); return err },
		"FreeSlot":     func() error { return l.FreeSlot(ctx, "t", 0, id) },
		"Secret":       func() error { _, err := l.Secret(ctx, "idempotency"); return err },
		"Epoch":        func() error { _, err := l.Epoch(ctx); return err },
		"LeaseName":    func() error { _, err := l.LeaseName(ctx, "reconcile", "me"); return err },
		"WatchRenders": func() error { return l.WatchRenders(ctx, func(ledger.Sign) {}) },
		"Renders": func() error {
			for _, err := range l.Renders(ctx) {
				return err
			}
			return nil
		},
		"Schedule":   func() error { return q.Schedule(ctx, jobs.Timer{Tenant: "t", Task: id, Name: "x", At: now}) },
		"FetchTimer": func() error { _, _, err := q.FetchTimer(ctx, time.Second); return err },
		"Cancel":     func() error { return q.Cancel(ctx, id) },
		"Dispatch":   func() error { return q.Dispatch(ctx, render.ClassCPU) },
		"Depth":      func() error { _, err := q.Depth(ctx, render.ClassCPU); return err },
	} {
		if err := call(); !errors.Is(err, ledger.ErrForbidden) && !errors.Is(err, jobs.ErrForbidden) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
