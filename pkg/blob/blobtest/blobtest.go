// Package blobtest is the suite that every object store must pass.
package blobtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/faultproxy"
	"github.com/vidforge/vidforge/pkg/internal/hostile"
	"github.com/vidforge/vidforge/pkg/render"
)

// partSize is the least that S3 allows, so that little data makes many parts.
const partSize = 5 << 20

// Run runs the suite. config returns the configuration of an empty bucket that
// nothing else uses; the suite makes the bucket.
func Run(t *testing.T, config func(t *testing.T) blob.Config) {
	for name, f := range map[string]func(*testing.T, suite){
		"RoundTrip":          testRoundTrip,
		"Stream":             testStream,
		"Refused":            testRefused,
		"KeyTaken":           testKeyTaken,
		"ConcurrentPuts":     testConcurrentPuts,
		"Pinned":             testPinned,
		"Range":              testRange,
		"Download":           testDownload,
		"Copy":               testCopy,
		"CopyParts":          testCopyParts,
		"Unfinished":         testUnfinished,
		"Delete":             testDelete,
		"List":               testList,
		"PresignedGet":       testPresignedGet,
		"PresignedPut":       testPresignedPut,
		"BodyIsCut":          testBodyIsCut,
		"ListIsCut":          testListIsCut,
		"AnswerIsLost":       testAnswerIsLost,
		"ServerHangs":        testServerHangs,
		"ServerIsDown":       testServerIsDown,
		"CallerGoesAway":     testCallerGoesAway,
		"WrongConfiguration": testWrongConfiguration,
		"MalformedKeys":      testMalformedKeys,
		"Faults":             testFaults,
		"LostForGood":        testLostForGood,
		"StatFails":          testStatFails,
		"Damaged":            testDamaged,
		"FullDisk":           testFullDisk,
		"FileChanges":        testFileChanges,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := config(t)
			c.CreateBucket, c.PartSize, c.Backoff = true, partSize, time.Millisecond
			f(t, suite{c})
		})
	}
}

// suite is one test's bucket.
type suite struct{ config blob.Config }

