package blob

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
)

// fake is a store that answers by a function.
type fake func(*http.Request) *reply

func (f fake) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return nil, err
		}
	}
	if a := f(r); a != nil {
		var body io.Reader = strings.NewReader(a.body)
		if a.stalls {
			body = io.MultiReader(body, stalled{r.Context()})
		}
		return &http.Response{
			StatusCode: a.status, Header: a.header, Request: r, Body: io.NopCloser(body), ContentLength: -1,
		}, nil
	}
	<-r.Context().Done() // says nothing
	return nil, context.Cause(r.Context())
}

// reply is what a fake answers; nil says nothing.
type reply struct {
	status int
	body   string
	header http.Header
	stalls bool // after the body
}

// stalled is a body of which nothing comes.
type stalled struct{ ctx context.Context }

func (s stalled) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

func answer(status int, body string, header ...string) *reply {
	h := http.Header{"Etag": {`"e"`}, "Last-Modified": {"Mon, 02 Jan 2006 15:04:05 GMT"}, "Content-Length": {strconv.Itoa(len(body))}}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &reply{status: status, body: body, header: h}
}

func openFake(t *testing.T, f fake, change ...func(*Config)) *S3 {
	t.Helper()
	c := Config{Endpoint: "http://store", Bucket: "bucket", AccessKey: "a", SecretKey: "s", PathStyle: true, Transport: f, Attempts: 3, Backoff: time.Microsecond}
	for _, f := range change {
		f(&c)
	}
	s, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatIsTriedAgain(t *testing.T) {
	t.Parallel()
	const refusal = `<Error><Code>%</Code></Error>`
	for name, c := range map[string]struct {
		first *reply
		tries int
		want  error // nil: success
	}{
		"slow down":             {answer(503, strings.ReplaceAll(refusal, "%", "SlowDown")), 2, nil},
		"internal error":        {answer(500, ""), 2, nil},
		"bad gateway":           {answer(502, "<html>"), 2, nil},
		"too many":              {answer(429, ""), 2, nil},
		"write under way":       {answer(409, strings.ReplaceAll(refusal, "%", "ConditionalRequestConflict")), 2, nil},
		"body suffered":         {answer(400, strings.ReplaceAll(refusal, "%", "XAmzContentSHA256Mismatch")), 2, nil},
		"body was cut":          {answer(400, strings.ReplaceAll(refusal, "%", "IncompleteBody")), 2, nil},
		"full":                  {answer(507, strings.ReplaceAll(refusal, "%", "XMinioStorageFull")), 2, nil},
		"not made for it":       {answer(501, strings.ReplaceAll(refusal, "%", "NotImplemented")), 1, errAny},
		"denied":                {answer(403, strings.ReplaceAll(refusal, "%", "AccessDenied")), 1, errAny},
		"bad request":           {answer(400, strings.ReplaceAll(refusal, "%", "InvalidArgument")), 1, errAny},
		"taken":                 {answer(412, strings.ReplaceAll(refusal, "%", "PreconditionFailed")), 1, ErrExists},
		"bucket is gone":        {answer(404, strings.ReplaceAll(refusal, "%", "NoSuchBucket")), 1, errAny},
		"says nothing at first": {nil, 2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				puts := 0
				s := openFake(t, func(r *http.Request) *reply {
					if r.Method != http.MethodPut { // the look at the key afterwards
						return answer(200, "", "X-Amz-Meta-Vidforge-Put", "another's")
					}
					if puts++; puts == 1 {
						return c.first
					}
					return answer(200, "")
				})
				_, err := s.Put(t.Context(), "key", strings.NewReader("x"), PutOptions{Size: -1})
				switch {
				case c.want == nil && err != nil, c.want != nil && err == nil,
					c.want != nil && c.want != errAny && !errors.Is(err, c.want): //nolint:errorlint // identity of errAny
					t.Errorf("error %v", err)
				case errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNotFound):
					t.Errorf("misleading error %v", err)
				}
				if puts != c.tries {
					t.Errorf("%d tries, not %d", puts, c.tries)
				}
			})
		})
	}
}

