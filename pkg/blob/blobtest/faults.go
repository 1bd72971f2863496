package blobtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/faultproxy"
	"github.com/vidforge/vidforge/pkg/render"
)

// faulty puts a proxy that understands HTTP before the store.
func (s suite) faulty(t *testing.T, change ...func(*blob.Config)) (*faultproxy.HTTP, *blob.S3) {
	t.Helper()
	u, err := url.Parse(s.config.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	p := faultproxy.NewHTTP(t, u.Host)
	through := func(c *blob.Config) { c.Endpoint, c.CreateBucket = "http://"+p.Addr(), false }
	return p, s.open(t, append([]func(*blob.Config){through}, change...)...)
}

// trial is one operation through a proxy that fails.
type trial struct {
	direct, store *blob.S3
	prefix        string
	data          []byte
	from          render.Object // holds data
}

// operation is a call and the requests that it makes.
type operation struct {
	name     string
	requests []string
	// call makes the call and checks its result. On success, made says what
	// must be under the prefix beside from, and gone that from must not be.
	call func(*testing.T, *trial) (made string, gone bool, err error)
	// mayApply: after an error the operation may have happened all the same.
	mayApply bool
}

// onlyReader hides what else a body can do.
type onlyReader struct{ io.Reader }

func operations() []operation {
	read := func(t *testing.T, c *trial, o blob.GetOptions, want []byte) error {
		r, err := c.store.Get(t.Context(), c.from.Key, o)
		if err != nil {
			return err
		}
		got, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err == nil && !bytes.Equal(got, want) {
			t.Errorf("a wrong success: %d bytes, or others, instead of %d", len(got), len(want))
		}
		return err
	}
	write := func(body func(*trial) (io.Reader, int64)) func(*testing.T, *trial) (string, bool, error) {
		return func(t *testing.T, c *trial) (string, bool, error) {
			r, size := body(c)
			o, err := c.store.Put(t.Context(), c.prefix+"made", r, blob.PutOptions{Size: size})
			if err == nil {
				checkObject(t, c, o)
			}
			return "made", false, err
		}
	}
	return []operation{
		{"get", []string{"get"}, func(t *testing.T, c *trial) (string, bool, error) {
			return "", false, read(t, c, blob.GetOptions{ETag: c.from.ETag}, c.data)
		}, false},
		{"ranged get", []string{"get"}, func(t *testing.T, c *trial) (string, bool, error) {
			return "", false, read(t, c, blob.GetOptions{Offset: 1000, Length: 300_000}, c.data[1000:301_000])
		}, false},
		{"download", []string{"get"}, func(t *testing.T, c *trial) (string, bool, error) {
			file := filepath.Join(t.TempDir(), "file")
			err := c.store.Download(t.Context(), c.from, file)
			got, rerr := os.ReadFile(file)
			switch {
			case err == nil && !bytes.Equal(got, c.data):
				t.Errorf("a wrong success: other bytes in the file, %v", rerr)
			case err != nil && !errors.Is(rerr, os.ErrNotExist):
				t.Errorf("a file was left: %v", rerr)
			}
			return "", false, err
		}, false},
		{"put", []string{"put"}, func(t *testing.T, c *trial) (string, bool, error) {
			return write(func(c *trial) (io.Reader, int64) { return onlyReader{bytes.NewReader(c.data)}, -1 })(t, c)
		}, false},
		{"put stream", []string{"begin", "part", "complete", "stat"}, write(func(c *trial) (io.Reader, int64) {
			return onlyReader{bytes.NewReader(c.data)}, -1
		}), false},
		{"put file", []string{"part"}, write(func(c *trial) (io.Reader, int64) {
			return bytes.NewReader(c.data), int64(len(c.data))
		}), false},
		{"stat", []string{"stat"}, func(t *testing.T, c *trial) (string, bool, error) {
			o, err := c.store.Stat(t.Context(), c.from.Key)
			if err == nil && (o.ETag != c.from.ETag || o.Size != c.from.Size) {
				t.Errorf("a wrong success: %+v", o)
			}
			return "", false, err
		}, false},
		{"copy", []string{"copy"}, func(t *testing.T, c *trial) (string, bool, error) {
			o, err := c.store.Copy(t.Context(), c.from, c.prefix+"made")
			if err == nil {
				checkObject(t, c, o)
			}
			return "made", false, err
		}, true},
		{"delete", []string{"delete"}, func(t *testing.T, c *trial) (string, bool, error) {
			return "", true, c.store.Delete(t.Context(), c.from.Key)
		}, true},
		{"list", []string{"list"}, func(t *testing.T, c *trial) (string, bool, error) {
			var keys []string
			for o, err := range c.store.List(t.Context(), c.prefix) {
				if err != nil {
					return "", false, err
				}
				keys = append(keys, o.Key)
			}
			if !slices.Equal(keys, []string{c.from.Key}) {
				t.Errorf("a wrong success: listed %q", keys)
			}
			return "", false, nil
		}, false},
	}
}

// checkObject compares what a put or copy returned with what is stored.
func checkObject(t *testing.T, c *trial, o render.Object) {
	t.Helper()
	if want := sha(c.data); o.Size != int64(len(c.data)) || o.SHA256 != want {
		t.Errorf("a wrong success: %+v, not %d bytes of %s", o, len(c.data), want)
	}
	if got := get(t, c.direct, o.Key, blob.GetOptions{ETag: o.ETag}); !bytes.Equal(got, c.data) {
		t.Error("a wrong success: other bytes are stored")
	}
}

// failure is what happens to the requests of one kind, and what comes of it.
type failure struct {
	name string
	// only are the operations (of the proxy) that it can happen to; nil: all.
	only []string
	// times is how often it happens, 0 for always.
	times int
	fault faultproxy.HTTPFault
	// want is the error that it ends with, nil for success.
	want error
	// tries is how many requests are made, 0: any number.
	tries int
	// short gives the store little patience.
	short bool
}

func failures() []failure {
	const mid = 200_000 // within every body
	refusal := func(status int, code string) faultproxy.HTTPFault {
		return faultproxy.HTTPFault{Status: status, Body: "<Error><Code>" + code + "</Code></Error>"}
	}
	sends, answers := []string{"put", "part"}, []string{"get"}
	return []failure{
		{name: "asked to slow down", times: 2, fault: faultproxy.SlowDown()},
		{name: "internal error", times: 1, fault: refusal(500, "InternalError")},
		{name: "gateway before the store", times: 1, fault: faultproxy.HTTPFault{Status: 502, Body: "<html>"}},
		{name: "connection closed", times: 2, fault: faultproxy.HTTPFault{CutRequest: -1}},
		{name: "answer lost", times: 1, fault: faultproxy.HTTPFault{LoseAnswer: true}},
		{name: "late", times: 1, fault: faultproxy.HTTPFault{Latency: 20 * time.Millisecond}, tries: 1},
		{name: "silent", times: 1, fault: faultproxy.HTTPFault{StallAnswer: -1}, short: true},
		{name: "body cut on its way in", only: sends, times: 2, fault: faultproxy.HTTPFault{CutRequest: mid}},
		{name: "body stalls on its way in", only: sends, times: 1, fault: faultproxy.HTTPFault{StallRequest: mid}, short: true},
		{name: "body changed on its way in", only: sends, times: 1, fault: faultproxy.HTTPFault{CorruptRequest: mid}},
		{name: "slow line in", only: sends, times: 1, fault: faultproxy.HTTPFault{Rate: 10 << 20}, tries: 1},
		{name: "body cut on its way out", only: answers, times: 3, fault: faultproxy.HTTPFault{CutAnswer: mid / 2}},
		{name: "body stalls on its way out", only: answers, times: 1, fault: faultproxy.HTTPFault{StallAnswer: mid}, short: true},
		{name: "slow line out", only: answers, times: 1, fault: faultproxy.HTTPFault{Rate: 10 << 20}, tries: 1},
		{name: "list cut", only: []string{"list"}, times: 2, fault: faultproxy.HTTPFault{CutAnswer: 100}},
		{name: "down", fault: faultproxy.SlowDown(), want: blob.ErrUnavailable},
		{name: "unreachable", fault: faultproxy.HTTPFault{CutRequest: -1}, want: blob.ErrUnavailable},
		{name: "changes every body", only: sends, fault: faultproxy.HTTPFault{CorruptRequest: mid}, want: blob.ErrUnavailable},
		{name: "denied", fault: refusal(403, "AccessDenied"), want: blob.ErrRefused},
		{name: "unknown access key", fault: refusal(403, "InvalidAccessKeyId"), want: blob.ErrRefused},
		{name: "no bucket", fault: refusal(404, "NoSuchBucket"), want: blob.ErrRefused},
	}
}

// testFaults crosses every operation with every failure of its requests: either
// the call succeeds with the right bytes stored or read, or it ends with the
// right error and nothing half done is left.
func testFaults(t *testing.T, s suite) {
	direct := s.open(t)
	large, _ := body(partSize+300_000, 1)
	for _, op := range operations() {
		data := large[:400_000]
		if len(op.requests) > 1 || op.requests[0] == "part" {
			data = large
		}
		for _, request := range op.requests {
			for _, f := range failures() {
				if f.only != nil && !slices.Contains(f.only, request) {
					continue
				}
				if request == "stat" && f.want != nil {
					continue // see testStatFails
				}
				name := fmt.Sprintf("%s/%s/%s", op.name, request, f.name)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					c := &trial{direct: direct, prefix: "faults/" + strings.ReplaceAll(name, " ", "-") + "/", data: data}
					if !strings.HasPrefix(op.name, "put") {
						c.from = put(t, direct, c.prefix+"from", data)
					}
					s.try(t, c, op, request, f)
				})
			}
		}
	}
}