// open makes a store, after change has had its way with the configuration.
func (s suite) open(t *testing.T, change ...func(*blob.Config)) *blob.S3 {
	t.Helper()
	c := s.config
	for _, f := range change {
		f(&c)
	}
	store, err := blob.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// proxy puts a faulty network before the store.
func (s suite) proxy(t *testing.T) (*faultproxy.Proxy, func(*blob.Config)) {
	t.Helper()
	u, err := url.Parse(s.config.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	p := faultproxy.New(t, u.Host)
	return p, func(c *blob.Config) { c.Endpoint, c.CreateBucket = u.Scheme+"://"+p.Addr(), false }
}

// core speaks to the bucket beside the store.
func (s suite) core(t *testing.T) *minio.Core {
	t.Helper()
	u, err := url.Parse(s.config.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	core, err := minio.NewCore(u.Host, &minio.Options{
		Creds:  credentials.NewStaticV4(s.config.AccessKey, s.config.SecretKey, ""),
		Secure: u.Scheme == "https", Region: s.config.Region, BucketLookup: minio.BucketLookupPath,
	})
	if err != nil {
		t.Fatal(err)
	}
	return core
}

// openUploads lists the multipart uploads that nobody ended.
func (s suite) openUploads(t *testing.T) []string {
	t.Helper()
	list, err := s.core(t).ListMultipartUploads(t.Context(), s.config.Bucket, "", "", "", "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, up := range list.Uploads {
		keys = append(keys, up.Key)
	}
	return keys
}

// body is n bytes that differ by seed, and their hash.
func body(n int, seed uint64) (data []byte, sum string) {
	data = make([]byte, n)
	var key [32]byte
	key[0] = byte(seed)
	_, _ = rand.NewChaCha8(key).Read(data) // never fails
	return data, sha(data)
}

func sha(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

func put(t *testing.T, s blob.Store, key string, data []byte) render.Object {
	t.Helper()
	o, err := s.Put(t.Context(), key, bytes.NewReader(data), blob.PutOptions{Size: int64(len(data))})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func get(t *testing.T, s blob.Store, key string, o blob.GetOptions) []byte {
	t.Helper()
	r, err := s.Get(t.Context(), key, o)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return data
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, not %v", what, err, want)
	}
}

func testRoundTrip(t *testing.T, s suite) {
	store := s.open(t)
	for _, n := range []int{0, 1, 1 << 20, partSize - 1, partSize, partSize + 1, 2*partSize + 12345} {
		data, sum := body(n, 1)
		for name, o := range map[string]blob.PutOptions{
			"unknown":   {Size: -1},
			"announced": {Size: int64(n), SHA256: strings.ToUpper(sum), MaxSize: int64(n), ContentType: "video/mp4"},
		} {
			key := fmt.Sprintf("round/%d ü+%%2F#?/%s", n, name)
			// One byte a read at first, as a slow network brings it.
			got, err := store.Put(t.Context(), key, io.MultiReader(bytes.NewReader(data[:min(n, 3)]), bytes.NewReader(data[min(n, 3):])), o)
			if err != nil {
				t.Fatalf("%s: %v", key, err)
			}
			if got.Key != key || got.ETag == "" || got.Size != int64(n) || got.SHA256 != sum {
				t.Errorf("%s: put returned %+v", key, got)
			}
			stat, err := store.Stat(t.Context(), key)
			if want := (render.Object{Key: key, ETag: got.ETag, Size: got.Size}); err != nil || stat != want {
				t.Errorf("%s: stat %+v, %v, not %+v", key, stat, err, want)
			}
			if back := get(t, store, key, blob.GetOptions{ETag: got.ETag}); !bytes.Equal(back, data) {
				t.Errorf("%s: other bytes came back", key)
			}
		}
	}
	if left := s.openUploads(t); len(left) > 0 {
		t.Errorf("open uploads %v", left)
	}
	if err := store.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	_, err := store.Stat(t.Context(), "round/absent")
	wantError(t, "stat of nothing", err, blob.ErrNotFound)
	_, err = store.Get(t.Context(), "round/absent", blob.GetOptions{})
	wantError(t, "get of nothing", err, blob.ErrNotFound)
}

// ahead is a body that knows how far it was read ahead of what the store has.
type ahead struct {
	io.Reader
	sent func() int64
	read int64
	most int64
}

func (a *ahead) Read(p []byte) (int, error) {
	a.most = max(a.most, a.read-a.sent())
	n, err := a.Reader.Read(p)
	a.read += int64(n)
	return n, err
}

// Of a long body of unknown length no more than one part is held: each part is
// at the store before the next is read.
func testStream(t *testing.T, s suite) {
	s.open(t) // makes the bucket
	proxy, through := s.proxy(t)
	store := s.open(t, through)
	const size = 64 << 20
	var seed [32]byte
	hash := sha256.New()
	in := &ahead{Reader: io.TeeReader(io.LimitReader(rand.NewChaCha8(seed), size), hash), sent: proxy.Sent}
	o, err := store.Put(t.Context(), "stream", in, blob.PutOptions{Size: -1})
	if err != nil {
		t.Fatal(err)
	}
	if o.Size != size || o.SHA256 != hex.EncodeToString(hash.Sum(nil)) {
		t.Errorf("put returned %+v", o)
	}
	if in.most > partSize {
		t.Errorf("%d bytes were held, more than a part", in.most)
	}
	path := filepath.Join(t.TempDir(), "back")
	if err := store.Download(t.Context(), o, path); err != nil {
		t.Error(err)
	}
}

// failing is a body that breaks off with an error of its own.
func failing(data []byte, err error) io.Reader {
	return io.MultiReader(bytes.NewReader(data), iotestErr{err})
}

type iotestErr struct{ err error }

func (e iotestErr) Read([]byte) (int, error) { return 0, e.err }

// Whatever goes wrong with a body, nothing becomes visible and nothing is left.
func testRefused(t *testing.T, s suite) {
	store := s.open(t)
	broken := errors.New("broken")
	for _, n := range []int{1000, partSize, 2*partSize + 1000} {
		data, sum := body(n, 2)
		_, other := body(n, 3)
		size := int64(n)
		for name, c := range map[string]struct {
			body io.Reader
			o    blob.PutOptions
			want error
		}{
			"body fails":                  {failing(data, broken), blob.PutOptions{Size: -1}, broken},
			"body is cut":                 {failing(data, io.ErrUnexpectedEOF), blob.PutOptions{Size: -1}, io.ErrUnexpectedEOF},
			"announced body is cut":       {failing(data, io.ErrUnexpectedEOF), blob.PutOptions{Size: size, SHA256: sum}, io.ErrUnexpectedEOF},
			"over the limit":              {bytes.NewReader(data), blob.PutOptions{Size: -1, MaxSize: size - 1}, blob.ErrTooLarge},
			"announced over the limit":    {bytes.NewReader(data), blob.PutOptions{Size: size, MaxSize: size - 1}, blob.ErrTooLarge},
			"shorter than announced":      {bytes.NewReader(data), blob.PutOptions{Size: size + 1}, blob.ErrMismatch},
			"longer than announced":       {bytes.NewReader(data), blob.PutOptions{Size: size - 1}, blob.ErrMismatch},
			"other hash":                  {bytes.NewReader(data), blob.PutOptions{Size: -1, SHA256: other}, blob.ErrMismatch},
			"other hash, length is right": {bytes.NewReader(data), blob.PutOptions{Size: size, SHA256: other}, blob.ErrMismatch},
		} {
			key := fmt.Sprintf("refused/%d/%s", n, name)
			_, err := store.Put(t.Context(), key, c.body, c.o)
			wantError(t, key, err, c.want)
			_, err = store.Stat(t.Context(), key)
			wantError(t, key+": stat", err, blob.ErrNotFound)
		}
	}
	if left := s.openUploads(t); len(left) > 0 {
		t.Errorf("open uploads %v", left)
	}
}

func testKeyTaken(t *testing.T, s suite) {
	store := s.open(t)
	for _, first := range []int{100, partSize + 100} {
		for _, second := range []int{200, partSize + 200} {
			key := fmt.Sprintf("taken/%d-%d", first, second)
			data, _ := body(first, 1)
			o := put(t, store, key, data)
			again, _ := body(second, 2)
			_, err := store.Put(t.Context(), key, bytes.NewReader(again), blob.PutOptions{Size: -1})
			wantError(t, key, err, blob.ErrExists)
			if back := get(t, store, key, blob.GetOptions{ETag: o.ETag}); !bytes.Equal(back, data) {
				t.Errorf("%s: the first object is gone", key)
			}
		}
	}
	if left := s.openUploads(t); len(left) > 0 {
		t.Errorf("open uploads %v", left)
	}
}

func testConcurrentPuts(t *testing.T, s suite) {
	store := s.open(t)
	for _, n := range []int{1000, partSize + 1000} {
		key := fmt.Sprintf("concurrent/%d", n)
		var (
			wg      sync.WaitGroup
			mu      sync.Mutex
			winners []render.Object
		)
		for i := range 6 {
			wg.Go(func() {
				data, _ := body(n, uint64(i))
				o, err := store.Put(t.Context(), key, bytes.NewReader(data), blob.PutOptions{Size: -1})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					winners = append(winners, o)
				} else {
					wantError(t, key, err, blob.ErrExists)
				}
			})
		}
		wg.Wait()
		if len(winners) != 1 {
			t.Fatalf("%s: %d winners", key, len(winners))
		}
		if err := store.Download(t.Context(), winners[0], filepath.Join(t.TempDir(), "won")); err != nil {
			t.Error(err)
		}
	}
	if left := s.openUploads(t); len(left) > 0 {
		t.Errorf("open uploads %v", left)
	}
}

func testPinned(t *testing.T, s suite) {
	store := s.open(t)
	data, _ := body(1000, 1)
	o := put(t, store, "pinned", data)
	stale := o
	stale.ETag = strings.Repeat("0", len(o.ETag))
	_, err := store.Get(t.Context(), o.Key, blob.GetOptions{ETag: stale.ETag})
	wantError(t, "get", err, blob.ErrChanged)
	_, err = store.Get(t.Context(), o.Key, blob.GetOptions{ETag: stale.ETag, Offset: 10, Length: 10})
	wantError(t, "get of a range", err, blob.ErrChanged)
	path := filepath.Join(t.TempDir(), "file")
	wantError(t, "download", store.Download(t.Context(), stale, path), blob.ErrChanged)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was left: %v", err)
	}
	_, err = store.Copy(t.Context(), stale, "pinned-copy")
	wantError(t, "copy", err, blob.ErrChanged)

	// The object is another one meanwhile.
	if err := store.Delete(t.Context(), o.Key); err != nil {
		t.Fatal(err)
	}
	data[0]++
	put(t, store, o.Key, data)
	_, err = store.Get(t.Context(), o.Key, blob.GetOptions{ETag: o.ETag})
	wantError(t, "get of a replaced object", err, blob.ErrChanged)
}

func testRange(t *testing.T, s suite) {
	store := s.open(t)
	const n = 1000
	data, _ := body(n, 1)
	o := put(t, store, "range", data)
	for _, c := range []struct{ offset, length, from, to int64 }{
		{0, 0, 0, n}, {0, 1, 0, 1}, {0, n, 0, n}, {1, 0, 1, n}, {n - 1, 0, n - 1, n}, {n - 1, 1, n - 1, n}, {10, 20, 10, 30},
	} {
		got := get(t, store, o.Key, blob.GetOptions{ETag: o.ETag, Offset: c.offset, Length: c.length})
		if !bytes.Equal(got, data[c.from:c.to]) {
			t.Errorf("offset %d, length %d: %d bytes, or others", c.offset, c.length, len(got))
		}
	}
	for _, c := range []struct{ offset, length int64 }{{n, 0}, {n + 5, 10}, {0, n + 1}, {n - 1, 2}} {
		r, err := store.Get(t.Context(), o.Key, blob.GetOptions{Offset: c.offset, Length: c.length})
		if err == nil {
			_, err = io.ReadAll(r)
			_ = r.Close()
		}
		wantError(t, fmt.Sprintf("offset %d, length %d", c.offset, c.length), err, io.ErrUnexpectedEOF)
	}
}

func testDownload(t *testing.T, s suite) {
	store := s.open(t)
	data, sum := body(1<<20, 1)
	o := put(t, store, "download", data)
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := store.Download(t.Context(), o, path); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		t.Errorf("other bytes in the file, %v", err)
	}
	wantError(t, "over a file", store.Download(t.Context(), o, path), fs.ErrExist)
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the file was touched, %v", err)
	}
	for name, c := range map[string]struct {
		change func(*render.Object)
		want   error
	}{
		"hash":   {func(o *render.Object) { o.SHA256 = strings.Repeat("0", len(sum)) }, blob.ErrMismatch},
		"length": {func(o *render.Object) { o.Size-- }, blob.ErrMismatch},
		"absent": {func(o *render.Object) { o.Key += "-absent" }, blob.ErrNotFound},
	} {
		other := o
		c.change(&other)
		wantError(t, name, store.Download(t.Context(), other, filepath.Join(dir, name)), c.want)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("files were left: %v, %v", entries, err)
	}
}