var errAny = errors.New("any error")

// A store that says when to come back is left alone so long, within reason.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for value, c := range map[string]struct{ least, most time.Duration }{
		"7":                             {7 * time.Second, 8 * time.Second},
		"Sat, 01 Jan 2000 00:00:30 GMT": {30 * time.Second, 31 * time.Second}, // a synctest bubble begins at midnight
		"86400":                         {time.Minute, time.Minute + time.Second},
		"0":                             {0, time.Second},
		"-5":                            {0, time.Second},
		"soon":                          {0, time.Second},
	} {
		for _, call := range []func(context.Context, *S3) error{
			func(ctx context.Context, s *S3) error { _, err := s.Stat(ctx, "key"); return err },
			func(ctx context.Context, s *S3) error {
				r, err := s.Get(ctx, "key", GetOptions{})
				if err != nil {
					return err
				}
				return r.Close()
			},
		} {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				s := openFake(t, func(*http.Request) *reply {
					if tries++; tries == 1 {
						return answer(503, "", "Retry-After", value)
					}
					return answer(200, "")
				})
				start := time.Now()
				if err := call(t.Context(), s); err != nil {
					t.Error(err)
				}
				if d := time.Since(start); d < c.least || d > c.most || tries != 2 {
					t.Errorf("%s: %d tries in %s", value, tries, d)
				}
			})
		}
	}
}

// Each refusal names the setting to look at.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for code, c := range map[string]struct {
		status int
		want   string
	}{
		"InvalidAccessKeyId":           {403, "s3-access-key"},
		"SignatureDoesNotMatch":        {403, "s3-secret-key"},
		"AccessDenied":                 {403, "policy"},
		"ExpiredToken":                 {400, "session token"},
		"RequestTimeTooSkewed":         {403, "clock"},
		"AuthorizationHeaderMalformed": {400, "s3-region (us-east-1)"},
		"PermanentRedirect":            {301, "s3-endpoint"},
		"NoSuchBucket":                 {404, "s3-bucket"},
		"Unheard":                      {401, "s3-access-key"},
		"XAdminUserNotFound":           {404, "s3-access-key"},
		"NoSuchThing":                  {404, "s3-endpoint"},
	} {
		s := openFake(t, func(*http.Request) *reply {
			return answer(c.status, "<Error><Code>"+code+"</Code></Error>")
		})
		_, err := s.Get(t.Context(), "key", GetOptions{})
		if !errors.Is(err, ErrRefused) || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", code, err)
		}
	}
	page := openFake(t, func(*http.Request) *reply {
		return answer(404, "<html>Not found</html>", "Content-Type", "text/html; charset=utf-8")
	})
	if _, err := page.Get(t.Context(), "key", GetOptions{}); !errors.Is(err, ErrRefused) || errors.Is(err, ErrNotFound) {
		t.Errorf("a web page: %v", err)
	}
	gone := openFake(t, func(*http.Request) *reply { return answer(404, "") })
	for name, err := range map[string]error{
		"ping": gone.Ping(t.Context()),
		"stat": func() error { _, err := gone.Stat(t.Context(), "key"); return err }(),
	} {
		if !errors.Is(err, ErrRefused) || errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "no bucket bucket") {
			t.Errorf("%s in a bucket that is gone: %v", name, err)
		}
	}
}