func (s suite) try(t *testing.T, c *trial, op operation, request string, f failure) {
	proxy, store := s.faulty(t, func(c *blob.Config) {
		if f.short {
			c.Timeout = time.Second
			if request == "copy" || request == "complete" { // for which it waits ten times as long
				c.Timeout /= 4
			}
		}
	})
	c.store = store
	asked := 0
	proxy.SetFault(func(_ int, r *http.Request) faultproxy.HTTPFault {
		if faultproxy.Operation(r) != request {
			return faultproxy.HTTPFault{}
		}
		if asked++; f.times > 0 && asked > f.times {
			return faultproxy.HTTPFault{}
		}
		return f.fault
	})
	from := c.data
	made, gone, err := op.call(t, c)
	switch {
	case f.want == nil && err != nil:
		t.Errorf("error %v", err)
	case f.want != nil && !errors.Is(err, f.want):
		t.Errorf("error %v, not %v", err, f.want)
	case f.want != nil && (errors.Is(err, blob.ErrNotFound) || errors.Is(err, blob.ErrExists)):
		t.Errorf("misleading error %v", err)
	}
	if proxy.Faults() == 0 {
		t.Error("nothing happened")
	}
	most := 1
	if request == "part" {
		most = 2 // both parts at once
	}
	if errors.Is(f.want, blob.ErrRefused) && proxy.Faults() > most {
		t.Errorf("a refused request was made %d times", proxy.Faults())
	}
	if f.tries > 0 && request != "part" && asked != f.tries {
		t.Errorf("%d requests, not %d", asked, f.tries)
	}
	c.check(t, from, made, gone, err != nil, op.mayApply)
	for _, key := range s.openUploads(t) {
		// Nobody knows an upload whose begin was answered in vain: it is empty,
		// and left to whoever sweeps the bucket.
		unknown := request == "begin" && (f.fault.LoseAnswer || f.fault.StallAnswer != 0)
		if strings.HasPrefix(key, c.prefix) && !unknown {
			t.Errorf("an upload of %s is left", key)
		}
	}
}