func testCopy(t *testing.T, s suite) {
	store := s.open(t)
	for _, n := range []int{0, 1000, partSize + 1000} {
		data, _ := body(n, 1)
		from := put(t, store, fmt.Sprintf("copy/%d/from", n), data)
		to := fmt.Sprintf("copy/%d/to", n)
		o, err := store.Copy(t.Context(), from, to)
		if err != nil {
			t.Fatal(err)
		}
		if o.Key != to || o.Size != from.Size || o.SHA256 != from.SHA256 {
			t.Errorf("copy of %+v returned %+v", from, o)
		}
		if got := get(t, store, to, blob.GetOptions{ETag: o.ETag}); !bytes.Equal(got, data) {
			t.Error("other bytes in the copy")
		}
		_, err = store.Copy(t.Context(), from, to)
		wantError(t, "copy to a taken key", err, blob.ErrExists)
	}
	_, err := store.Copy(t.Context(), render.Object{Key: "copy/absent", ETag: strings.Repeat("0", 32)}, "copy/to")
	wantError(t, "copy of nothing", err, blob.ErrNotFound)
	changed := put(t, store, "copy/changed", []byte("x"))
	changed.ETag = strings.Repeat("0", 32)
	_, err = store.Copy(t.Context(), changed, "copy/to")
	wantError(t, "copy of what was replaced", err, blob.ErrChanged)
}