// Parts and the end of a multipart upload may be answered with status 200 and
// an error in the body.
func TestErrorInsideSuccess(t *testing.T) {
	t.Parallel()
	var token string
	var calls []string
	completes := 0
	s := openFake(t, func(r *http.Request) *reply {
		q := r.URL.Query()
		switch {
		case r.Method == http.MethodPost && q.Has("uploads"):
			token = r.Header.Get("X-Amz-Meta-Vidforge-Put")
			calls = append(calls, "begin")
			return answer(200, `<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>`)
		case r.Method == http.MethodPut:
			calls = append(calls, "part"+q.Get("partNumber"))
			return answer(200, "")
		case r.Method == http.MethodPost:
			if r.Header.Get("If-None-Match") != "*" {
				t.Error("the end of the upload is unconditional")
			}
			calls = append(calls, "complete")
			if completes++; completes == 1 {
				return answer(200, `<Error><Code>InternalError</Code></Error>`)
			}
			return answer(200, `<CompleteMultipartUploadResult><Bucket>bucket</Bucket><Key>key</Key><ETag>"in progress"</ETag></CompleteMultipartUploadResult>`)
		default:
			calls = append(calls, "look")
			return answer(200, "", "X-Amz-Meta-Vidforge-Put", token, "Content-Length", strconv.Itoa(minPartSize+1), "Etag", `"final"`)
		}
	}, func(c *Config) { c.PartSize = minPartSize })
	o, err := s.Put(t.Context(), "key", bytes.NewReader(make([]byte, minPartSize+1)), PutOptions{Size: -1})
	if err != nil || o.ETag != "final" {
		t.Errorf("%+v, %v", o, err)
	}
	if got := strings.Join(calls, " "); got != "begin part1 part2 complete complete look" {
		t.Errorf("calls: %s", got)
	}
}

func TestAnswersThatAreNotWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer func() *reply
		o      GetOptions
		want   error
	}{
		"range ignored":  {func() *reply { return answer(200, "0123456789") }, GetOptions{Offset: 2, Length: 3}, ErrMismatch},
		"other range":    {func() *reply { return answer(206, "345", "Content-Range", "bytes 3-5/10") }, GetOptions{Offset: 2, Length: 3}, ErrMismatch},
		"range is short": {func() *reply { return answer(206, "23", "Content-Range", "bytes 2-3/4") }, GetOptions{Offset: 2, Length: 3}, io.ErrUnexpectedEOF},
		"pin ignored":    {func() *reply { return answer(200, "0123456789") }, GetOptions{ETag: "other"}, ErrChanged},
		"no length":      {func() *reply { return answer(200, "0123456789", "Content-Length", "") }, GetOptions{}, errAny},
		"body is short":  {func() *reply { return answer(200, "01234", "Content-Length", "10") }, GetOptions{}, io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openFake(t, func(r *http.Request) *reply {
				if r.Header.Get("Range") == "bytes=5-9" { // the rest of a short body
					return answer(206, "", "Content-Range", "bytes 5-9/10", "Content-Length", "5")
				}
				return c.answer()
			})
			r, err := s.Get(t.Context(), "key", c.o)
			if err == nil {
				_, err = io.ReadAll(r)
				if cerr := r.Close(); cerr != nil {
					t.Error(cerr)
				}
			}
			if err == nil || c.want != errAny && !errors.Is(err, c.want) { //nolint:errorlint // identity of errAny
				t.Errorf("error %v, not %v", err, c.want)
			}
		})
	}
}

