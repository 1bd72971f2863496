package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
)

// Watcher is told what happens to a task that is followed. Its methods are
// called one at a time, Ask alone beside the others.
type Watcher interface {
	// Changed shows the task after every look at it, and the live numbers,
	// nil when they are not known.
	Changed(t *Task, s *Status)
	// Retrying says that the server did not answer and that the next try
	// follows after wait.
	Retrying(err error, wait time.Duration)
	// Ask answers a question of the server. ctx ends when the question is
	// settled without the answer: decided elsewhere, timed out, cancelled.
	Ask(ctx context.Context, taskID string, q InputRequest) (*mcp.ElicitResult, error)
}

// FollowOptions tune Follow.
type FollowOptions struct {
	// GiveUpAfter is how long the server may stay silent before Follow
	// returns an error that wraps ErrUnreachable. The render goes on.
	// Defaults to 10 minutes.
	GiveUpAfter time.Duration
	// RetryFrom and RetryTo bound the waits between tries at a server that
	// does not answer. They default to 0.5 s and 5 s.
	RetryFrom, RetryTo time.Duration
}

func (o FollowOptions) withDefaults() FollowOptions {
	o.GiveUpAfter = cmp.Or(o.GiveUpAfter, 10*time.Minute)
	o.RetryFrom = cmp.Or(o.RetryFrom, 500*time.Millisecond)
	o.RetryTo = cmp.Or(o.RetryTo, 5*time.Second)
	return o
}

// Submit calls the render tool until the server has answered for certain: while
// it cannot be reached, while the source is being probed. The request needs an
// idempotency key, so that a second call does not render twice.
func (c *Client) Submit(ctx context.Context, r Request, retrying func(error, time.Duration), o FollowOptions) (t *Task, err error) {
	if r.IdempotencyKey == "" {
		return nil, errors.New("submit: the request has no idempotency key")
	}
	err = patiently(ctx, o.withDefaults(), retrying, func() error { t, err = c.Render(ctx, r); return err })
	return t, err
}

// WaitStatus is RenderStatus with the patience of Follow.
func (c *Client) WaitStatus(ctx context.Context, id render.ID, retrying func(error, time.Duration), o FollowOptions) (s *Status, err error) {
	err = patiently(ctx, o.withDefaults(), retrying, func() error { s, err = c.RenderStatus(ctx, id); return err })
	return s, err
}

// Follow polls a task at the interval that the server asks for, answers its
// questions through w, and returns the video or the error that it ended with.
// A server that goes away in between is asked again and again: the render is
// the farm's, not the connection's.
func (c *Client) Follow(ctx context.Context, t *Task, w Watcher, o FollowOptions) (*Video, error) {
	o = o.withDefaults()
	hintCtx, stopHints := context.WithCancel(ctx)
	f := &following{c: c, hints: c.changes(hintCtx, t.TaskID), id: t.TaskID, w: w, o: o, asked: map[string]bool{}, answers: make(chan answer)}
	defer func() {
		f.stopAsking()
		stopHints()
		for range f.hints { // until the goroutine behind it has ended
		}
	}()
	return f.run(ctx, t)
}

type answer struct {
	key    string
	result *mcp.ElicitResult
	err    error
}

// following is one run of Follow.
type following struct {
	c  *Client
	id string
	w  Watcher
	o  FollowOptions

	hints   <-chan struct{}
	asked   map[string]bool
	answers chan answer
	// cancelAsk and asking belong to the question that is open, if one is.
	cancelAsk context.CancelFunc
	asking    chan struct{}
	openKey   string
	answered  bool // the open question has been answered
}

func (f *following) run(ctx context.Context, t *Task) (*Video, error) {
	for {
		if t.Status.Terminal() {
			f.stopAsking()
			f.w.Changed(t, nil)
			return t.outcome()
		}
		f.withdraw(t)
		f.w.Changed(t, f.numbers(ctx, t))
		f.ask(ctx, t)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("follow the render: %w", ctx.Err())
		case <-time.After(f.pollAfter(t)):
		case <-f.hints:
		case a := <-f.answers:
			if a.err != nil {
				return nil, a.err
			}
			err := f.patiently(ctx, func() error { return f.c.Answer(ctx, f.id, a.key, a.result) })
			if err != nil {
				return nil, err
			}
			f.answered = true
		}
		err := f.patiently(ctx, func() (err error) { t, err = f.c.GetTask(ctx, f.id); return err })
		if err != nil {
			return nil, err
		}
	}
}

// pollAfter is the interval that the server asks for. Right after an answer it
// is short: the interval of a task that waits for a person is long.
func (f *following) pollAfter(t *Task) time.Duration {
	if _, open := t.InputRequests[f.openKey]; open && f.answered {
		return min(t.pollAfter(), time.Second)
	}
	return t.pollAfter()
}

// numbers fetches the live numbers of a working task. They are a decoration:
// without them the render is followed all the same.
func (f *following) numbers(ctx context.Context, t *Task) *Status {
	if t.Status != mcptask.StatusWorking {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s, err := f.c.RenderStatus(ctx, render.ID(f.id))
	if err != nil {
		return nil
	}
	return s
}

// withdraw stops asking what is no longer open.
func (f *following) withdraw(t *Task) {
	if _, open := t.InputRequests[f.openKey]; !open || t.Status != mcptask.StatusInputRequired {
		f.stopAsking()
	}
}

// ask starts the first question that was not asked yet, unless one is open.
func (f *following) ask(ctx context.Context, t *Task) {
	if f.cancelAsk != nil || t.Status != mcptask.StatusInputRequired {
		return
	}
	for key, q := range t.InputRequests {
		if f.asked[key] {
			continue
		}
		f.asked[key], f.openKey, f.answered = true, key, false
		askCtx, cancel := context.WithCancel(ctx)
		f.cancelAsk, f.asking = cancel, make(chan struct{})
		go func(done chan struct{}) {
			defer close(done)
			result, err := f.w.Ask(askCtx, f.id, q)
			select {
			case f.answers <- answer{key, result, err}:
			case <-askCtx.Done():
			}
		}(f.asking)
		return
	}
}

// stopAsking withdraws the open question and waits for its end.
func (f *following) stopAsking() {
	if f.cancelAsk == nil {
		return
	}
	f.cancelAsk()
	<-f.asking
	f.cancelAsk, f.openKey = nil, ""
}

func (f *following) patiently(ctx context.Context, do func() error) error {
	return patiently(ctx, f.o, f.w.Retrying, do)
}

// patiently repeats do while the server cannot be reached or says that it will
// pass.
func patiently(ctx context.Context, o FollowOptions, retrying func(error, time.Duration), do func() error) error {
	wait := o.RetryFrom
	start := time.Now()
	for {
		err := do()
		if err == nil || ctx.Err() != nil || !Temporary(err) {
			return err
		}
		if time.Since(start) > o.GiveUpAfter {
			return fmt.Errorf("gave up after %s: %w", o.GiveUpAfter, err)
		}
		pause := wait
		if e, ok := errors.AsType[*render.Error](err); ok {
			pause = max(pause, min(e.RetryAfter, o.RetryTo))
		}
		retrying(err, pause)
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the server: %w", ctx.Err())
		case <-time.After(pause):
		}
		wait = min(2*wait, o.RetryTo)
	}
}