// What is too large for one request is copied in parts.
func testCopyParts(t *testing.T, s suite) {
	store := s.open(t, func(c *blob.Config) { c.MaxCopy = partSize })
	for _, n := range []int{partSize, partSize + 1, 2*partSize + 1000} {
		data, _ := body(n, 1)
		from := put(t, store, fmt.Sprintf("copy/%d/from", n), data)
		to := fmt.Sprintf("copy/%d/to", n)
		o, err := store.Copy(t.Context(), from, to)
		if err != nil {
			t.Fatal(err)
		}
		if o.Key != to || o.Size != from.Size || o.SHA256 != from.SHA256 {
			t.Errorf("copy of %+v returned %+v", from, o)
		}
		if got := get(t, store, to, blob.GetOptions{ETag: o.ETag}); !bytes.Equal(got, data) {
			t.Error("other bytes in the copy")
		}
		_, err = store.Copy(t.Context(), from, to)
		wantError(t, "copy to a taken key", err, blob.ErrExists)
		from.ETag = strings.Repeat("0", 32)
		_, err = store.Copy(t.Context(), from, "copy/to")
		wantError(t, "copy of what was replaced", err, blob.ErrChanged)
	}
	_, err := store.Copy(t.Context(), render.Object{Key: "copy/absent", Size: 3 * partSize, ETag: strings.Repeat("0", 32)}, "copy/to")
	wantError(t, "copy of nothing", err, blob.ErrNotFound)
	if left := s.openUploads(t); len(left) > 0 {
		t.Errorf("open uploads %v", left)
	}
}