// The time that a silent store costs is the configured one, and large moves
// inside the store get more.
func TestSilence(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		call        func(context.Context, *S3) error
		least, most time.Duration
	}{
		"stat": {func(ctx context.Context, s *S3) error { _, err := s.Stat(ctx, "key"); return err }, 3 * time.Minute, 4 * time.Minute},
		"put": {func(ctx context.Context, s *S3) error {
			_, err := s.Put(ctx, "key", strings.NewReader("x"), PutOptions{Size: -1})
			return err
		}, 3 * time.Minute, 4 * time.Minute},
		"copy": {func(ctx context.Context, s *S3) error {
			_, err := s.Copy(ctx, render.Object{Key: "from", ETag: "e"}, "key")
			return err
		}, 30 * time.Minute, 31 * time.Minute},
		"read": {func(ctx context.Context, s *S3) error {
			r, err := s.Get(ctx, "key", GetOptions{})
			if err != nil {
				t.Error(err)
				return err
			}
			if _, err := r.Read(make([]byte, 10)); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Hour) // the reader's own time is not the store's
			_, err = io.ReadAll(r)
			return errors.Join(err, r.Close())
		}, 63 * time.Minute, 64 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := openFake(t, func(r *http.Request) *reply {
					switch {
					case name == "copy" && r.Method == http.MethodHead:
						return answer(404, "")
					case name == "read" && r.Header.Get("Range") == "":
						a := answer(200, "begin", "Content-Length", "10")
						a.stalls = true
						return a
					case name == "read":
						a := answer(206, "", "Content-Range", "bytes 5-9/10", "Content-Length", "5")
						a.stalls = true
						return a
					}
					return nil
				}, func(c *Config) { c.Backoff = 0 })
				start := time.Now()
				if err := c.call(t.Context(), s); !errors.Is(err, ErrUnavailable) || !errors.Is(err, errSilent) {
					t.Errorf("error %v", err)
				}
				if d := time.Since(start); d < c.least || d > c.most {
					t.Errorf("took %s", d)
				}
			})
		})
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	good := Config{Endpoint: "https://s3.example.com", Bucket: "bucket", AccessKey: "a", SecretKey: "verysecret"}
	for name, change := range map[string]func(*Config){
		"no endpoint":            func(c *Config) { c.Endpoint = "" },
		"endpoint without URL":   func(c *Config) { c.Endpoint = "s3.example.com:9000" },
		"endpoint with path":     func(c *Config) { c.Endpoint += "/path" },
		"endpoint with user":     func(c *Config) { c.Endpoint = "https://u:p@s3.example.com" },
		"public endpoint, other": func(c *Config) { c.PublicEndpoint = "ftp://s3.example.com" },
		"no bucket":              func(c *Config) { c.Bucket = "" },
		"half a credential":      func(c *Config) { c.SecretKey = "" },
		"parts too small":        func(c *Config) { c.PartSize = minPartSize - 1 },
		"negative timeout":       func(c *Config) { c.Timeout = -1 },
	} {
		c := good
		change(&c)
		if _, err := Open(t.Context(), c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	s, err := Open(t.Context(), good)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("open", "s3", good)
	if strings.Contains(log.String(), "verysecret") || !strings.Contains(log.String(), "s3.example.com") {
		t.Error(log.String())
	}
}

// However large the allowed body, its parts number at most 10,000.
func TestBufferFitsTheBody(t *testing.T) {
	t.Parallel()
	s := &S3{cfg: Config{PartSize: minPartSize}}
	for _, o := range []PutOptions{{Size: -1}, {Size: 0}, {Size: 10}, {Size: minPartSize}, {Size: -1, MaxSize: 100 << 30}, {Size: 60 << 30}} {
		buf, release := (&upload{store: s, o: o}).buffer()
		n := int64(len(buf))
		if most := max(o.Size, o.MaxSize); n*maxParts < most || n > minPartSize && (n-1)*maxParts >= most || n == 0 {
			t.Errorf("%+v: parts of %d bytes", o, n)
		}
		release()
	}
}

// More unfinished uploads than one answer holds come page by page.
func TestListUnfinishedPages(t *testing.T) {
	t.Parallel()
	s := openFake(t, func(r *http.Request) *reply {
		switch q := r.URL.Query(); q.Get("key-marker") + q.Get("upload-id-marker") {
		case "":
			return answer(200, `<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>a</NextKeyMarker><NextUploadIdMarker>1</NextUploadIdMarker><Upload><Key>a</Key><UploadId>1</UploadId></Upload></ListMultipartUploadsResult>`)
		case "a1":
			return answer(200, `<ListMultipartUploadsResult><Upload><Key>a</Key><UploadId>2</UploadId></Upload></ListMultipartUploadsResult>`)
		}
		t.Errorf("asked for %s", r.URL)
		return answer(400, "")
	})
	var got []string
	for u, err := range s.ListUnfinished(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, u.Key+u.ID)
	}
	if !slices.Equal(got, []string{"a1", "a2"}) {
		t.Errorf("got %q", got)
	}
}
