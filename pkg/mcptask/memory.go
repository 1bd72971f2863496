package mcptask

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// MemoryOptions configure a [Memory].
type MemoryOptions struct {
	// TTL is how long a task is kept, from its creation. Defaults to 1 h. A
	// caller of MCP 2025-11-25 may ask for less, down to 1 s.
	TTL time.Duration
	// PollInterval is what clients are told. Defaults to 1 s.
	PollInterval time.Duration
	// Owner names a caller: each sees its own tasks only. Nil shows all tasks
	// to everybody who knows their id.
	Owner func(Caller) string
}

// Memory is a Store in the process's memory that also runs the tasks: for
// tests, examples and servers whose tasks may die with them.
type Memory struct {
	opts MemoryOptions
	wg   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	tasks  map[string]*Running
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty Memory. Close it to end its tasks.
func NewMemory(o MemoryOptions) *Memory {
	o.TTL = cmp.Or(o.TTL, time.Hour)
	o.PollInterval = cmp.Or(o.PollInterval, time.Second)
	if o.Owner == nil {
		o.Owner = func(Caller) string { return "" }
	}
	return &Memory{opts: o, tasks: map[string]*Running{}}
}

// Running is a task of a Memory, as the function that carries it out sees it.
type Running struct {
	owner  string
	cancel context.CancelFunc
	expire *time.Timer

	mu      sync.Mutex
	task    Task
	gone    bool
	asked   map[string]chan json.RawMessage // every key ever used; answered ones are nil
	changed chan struct{}                   // closed and replaced at every change
}

// Start makes a task and runs it in the background, with the values of ctx but
// past its end. What run returns becomes
// the task's end as SEP-2663 maps it: a *jsonrpc.Error fails the task, any other
// error is a tool error and completes it.
func (m *Memory) Start(ctx context.Context, c Caller, run func(ctx context.Context, t *Running) (*mcp.CallToolResult, error)) (*Task, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	now := time.Now()
	r := &Running{
		owner:  m.opts.Owner(c),
		cancel: cancel,
		task: Task{ID: strings.ToLower(rand.Text()), Status: StatusWorking, CreatedAt: now, LastUpdatedAt: now,
			TTL: m.opts.TTL, PollInterval: m.opts.PollInterval},
		asked:   map[string]chan json.RawMessage{},
		changed: make(chan struct{}),
	}
	if c.Task != nil && c.Task.TTL > 0 {
		r.task.TTL = min(m.opts.TTL, max(c.Task.TTL, time.Second))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		cancel()
		return nil, errors.New("mcptask: Memory is closed")
	}
	m.tasks[r.task.ID] = r
	r.expire = time.AfterFunc(r.task.TTL, func() { m.remove(r) })
	m.wg.Go(func() {
		defer cancel()
		res, err := run(ctx, r)
		r.finish(res, err)
	})
	return r.snapshot(), nil
}

// Close cancels all tasks and waits for them.
func (m *Memory) Close() {
	m.mu.Lock()
	m.closed = true
	for _, r := range m.tasks {
		r.expire.Stop()
		r.end()
	}
	m.mu.Unlock()
	m.wg.Wait()
}

func (m *Memory) remove(r *Running) {
	m.mu.Lock()
	delete(m.tasks, r.task.ID)
	m.mu.Unlock()
	r.mu.Lock()
	r.gone = true
	r.change()
	r.mu.Unlock()
	r.cancel()
}

func (m *Memory) find(c Caller, id string) (*Running, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.tasks[id]
	if !ok || r.owner != m.opts.Owner(c) {
		return nil, ErrNotFound
	}
	return r, nil
}

// Get implements Store.
func (m *Memory) Get(_ context.Context, c Caller, id string) (*Task, error) {
	r, err := m.find(c, id)
	if err != nil {
		return nil, err
	}
	return r.snapshot(), nil
}

// Update implements Store.
func (m *Memory) Update(_ context.Context, c Caller, id string, responses map[string]json.RawMessage) error {
	r, err := m.find(c, id)
	if err != nil {
		return err
	}
	r.answer(responses)
	return nil
}

// Cancel implements Store.
func (m *Memory) Cancel(_ context.Context, c Caller, id string) error {
	r, err := m.find(c, id)
	if err != nil {
		return err
	}
	r.end()
	return nil
}

// Watch implements Store.
func (m *Memory) Watch(ctx context.Context, c Caller, id string, fn func(*Task) error) error {
	r, err := m.find(c, id)
	if err != nil {
		return err
	}
	for {
		r.mu.Lock()
		t, gone, changed := r.copy(), r.gone, r.changed
		r.mu.Unlock()
		if gone {
			return ErrNotFound
		}
		if err := fn(t); err != nil || t.Status.Terminal() {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("watch task: %w", ctx.Err())
		}
	}
}

// ID returns the task's id.
func (r *Running) ID() string { return r.task.ID }

// SetMessage tells how the task is doing.
func (r *Running) SetMessage(msg string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.task.Status.Terminal() {
		r.task.StatusMessage = msg
		r.change()
	}
}

// SetProgress tells the fraction that is done, from 0 to 1.
func (r *Running) SetProgress(fraction float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.task.Status.Terminal() {
		r.task.Progress = fraction
		r.change()
	}
}

// Ask sends the client a request, such as {"method":"elicitation/create",…},
// and waits for its response. A key serves once in a task's life.
func (r *Running) Ask(ctx context.Context, key string, request json.RawMessage) (json.RawMessage, error) {
	answer := make(chan json.RawMessage, 1)
	r.mu.Lock()
	_, used := r.asked[key]
	if !used && !r.task.Status.Terminal() {
		r.asked[key] = answer
		if r.task.InputRequests == nil {
			r.task.InputRequests = map[string]json.RawMessage{}
		}
		r.task.InputRequests[key] = request
		r.task.Status = StatusInputRequired
		r.change()
	}
	r.mu.Unlock()
	if used {
		return nil, fmt.Errorf("input request key %q was used before", key)
	}
	select {
	case a := <-answer:
		return a, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for input: %w", ctx.Err())
	}
}

func (r *Running) answer(responses map[string]json.RawMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	hit := false
	for key, a := range responses {
		if ch := r.asked[key]; ch != nil && !r.task.Status.Terminal() {
			ch <- a
			r.asked[key] = nil
			delete(r.task.InputRequests, key)
			hit = true
		}
	}
	if hit {
		if len(r.task.InputRequests) == 0 {
			r.task.Status = StatusWorking
		}
		r.change()
	}
}

func (r *Running) finish(res *mcp.CallToolResult, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.task.Status.Terminal() {
		return
	}
	t := &r.task
	if je, ok := errors.AsType[*jsonrpc.Error](err); ok {
		t.Status, t.Error, t.StatusMessage = StatusFailed, je, je.Message
	} else {
		if res == nil || err != nil {
			res = &mcp.CallToolResult{}
		}
		if err != nil {
			res.SetError(err)
			t.StatusMessage = err.Error()
		}
		t.Status, t.Result = StatusCompleted, res
	}
	t.InputRequests = nil
	r.change()
}

// end cancels the task unless it ended before.
func (r *Running) end() {
	r.mu.Lock()
	if !r.task.Status.Terminal() {
		r.task.Status, r.task.StatusMessage, r.task.InputRequests = StatusCancelled, "cancelled on request", nil
		r.change()
	}
	r.mu.Unlock()
	r.cancel()
}

// change is called with r.mu held.
func (r *Running) change() {
	r.task.LastUpdatedAt = time.Now()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Running) snapshot() *Task {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.copy()
}

// copy is called with r.mu held.
func (r *Running) copy() *Task {
	t := r.task
	t.InputRequests = maps.Clone(t.InputRequests)
	return &t
}
