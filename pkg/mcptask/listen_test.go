package mcptask

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// recorder is a client's end of a stream: it notes when each event came.
type recorder struct {
	mu     sync.Mutex
	header http.Header
	status int
	at     []time.Duration
	events []string
	start  time.Time
	stuck  bool // refuse every write from now on
}

func newRecorder() *recorder { return &recorder{header: http.Header{}, start: time.Now()} }

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(s int)   { r.status = s }
func (*recorder) Flush()                {}

func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stuck {
		return 0, errors.New("i/o timeout")
	}
	r.at = append(r.at, time.Since(r.start))
	r.events = append(r.events, string(b))
	return len(b), nil
}

// lines renders what came, one event a line, for comparison.
func (r *recorder) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for i, e := range r.events {
		data, ok := eventData([]byte(e))
		if !ok {
			out = append(out, fmt.Sprintf("%v comment", r.at[i]))
			continue
		}
		var m struct {
			Method string `json:"method"`
			Params struct {
				Meta          map[string]any  `json:"_meta"`
				TaskID        string          `json:"taskId"`
				StatusMessage string          `json:"statusMessage"`
				URI           string          `json:"uri"`
				Notifications json.RawMessage `json:"notifications"`
			} `json:"params"`
			Result json.RawMessage `json:"result"`
		}
		if err := json.Unmarshal(data, &m); err != nil {
			out = append(out, "unreadable: "+e)
			continue
		}
		what := strings.TrimPrefix(m.Method, "notifications/")
		if m.Result != nil {
			what = "result"
		} else if m.Params.Meta[mcp.MetaKeySubscriptionID] != float64(1) {
			what += " WITHOUT SUBSCRIPTION"
		}
		words := []string{r.at[i].String(), what, m.Params.TaskID, m.Params.StatusMessage, m.Params.URI, string(m.Params.Notifications)}
		out = append(out, strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), " "))
	}
	return out
}

// listening starts a subscriptions/listen in a synctest bubble.
type listening struct {
	*recorder
	h      *Handler
	cancel context.CancelFunc
	done   chan struct{}
}

func startListening(t *testing.T, o Options, notifications string) *listening {
	t.Helper()
	h, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l := &listening{recorder: newRecorder(), h: h, cancel: cancel, done: make(chan struct{})}
	r := modernRequest("http://localhost/mcp", methodListen, "", `"notifications":`+notifications+`,`, metaDeclared).WithContext(ctx)
	go func() {
		defer close(l.done)
		h.ServeHTTP(l.recorder, r)
	}()
	synctest.Wait()
	return l
}

func (l *listening) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// stop ends the stream from the client's side and checks that nothing stays.
func (l *listening) stop(t *testing.T, s *fakeStore) {
	t.Helper()
	l.cancel()
	<-l.done
	if err := l.h.Close(); err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watching != 0 {
		t.Errorf("%d watchers left", s.watching)
	}
}

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func working(id, msg string) *Task {
	return fakeTask(id, StatusWorking, func(t *Task) { t.StatusMessage = msg })
}

func TestListenSendsLatestAtMostOncePerInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(working("task_a", "0"))
		l := startListening(t, testOptions(s), `{"taskIds":["task_a","task_foreign"]}`)
		time.Sleep(50 * time.Millisecond)
		for i := range 30 { // a change every 100 ms, 3 s long
			time.Sleep(100 * time.Millisecond)
			s.put(working("task_a", strconv.Itoa(i+1)))
			synctest.Wait()
		}
		s.put(fakeTask("task_a", StatusCancelled, nil))
		<-l.done
		same(t, l.lines(),
			`0s subscriptions/acknowledged {"taskIds":["task_a"]}`,
			"0s tasks task_a 0",
			"2s tasks task_a 19",
			"4s tasks task_a it is cancelled",
			"4s result",
		)
		l.stop(t, s)
	})
}

func TestListenIntervalIsPerTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(working("task_a", "a0"), working("task_b", "b0"))
		l := startListening(t, testOptions(s), `{"taskIds":["task_a","task_b"]}`)
		time.Sleep(time.Second)
		s.put(working("task_a", "a1"))
		time.Sleep(1500 * time.Millisecond)
		s.put(working("task_b", "b1")) // its interval is over: at once
		synctest.Wait()
		got := l.lines()
		slices.Sort(got)
		same(t, got,
			`0s subscriptions/acknowledged {"taskIds":["task_a","task_b"]}`,
			"0s tasks task_a a0",
			"0s tasks task_b b0",
			"2.5s tasks task_b b1",
			"2s tasks task_a a1",
		)
		l.stop(t, s)
	})
}

func TestListenUnchangedTaskIsNotSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(working("task_a", "0"))
		l := startListening(t, testOptions(s), `{"taskIds":["task_a"]}`)
		for range 5 {
			time.Sleep(3 * time.Second)
			s.put(working("task_a", "0"))
			synctest.Wait()
		}
		s.put(working("task_a", "1"))
		synctest.Wait()
		same(t, l.lines(), `0s subscriptions/acknowledged {"taskIds":["task_a"]}`, "0s tasks task_a 0", "15s tasks task_a 1")
		l.stop(t, s)
	})
}

func TestListenBesideOtherKinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(working("task_a", "0"))
		o := testOptions(s)
		o.KeepAlive = time.Hour
		l := startListening(t, o, `{"taskIds":["task_a"],"resourceSubscriptions":["test://r"],"toolsListChanged":true}`)
		time.Sleep(time.Second)
		if err := l.h.ResourceUpdated(t.Context(), "test://r"); err != nil {
			t.Fatal(err)
		}
		if err := l.h.ResourceUpdated(t.Context(), "test://other"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		s.put(fakeTask("task_a", StatusCompleted, func(t *Task) { t.Result = textResult("x") }))
		time.Sleep(time.Minute)
		synctest.Wait()
		if l.ended() {
			t.Error("the stream ended with its tasks although a resource is listened to")
		}
		same(t, l.lines(),
			`0s subscriptions/acknowledged {"resourceSubscriptions":["test://r"],"taskIds":["task_a"],"toolsListChanged":true}`,
			"0s tasks task_a 0",
			"1s resources/updated test://r",
			"5s tasks task_a it is completed",
		)
		l.stop(t, s)
	})
}

func TestListenKeepsAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		l := startListening(t, testOptions(s), `{"resourceSubscriptions":["test://r"]}`)
		time.Sleep(45 * time.Second)
		same(t, l.lines(), `0s subscriptions/acknowledged {"resourceSubscriptions":["test://r"]}`, "20s comment", "40s comment")
		l.stop(t, s)
	})
}

func TestListenEndsInGoodOrderOnClose(t *testing.T) {
	t.Parallel()
	for name, notifications := range map[string]string{
		"tasks":           `{"taskIds":["task_a"]}`,
		"tasks and more":  `{"taskIds":["task_a"],"toolsListChanged":true}`,
		"other kinds":     `{"toolsListChanged":true}`,
		"nothing allowed": `{"promptsListChanged":true,"taskIds":["task_a"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newFakeStore(working("task_a", "0"))
				l := startListening(t, testOptions(s), notifications)
				time.Sleep(time.Second)
				if l.ended() {
					t.Fatal("ended early")
				}
				if err := l.h.Close(); err != nil {
					t.Fatal(err)
				}
				<-l.done
				if got := l.lines(); got[len(got)-1] != "1s result" {
					t.Errorf("no result at the end: %q", got)
				}
				l.stop(t, s)
			})
		})
	}
}

func TestListenRetriesABrokenWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(working("task_a", "0"))
		s.broken = errors.New("connection lost")
		l := startListening(t, testOptions(s), `{"taskIds":["task_a"]}`)
		time.Sleep(3 * time.Second)
		same(t, l.lines(), `0s subscriptions/acknowledged {"taskIds":["task_a"]}`, "2s tasks task_a 0")
		l.stop(t, s)
	})
}

func TestListenEndsWhenTheTaskIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(working("task_a", "0"))
		l := startListening(t, testOptions(s), `{"taskIds":["task_a"]}`)
		time.Sleep(3 * time.Second)
		s.mu.Lock()
		delete(s.tasks, "task_a")
		s.mu.Unlock()
		s.put(working("task_b", "wakes the watcher"))
		<-l.done
		same(t, l.lines(), `0s subscriptions/acknowledged {"taskIds":["task_a"]}`, "0s tasks task_a 0", "3s result")
		l.stop(t, s)
	})
}

func TestListenLetsGoOfAClientThatStoppedReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(working("task_a", "0"))
		l := startListening(t, testOptions(s), `{"taskIds":["task_a"],"toolsListChanged":true}`)
		l.mu.Lock()
		l.stuck = true
		l.mu.Unlock()
		time.Sleep(3 * time.Second)
		s.put(working("task_a", "1"))
		<-l.done
		l.stop(t, s)
	})
}

func TestListenLimitsTasks(t *testing.T) {
	t.Parallel()
	o := testOptions(newFakeStore())
	o.MaxListenTasks = 2
	h := newHandler(t, o)
	got := do(t, modernRequest(serve(t, h), methodListen, "", `"notifications":{"taskIds":["a","b","c"]},`, metaDeclared))
	if got.status != http.StatusBadRequest || !strings.Contains(got.body, "-32602") {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// An id or a message must not be able to begin a line of its own on a stream.
func TestNoInjectionIntoStreams(t *testing.T) {
	t.Parallel()
	const evil = "x\\n\\ndata: {\\\"injected\\\":1}\\r\\n\\u2028"
	var id string
	if err := json.Unmarshal([]byte(`"`+evil+`"`), &id); err != nil {
		t.Fatal(err)
	}
	task := fakeTask(id, StatusCancelled, func(t *Task) { t.StatusMessage = id })
	url := serve(t, newHandler(t, testOptions(newFakeStore(task))))
	for name, r := range map[string]*http.Request{
		"task id": modernRequest(url, methodListen, "", `"notifications":{"taskIds":["`+evil+`"]},`, metaDeclared),
		"request id": rawRequest(url, map[string]string{versionHeader: Version20260728, methodHeader: methodListen},
			`{"jsonrpc":"2.0","id":"`+evil+`","method":"subscriptions/listen","params":{"notifications":{"taskIds":["`+evil+`"]},`+metaDeclared+`}}`),
		"resource": modernRequest(url, methodListen, "", `"notifications":{"taskIds":["`+evil+`"],"resourceSubscriptions":[]},`, metaDeclared),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := do(t, r)
			if events := streamEvents(t, got.body); len(events) != 3 {
				t.Errorf("%d events in %q, want acknowledgement, task, result", len(events), got.body)
			}
		})
	}
}

// streamEvents takes a stream apart, and fails for whatever is no event of ours.
func streamEvents(t *testing.T, body string) (events []string) {
	t.Helper()
	if strings.Contains(body, "\r") {
		t.Errorf("a carriage return in %q", body)
	}
	for line := range strings.Lines(body) {
		data, ok := strings.CutPrefix(line, "data: ")
		switch {
		case line == "\n", line == "event: message\n":
		case ok && strings.HasPrefix(data, `{"jsonrpc":"2.0"`) && json.Valid([]byte(data)):
			events = append(events, data)
		default:
			t.Errorf("stray line %q", line)
		}
	}
	return events
}