// Uploads that nobody ended are found and can be ended.
func testUnfinished(t *testing.T, s suite) {
	store := s.open(t)
	core := s.core(t)
	ids := map[string]string{}
	for _, key := range []string{"unfinished/a", "unfinished/b/c", "other"} {
		id, err := core.NewMultipartUpload(t.Context(), s.config.Bucket, key, minio.PutObjectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ids[key] = id
	}
	all := func(prefix string) (found []blob.Unfinished) {
		for u, err := range store.ListUnfinished(t.Context(), prefix) {
			if err != nil {
				t.Fatal(err)
			}
			if u.ID != ids[u.Key] || time.Since(u.Begun).Abs() > time.Hour {
				t.Errorf("found %+v", u)
			}
			found = append(found, u)
		}
		return found
	}
	if n := len(all("")); n != 3 {
		t.Errorf("found %d", n)
	}
	below := all("unfinished/")
	if len(below) != 2 {
		t.Fatalf("found %+v", below)
	}
	for _, u := range below {
		if err := errors.Join(store.Abort(t.Context(), u), store.Abort(t.Context(), u)); err != nil {
			t.Error(err)
		}
	}
	if left := all(""); len(left) != 1 || left[0].Key != "other" {
		t.Errorf("left %+v", left)
	}
}

func testDelete(t *testing.T, s suite) {
	store := s.open(t)
	keys := make([]string, 1001) // one more than a request takes
	for i := range keys {
		keys[i] = fmt.Sprintf("delete/%04d", i)
	}
	there := []int{0, 500, 999, 1000}
	for _, i := range there {
		put(t, store, keys[i], []byte("x"))
	}
	put(t, store, "delete/other", []byte("x"))
	if err := store.Delete(t.Context(), keys...); err != nil {
		t.Fatal(err)
	}
	for _, i := range there {
		_, err := store.Stat(t.Context(), keys[i])
		wantError(t, keys[i], err, blob.ErrNotFound)
	}
	if _, err := store.Stat(t.Context(), "delete/other"); err != nil {
		t.Error(err)
	}
	if err := errors.Join(store.Delete(t.Context()), store.Delete(t.Context(), keys[0])); err != nil {
		t.Error(err)
	}
}

func list(t *testing.T, all iter.Seq2[blob.Info, error]) (infos []blob.Info, keys []string) {
	t.Helper()
	for o, err := range all {
		if err != nil {
			t.Fatal(err)
		}
		infos, keys = append(infos, o), append(keys, o.Key)
	}
	return infos, keys
}

func testList(t *testing.T, s suite) {
	store := s.open(t)
	// Names whose order by directory is not their order by byte.
	want := []string{"list/a-b/x", "list/a.b", "list/a/x", "list/a/y", "list/a0/x", "list/b", "list/ü"}
	before := time.Now().Add(-time.Minute) // the store's clock counts whole seconds
	for i := range want {
		put(t, store, want[len(want)-1-i], bytes.Repeat([]byte("x"), i))
	}
	put(t, store, "listed-not", nil)
	infos, keys := list(t, store.List(t.Context(), "list/"))
	if !slices.Equal(keys, want) {
		t.Errorf("listed %q, not %q", keys, want)
	}
	for i, o := range infos {
		if o.Size != int64(len(want)-1-i) || o.Modified.Before(before) {
			t.Errorf("%+v", o)
		}
	}
	if _, keys := list(t, store.List(t.Context(), "list/a/")); !slices.Equal(keys, []string{"list/a/x", "list/a/y"}) {
		t.Errorf("listed %q", keys)
	}
	if _, keys := list(t, store.List(t.Context(), "absent/")); len(keys) > 0 {
		t.Errorf("listed %q", keys)
	}
	n := 0
	for range store.List(t.Context(), "list/") { // who stops gets no more
		n++
		break
	}
	if n != 1 {
		t.Errorf("%d objects after a break", n)
	}
}

// request sends a presigned request and returns its status, header and body.
func request(t *testing.T, method, target string, header http.Header, data []byte) (int, http.Header, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		if k != "Content-Length" { // net/http sets it from the body
			req.Header[k] = v
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, got
}

// edit changes one query parameter of a URL.
func edit(t *testing.T, target, key, value string) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(key, value)
	u.RawQuery = q.Encode()
	return u.String()
}

func testPresignedGet(t *testing.T, s suite) {
	proxy, _ := s.proxy(t)
	store := s.open(t, func(c *blob.Config) { c.PublicEndpoint = "http://" + proxy.Addr() })
	data, _ := body(1000, 1)
	o := put(t, store, "presigned/get", data)
	put(t, store, "presigned/other", data)
	before := time.Now()
	u, expires, err := store.PresignGet(t.Context(), o, blob.PresignOptions{TTL: time.Hour, Filename: "Übung \"1\".mp4", ContentType: "video/mp4"})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(u, "http://"+proxy.Addr()+"/") {
		t.Errorf("%s is not at the public endpoint", u)
	}
	if d := expires.Sub(before); d < time.Hour-time.Second || d > time.Hour+time.Minute {
		t.Errorf("expires in %s", d)
	}
	status, header, got := request(t, http.MethodGet, u, nil, nil)
	if status != http.StatusOK || !bytes.Equal(got, data) {
		t.Errorf("status %d, %d bytes", status, len(got))
	}
	if _, params, err := mime.ParseMediaType(header.Get("Content-Disposition")); err != nil || params["filename"] != "Übung \"1\".mp4" || header.Get("Content-Type") != "video/mp4" {
		t.Errorf("header %v", header)
	}
	for name, tampered := range map[string]string{
		"another key":  strings.Replace(u, "presigned/get", "presigned/other", 1),
		"longer":       edit(t, u, "X-Amz-Expires", "7200"),
		"renamed":      edit(t, u, "response-content-disposition", "inline"),
		"other sum":    edit(t, u, "X-Amz-Signature", strings.Repeat("0", 64)),
		"no signature": u[:strings.IndexByte(u, '?')],
		"a long ago":   edit(t, u, "X-Amz-Date", "20200101T000000Z"),
	} {
		if status, _, got := request(t, http.MethodGet, tampered, nil, nil); status/100 != 4 || bytes.Contains(got, data[:100]) {
			t.Errorf("%s: status %d", name, status)
		}
	}
	if status, _, _ := request(t, http.MethodPut, u, nil, []byte("x")); status != http.StatusForbidden {
		t.Errorf("put to a URL for get: status %d", status)
	}
	for _, ttl := range []time.Duration{0, time.Millisecond, 8 * 24 * time.Hour} {
		if _, _, err := store.PresignGet(t.Context(), o, blob.PresignOptions{TTL: ttl}); err == nil {
			t.Errorf("a URL for %s", ttl)
		}
	}
}

func testPresignedPut(t *testing.T, s suite) {
	store := s.open(t)
	data, _ := body(1000, 1)
	options := blob.PresignOptions{TTL: time.Hour, Size: int64(len(data)), ContentType: "video/mp4"}
	u, header, expires, err := store.PresignPut(t.Context(), "presigned/put", options)
	if err != nil {
		t.Fatal(err)
	}
	if header.Get("Content-Length") != "1000" || header.Get("Content-Type") != "video/mp4" || !expires.After(time.Now()) {
		t.Errorf("header %v, expires %s", header, expires)
	}
	options.TTL = time.Second
	short, _, expired, err := store.PresignPut(t.Context(), "presigned/put", options)
	if err != nil {
		t.Fatal(err)
	}
	select { // until the server's clock has passed it
	case <-time.After(time.Until(expired) + 1100*time.Millisecond):
	case <-t.Context().Done():
	}
	for name, c := range map[string]struct {
		url    string
		header http.Header
		data   []byte
	}{
		"longer":       {u, header, append(data, 'x')},
		"shorter":      {u, header, data[1:]},
		"another key":  {strings.Replace(u, "presigned/put", "presigned/other", 1), header, data},
		"another type": {u, http.Header{"Content-Type": {"text/html"}}, data},
		"no type":      {u, nil, data},
		"too late":     {short, header, data},
	} {
		if status, _, _ := request(t, http.MethodPut, c.url, c.header, c.data); status != http.StatusForbidden {
			t.Errorf("%s: status %d", name, status)
		}
	}
	if _, keys := list(t, store.List(t.Context(), "")); len(keys) > 0 {
		t.Fatalf("%q came about", keys)
	}
	if status, _, got := request(t, http.MethodPut, u, header, data); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, got)
	}
	if got := get(t, store, "presigned/put", blob.GetOptions{}); !bytes.Equal(got, data) {
		t.Error("other bytes arrived")
	}
	_, _, _, err = store.PresignPut(t.Context(), "presigned/large", blob.PresignOptions{TTL: time.Hour, Size: 5<<30 + 1})
	wantError(t, "more than a put takes", err, blob.ErrTooLarge)
}