// check looks at what is stored.
func (c *trial) check(t *testing.T, from []byte, made string, gone, failed, mayApply bool) {
	t.Helper()
	want := map[string][]byte{}
	if c.from.Key != "" && (!gone || failed) {
		want[c.prefix+"from"] = from
	}
	if made != "" && !failed {
		want[c.prefix+made] = c.data
	}
	_, keys := list(t, c.direct.List(t.Context(), c.prefix))
	for _, key := range keys {
		data, ok := want[key]
		if !ok && failed && mayApply && key == c.prefix+made {
			data, ok = c.data, true
		}
		if !ok {
			t.Errorf("%s is there", key)
			continue
		}
		delete(want, key)
		if got := get(t, c.direct, key, blob.GetOptions{}); !bytes.Equal(got, data) {
			t.Errorf("%s is half written: %d bytes, or others, instead of %d", key, len(got), len(data))
		}
	}
	if failed && mayApply {
		delete(want, c.prefix+"from")
	}
	for key := range want {
		t.Errorf("%s is missing", key)
	}
}

// testLostForGood: a store that does what it is asked but whose answers to it
// never arrive is asked what came of it.
func testLostForGood(t *testing.T, s suite) {
	direct := s.open(t)
	large, _ := body(partSize+300_000, 1)
	for _, op := range operations() {
		data := large
		if op.name == "put" {
			data = large[:300_000]
		}
		if !strings.HasPrefix(op.name, "put") {
			continue
		}
		request := "complete"
		if op.name == "put" {
			request = "put"
		}
		for name, others := range map[string]bool{"can be asked": false, "cannot be asked": true} {
			t.Run(op.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				proxy, store := s.faulty(t, func(c *blob.Config) { c.Attempts = 2 })
				c := &trial{direct: direct, store: store, prefix: "lost-" + strings.ReplaceAll(op.name+blind(others), " ", "-") + "/", data: data}
				lost := false
				proxy.SetFault(func(_ int, r *http.Request) faultproxy.HTTPFault {
					is := faultproxy.Operation(r) == request
					lost = lost || is
					switch {
					case is:
						return faultproxy.HTTPFault{LoseAnswer: true}
					case lost && others && faultproxy.Operation(r) != "abort":
						return faultproxy.HTTPFault{CutRequest: -1}
					}
					return faultproxy.HTTPFault{}
				})
				_, _, err := op.call(t, c)
				if !others && err != nil {
					t.Errorf("error %v", err)
				}
				if others {
					wantError(t, "put", err, blob.ErrUnavailable)
				}
				if got := get(t, direct, c.prefix+"made", blob.GetOptions{}); !bytes.Equal(got, c.data) {
					t.Error("it is half written")
				}
			})
		}
	}
}