// A body that breaks off is taken up again, and never ends as if it were whole.
func testBodyIsCut(t *testing.T, s suite) {
	data, _ := body(1<<20, 1)
	o := put(t, s.open(t), "cut", data)
	proxy, through := s.proxy(t)

	t.Run("again and again", func(t *testing.T) {
		before := proxy.Accepted()
		proxy.SetFault(func(int) faultproxy.Fault { return faultproxy.Fault{Cut: true, After: 100 << 10} })
		for _, r := range []blob.GetOptions{{ETag: o.ETag}, {Offset: 5, Length: 1<<20 - 10}} {
			got := get(t, s.open(t, through), o.Key, r)
			want := data[r.Offset:]
			if r.Length > 0 {
				want = want[:r.Length]
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes, or others", len(got))
			}
		}
		if n := proxy.Accepted() - before; n < 10 {
			t.Errorf("only %d connections: nothing was cut", n)
		}
	})
	t.Run("for good", func(t *testing.T) {
		first := int(proxy.Accepted()) + 1
		proxy.SetFault(func(conn int) faultproxy.Fault {
			if conn == first {
				return faultproxy.Fault{Cut: true, After: 100 << 10}
			}
			return faultproxy.Fault{Cut: true, After: 700} // into the body, hardly
		})
		store := s.open(t, through, func(c *blob.Config) { c.Attempts = 1 })
		r, err := store.Get(t.Context(), o.Key, blob.GetOptions{ETag: o.ETag})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		wantError(t, "read", err, io.ErrUnexpectedEOF)
		wantError(t, "read", err, blob.ErrUnavailable)
		if len(got) == 0 || len(got) >= len(data) || !bytes.HasPrefix(data, got) {
			t.Errorf("%d bytes before the cut", len(got))
		}
		if n, again := r.Read(make([]byte, 1)); n != 0 || again == nil || errors.Is(again, io.EOF) {
			t.Errorf("read after the failure: %d, %v", n, again)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		path := filepath.Join(t.TempDir(), "file")
		wantError(t, "download", store.Download(t.Context(), o, path), io.ErrUnexpectedEOF)
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a file was left: %v", err)
		}
	})
	t.Run("object is replaced meanwhile", func(t *testing.T) {
		direct := s.open(t)
		old := put(t, direct, "cut-replaced", data)
		first := int(proxy.Accepted()) + 1
		proxy.SetFault(func(conn int) faultproxy.Fault {
			return faultproxy.Fault{Cut: conn == first, After: 100 << 10}
		})
		r, err := s.open(t, through).Get(t.Context(), old.Key, blob.GetOptions{}) // not even pinned
		if err != nil {
			t.Fatal(err)
		}
		if err := direct.Delete(t.Context(), old.Key); err != nil {
			t.Fatal(err)
		}
		other, _ := body(1<<20, 2)
		put(t, direct, old.Key, other)
		_, err = io.ReadAll(r)
		wantError(t, "read", err, blob.ErrChanged)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

func testListIsCut(t *testing.T, s suite) {
	direct := s.open(t)
	var want []string
	for i := range 50 {
		want = append(want, fmt.Sprintf("list/%02d", i))
		put(t, direct, want[i], nil)
	}
	proxy, through := s.proxy(t)
	proxy.SetFault(func(conn int) faultproxy.Fault { return faultproxy.Fault{Cut: conn == 1, After: 4 << 10} })
	if _, keys := list(t, s.open(t, through).List(t.Context(), "list/")); !slices.Equal(keys, want) {
		t.Errorf("listed %q", keys)
	}
	proxy.SetFault(func(int) faultproxy.Fault { return faultproxy.Fault{Cut: true, After: 4 << 10} })
	var last error
	for _, err := range s.open(t, through).List(t.Context(), "list/") {
		last = err
	}
	wantError(t, "list", last, blob.ErrUnavailable)
}

// An upload that arrived, but whose answer did not, is a success and not a
// taken key.
func testAnswerIsLost(t *testing.T, s suite) {
	direct := s.open(t)
	proxy, through := s.proxy(t)
	for _, n := range []int{1000, partSize + 1000} {
		// One connection after the other dies with its first answer, so that
		// every request of the upload loses one.
		proxy.SetFault(func(conn int) faultproxy.Fault { return faultproxy.Fault{Cut: conn%2 == 1} })
		store := s.open(t, through, func(c *blob.Config) {
			c.Transport = &http.Transport{DisableKeepAlives: true}
		})
		data, _ := body(n, 1)
		key := fmt.Sprintf("lost/%d", n)
		o, err := store.Put(t.Context(), key, bytes.NewReader(data), blob.PutOptions{Size: -1})
		if err != nil {
			t.Fatal(err)
		}
		if got := get(t, direct, key, blob.GetOptions{ETag: o.ETag}); !bytes.Equal(got, data) {
			t.Error("other bytes")
		}
	}
}

// A store that takes connections and says nothing holds no call for ever.
func testServerHangs(t *testing.T, s suite) {
	data, _ := body(partSize+1000, 1)
	direct := s.open(t)
	o := put(t, direct, "hang", data)
	proxy, through := s.proxy(t)
	impatient := func(c *blob.Config) { c.Timeout, c.Attempts = 50*time.Millisecond, 2 }
	proxy.SetFault(func(int) faultproxy.Fault { return faultproxy.Fault{Stall: true} })
	store := s.open(t, through, impatient)
	for name, call := range map[string]func() error{
		"ping": func() error { return store.Ping(t.Context()) },
		"stat": func() error { _, err := store.Stat(t.Context(), o.Key); return err },
		"get":  func() error { _, err := store.Get(t.Context(), o.Key, blob.GetOptions{}); return err },
		"put": func() error {
			_, err := store.Put(t.Context(), "hang-1", bytes.NewReader(data[:10]), blob.PutOptions{Size: -1})
			return err
		},
		"put parts": func() error {
			_, err := store.Put(t.Context(), "hang-2", bytes.NewReader(data), blob.PutOptions{Size: -1})
			return err
		},
		"copy":   func() error { _, err := store.Copy(t.Context(), o, "hang-3"); return err },
		"delete": func() error { return store.Delete(t.Context(), o.Key) },
		"list": func() error {
			for _, err := range store.List(t.Context(), "") {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantError(t, name, call(), blob.ErrUnavailable)
		})
	}
	t.Run("in mid-body", func(t *testing.T) {
		t.Parallel()
		if _, err := direct.Put(t.Context(), "hang-body", bytes.NewReader(data), blob.PutOptions{Size: -1}); err != nil {
			t.Fatal(err)
		}
		proxy, through := s.proxy(t)
		proxy.SetFault(func(int) faultproxy.Fault { return faultproxy.Fault{Stall: true, After: 100 << 10} })
		r, err := s.open(t, through, func(c *blob.Config) { c.Timeout, c.Attempts = 2*time.Second, 1 }).Get(t.Context(), "hang-body", blob.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(r)
		wantError(t, "read", err, blob.ErrUnavailable)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

func testServerIsDown(t *testing.T, s suite) {
	store := s.open(t, func(c *blob.Config) { c.Endpoint, c.CreateBucket = "http://127.0.0.1:1", false })
	wantError(t, "ping", store.Ping(t.Context()), blob.ErrUnavailable)
	_, err := store.Put(t.Context(), "down", strings.NewReader("x"), blob.PutOptions{Size: -1})
	wantError(t, "put", err, blob.ErrUnavailable)
}

func testCallerGoesAway(t *testing.T, s suite) {
	store := s.open(t)
	data, _ := body(2*partSize, 1)
	put(t, store, "away", data)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := store.Get(ctx, "away", blob.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	cancel()
	_, err = io.ReadAll(r)
	wantError(t, "read", err, context.Canceled)
	if err := r.Close(); err != nil {
		t.Error(err)
	}

	ctx, cancel = context.WithCancel(t.Context())
	_, err = store.Put(ctx, "away-put", io.MultiReader(bytes.NewReader(data), readerFunc(func([]byte) (int, error) {
		cancel() // with a part at the store already
		return 0, ctx.Err()
	})), blob.PutOptions{Size: -1})
	wantError(t, "put", err, context.Canceled)
	_, err = store.Stat(t.Context(), "away-put")
	wantError(t, "stat", err, blob.ErrNotFound)
	if left := s.openUploads(t); len(left) > 0 {
		t.Errorf("open uploads %v", left)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func testWrongConfiguration(t *testing.T, s suite) {
	s.open(t)
	for name, change := range map[string]func(*blob.Config){
		"bucket": func(c *blob.Config) { c.Bucket, c.CreateBucket = "no-such-bucket", false },
		"secret": func(c *blob.Config) { c.SecretKey, c.CreateBucket = "wrong", false },
	} {
		store := s.open(t, change)
		err := store.Ping(t.Context())
		if err == nil || errors.Is(err, blob.ErrUnavailable) {
			t.Errorf("%s: ping: %v", name, err)
		}
		_, err = store.Get(t.Context(), "key", blob.GetOptions{})
		if err == nil || errors.Is(err, blob.ErrUnavailable) || errors.Is(err, blob.ErrNotFound) {
			t.Errorf("%s: get: %v", name, err)
		}
	}
}

// testMalformedKeys: what is no key of a farm reads and removes nothing, in this
// bucket and beside it, and what leads out of the bucket is not written either.
func testMalformedKeys(t *testing.T, s suite) {
	ctx := t.Context()
	store := s.open(t)
	key := blob.SourceKey("other", render.NewAssetID(), "attempt")
	o := put(t, store, key, []byte("x"))
	refuse := func(name, key string, err error) {
		if !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("%s took %.60q: %v", name, key, err)
		}
	}
	var tried []string
	for _, bad := range slices.Concat(hostile.Strings("sources_"+key), []string{"../" + s.config.Bucket + "/" + key, "x/../" + key, key + "/", "/" + key, key + "/.."}) {
		from := o
		from.Key = bad
		calls := map[string]func() error{
			"Get":       func() error { _, err := store.Get(ctx, bad, blob.GetOptions{}); return err },
			"Download":  func() error { return store.Download(ctx, from, filepath.Join(t.TempDir(), "file")) },
			"Stat":      func() error { _, err := store.Stat(ctx, bad); return err },
			"Copy from": func() error { _, err := store.Copy(ctx, from, "copy"); return err },
		}
		leadsOut := len(bad) > 1024 || !utf8.ValidString(bad) || strings.ContainsFunc(bad, unicode.IsControl) || path.Clean("/"+bad) != "/"+bad || strings.TrimSpace(bad) == ""
		if leadsOut {
			calls["Put"] = func() error {
				_, err := store.Put(ctx, bad, strings.NewReader("x"), blob.PutOptions{Size: 1})
				return err
			}
			calls["Copy to"] = func() error { _, err := store.Copy(ctx, o, bad); return err }
			calls["Delete"] = func() error { return store.Delete(ctx, "absent", bad) }
			calls["Abort"] = func() error { return store.Abort(ctx, blob.Unfinished{Key: bad, ID: "id"}) }
			calls["PresignGet"] = func() error {
				_, _, err := store.PresignGet(ctx, from, blob.PresignOptions{TTL: time.Hour})
				return err
			}
			calls["PresignPut"] = func() error {
				_, _, _, err := store.PresignPut(ctx, bad, blob.PresignOptions{TTL: time.Hour, Size: 1})
				return err
			}
			tried = slices.Collect(maps.Keys(calls))
		} else if err := store.Delete(ctx, bad); err != nil { // a key that could be, and is not
			t.Errorf("Delete %q: %v", bad, err)
		}
		for name, call := range calls {
			refuse(name, bad, call())
		}
		if bad == "" { // the beginning of all keys
			continue
		}
		for info, err := range store.List(ctx, bad) {
			if err == nil && strings.TrimSuffix(bad, "/") != key {
				t.Errorf("List told %q of %q", bad, info.Key)
			}
		}
		for u, err := range store.ListUnfinished(ctx, bad) {
			if err == nil {
				t.Errorf("ListUnfinished told %q of %q", bad, u.Key)
			}
		}
	}
	hostile.Complete[blob.Store](t, append(tried, "List", "ListUnfinished"), "Ping")
	if got := get(t, store, key, blob.GetOptions{ETag: o.ETag}); string(got) != "x" {
		t.Errorf("the object holds %q", got)
	}
	if _, keys := list(t, store.List(ctx, "")); !slices.Equal(keys, []string{key}) {
		t.Errorf("the bucket holds %q", keys)
	}
}