func blind(b bool) string {
	if b {
		return "-blind"
	}
	return ""
}

// testStatFails: a finished upload that cannot be confirmed is no success.
func testStatFails(t *testing.T, s suite) {
	data, _ := body(partSize+500_000, 1)
	proxy, store := s.faulty(t)
	s.open(t)
	proxy.SetFault(func(_ int, r *http.Request) faultproxy.HTTPFault {
		if faultproxy.Operation(r) == "stat" {
			return faultproxy.SlowDown()
		}
		return faultproxy.HTTPFault{}
	})
	_, err := store.Put(t.Context(), "unconfirmed", bytes.NewReader(data), blob.PutOptions{Size: int64(len(data))})
	wantError(t, "put", err, blob.ErrUnavailable)
	_, err = store.Stat(t.Context(), "unconfirmed")
	wantError(t, "stat", err, blob.ErrUnavailable)
}

// testDamaged: bytes that are not the object's are never kept, whether they
// suffered on their way once or always.
func testDamaged(t *testing.T, s suite) {
	data, _ := body(1<<20, 1)
	o := put(t, s.open(t), "damaged", data)
	for name, times := range map[string]int{"once": 1, "always": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy, store := s.faulty(t)
			proxy.SetFault(func(n int, _ *http.Request) faultproxy.HTTPFault {
				if times > 0 && n > times {
					return faultproxy.HTTPFault{}
				}
				return faultproxy.HTTPFault{CorruptAnswer: 777_777}
			})
			file := filepath.Join(t.TempDir(), "file")
			err := store.Download(t.Context(), o, file)
			got, rerr := os.ReadFile(file)
			if times == 0 {
				wantError(t, "download", err, blob.ErrMismatch)
				wantError(t, "the file", rerr, os.ErrNotExist)
				return
			}
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("error %v, or other bytes", err)
			}
		})
	}
}

// testFullDisk: what the file says is not the store's fault.
func testFullDisk(t *testing.T, s suite) {
	store := s.open(t)
	data, _ := body(1000, 1)
	o := put(t, store, "full", data)
	err := store.Download(t.Context(), o, filepath.Join(t.TempDir(), "no", "such", "folder"))
	wantError(t, "download", err, blob.ErrFile)
	if errors.Is(err, blob.ErrUnavailable) {
		t.Errorf("misleading error %v", err)
	}
}

// testFileChanges: a file that is not what was announced is refused.
func testFileChanges(t *testing.T, s suite) {
	store := s.open(t)
	data, sum := body(2*partSize+1000, 1)
	_, other := body(1, 2)
	size := int64(len(data))
	for name, c := range map[string]struct {
		body io.Reader
		o    blob.PutOptions
		want error
	}{
		"as announced":     {bytes.NewReader(data), blob.PutOptions{Size: size, SHA256: sum}, nil},
		"from its middle":  {io.NewSectionReader(bytes.NewReader(append([]byte("head"), data...)), 4, size), blob.PutOptions{Size: size, SHA256: sum}, nil},
		"shorter":          {bytes.NewReader(data[1:]), blob.PutOptions{Size: size}, blob.ErrMismatch},
		"much shorter":     {bytes.NewReader(data[:partSize-1]), blob.PutOptions{Size: size}, blob.ErrMismatch},
		"longer":           {bytes.NewReader(append(data, 'x')), blob.PutOptions{Size: size}, blob.ErrMismatch},
		"of another hash":  {bytes.NewReader(data), blob.PutOptions{Size: size, SHA256: other}, blob.ErrMismatch},
		"cannot be read":   {&breaking{bytes.NewReader(data), partSize + 100}, blob.PutOptions{Size: size}, blob.ErrBody},
		"shrinks meantime": {&shrinking{Reader: bytes.NewReader(data)}, blob.PutOptions{Size: size}, blob.ErrUnavailable},
	} {
		key := "file/" + name
		_, err := store.Put(t.Context(), key, c.body, c.o)
		if c.want == nil {
			if got := get(t, store, key, blob.GetOptions{}); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%s: error %v, or other bytes", name, err)
			}
			continue
		}
		wantError(t, name, err, c.want)
		_, err = store.Stat(t.Context(), key)
		wantError(t, name+": stat", err, blob.ErrNotFound)
	}
	if left := s.openUploads(t); len(left) > 0 {
		t.Errorf("open uploads %v", left)
	}
}

// breaking is a file that cannot be read past a place.
type breaking struct {
	*bytes.Reader
	at int64
}

func (b *breaking) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > b.at {
		return 0, errors.New("input/output error")
	}
	return b.Reader.ReadAt(p, off)
}

// shrinking is a file of which every part's second reading finds less.
type shrinking struct {
	*bytes.Reader
	mu   sync.Mutex // parts are read at once
	read int64
}

func (s *shrinking) ReadAt(p []byte, off int64) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if off < s.read { // again
		return 0, io.EOF
	}
	n, err := s.Reader.ReadAt(p, off)
	s.read = off + int64(n)
	return n, err
}
