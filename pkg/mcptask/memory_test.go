package mcptask

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// until watches a task until cond holds.
func until(t *testing.T, m *Memory, id string, cond func(*Task) bool) *Task {
	t.Helper()
	found := errors.New("found")
	var last *Task
	err := m.Watch(t.Context(), Caller{}, id, func(task *Task) error {
		if last = task; cond(task) {
			return found
		}
		return nil
	})
	if err != nil && !errors.Is(err, found) || !cond(last) {
		t.Fatalf("task %+v, %v", last, err)
	}
	return last
}

func terminal(t *Task) bool { return t.Status.Terminal() }

func TestMemoryEndings(t *testing.T) {
	t.Parallel()
	fault := &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "worker lost"}
	for name, c := range map[string]struct {
		res    *mcp.CallToolResult
		err    error
		status Status
		check  func(*Task) bool
	}{
		"result":     {textResult("x"), nil, StatusCompleted, func(t *Task) bool { return !t.Result.IsError }},
		"tool error": {nil, errors.New("no"), StatusCompleted, func(t *Task) bool { return t.Result.IsError && t.StatusMessage == "no" }},
		"rpc error":  {nil, fault, StatusFailed, func(t *Task) bool { return t.Error == fault && t.Result == nil }},
		"wrapped":    {nil, errors.Join(errors.New("while rendering"), fault), StatusFailed, func(t *Task) bool { return t.Error == fault }},
		"no result":  {nil, nil, StatusCompleted, func(t *Task) bool { return t.Result != nil && !t.Result.IsError }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := NewMemory(MemoryOptions{TTL: time.Minute, PollInterval: time.Second})
			defer m.Close()
			task, err := m.Start(t.Context(), Caller{}, func(context.Context, *Running) (*mcp.CallToolResult, error) { return c.res, c.err })
			if err != nil {
				t.Fatal(err)
			}
			if task.TTL != time.Minute || task.PollInterval != time.Second || len(task.ID) < 26 {
				t.Errorf("created as %+v", task)
			}
			if got := until(t, m, task.ID, terminal); got.Status != c.status || !c.check(got) {
				t.Errorf("ended as %+v", got)
			}
		})
	}
}

func TestMemoryAsks(t *testing.T) {
	t.Parallel()
	m := NewMemory(MemoryOptions{})
	defer m.Close()
	ask := json.RawMessage(`{"method":"elicitation/create"}`)
	reused := make(chan error, 1)
	task, err := m.Start(t.Context(), Caller{}, func(ctx context.Context, r *Running) (*mcp.CallToolResult, error) {
		a, err := r.Ask(ctx, "k1", ask)
		if err != nil {
			return nil, err
		}
		_, err = r.Ask(ctx, "k1", ask)
		reused <- err
		b, err := r.Ask(ctx, "k2", ask)
		return textResult(string(a) + string(b)), err
	})
	if err != nil {
		t.Fatal(err)
	}
	answer := func(responses map[string]json.RawMessage) {
		t.Helper()
		if err := m.Update(t.Context(), Caller{}, task.ID, responses); err != nil {
			t.Fatal(err)
		}
	}
	asking := func(key string) func(*Task) bool {
		return func(t *Task) bool {
			return t.Status == StatusInputRequired && string(t.InputRequests[key]) == string(ask)
		}
	}
	until(t, m, task.ID, asking("k1"))
	answer(map[string]json.RawMessage{"unknown": json.RawMessage(`9`)})
	if got := until(t, m, task.ID, asking("k1")); len(got.InputRequests) != 1 {
		t.Errorf("after an unknown key: %+v", got)
	}
	answer(map[string]json.RawMessage{"k1": json.RawMessage(`1`)})
	if err := <-reused; err == nil {
		t.Error("a key was asked twice")
	}
	until(t, m, task.ID, asking("k2"))
	answer(map[string]json.RawMessage{"k1": json.RawMessage(`7`), "k2": json.RawMessage(`2`)})
	got := until(t, m, task.ID, terminal)
	if text := got.Result.Content[0].(*mcp.TextContent).Text; text != "12" || got.InputRequests != nil {
		t.Errorf("ended as %+v with %s", got, text)
	}
}

func TestMemoryCancelWins(t *testing.T) {
	t.Parallel()
	m := NewMemory(MemoryOptions{})
	defer m.Close()
	left := make(chan struct{})
	task, err := m.Start(t.Context(), Caller{}, func(ctx context.Context, _ *Running) (*mcp.CallToolResult, error) {
		defer close(left)
		<-ctx.Done()
		return textResult("too late"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.Cancel(t.Context(), Caller{}, task.ID); err != nil {
			t.Fatal(err)
		}
	}
	<-left
	if got := until(t, m, task.ID, terminal); got.Status != StatusCancelled || got.Result != nil {
		t.Errorf("ended as %+v", got)
	}
}

func TestMemoryOwners(t *testing.T) {
	t.Parallel()
	m := NewMemory(MemoryOptions{Owner: func(c Caller) string { s, _ := c.Principal.(string); return s }})
	defer m.Close()
	task, err := m.Start(t.Context(), Caller{Principal: "alice"}, func(context.Context, *Running) (*mcp.CallToolResult, error) { return textResult("x"), nil })
	if err != nil {
		t.Fatal(err)
	}
	bob := Caller{Principal: "bob"}
	_, get := m.Get(t.Context(), bob, task.ID)
	for what, err := range map[string]error{
		"get":    get,
		"update": m.Update(t.Context(), bob, task.ID, nil),
		"cancel": m.Cancel(t.Context(), bob, task.ID),
		"watch":  m.Watch(t.Context(), bob, task.ID, func(*Task) error { return nil }),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := m.Get(t.Context(), Caller{Principal: "alice"}, task.ID); err != nil {
		t.Error(err)
	}
}

func TestMemoryForgetsAfterTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(MemoryOptions{TTL: time.Hour})
		task, err := m.Start(t.Context(), Caller{}, func(ctx context.Context, _ *Running) (*mcp.CallToolResult, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		watched := make(chan error, 1)
		go func() { watched <- m.Watch(t.Context(), Caller{}, task.ID, func(*Task) error { return nil }) }()
		time.Sleep(59 * time.Minute)
		if _, err := m.Get(t.Context(), Caller{}, task.ID); err != nil {
			t.Errorf("forgotten early: %v", err)
		}
		time.Sleep(2 * time.Minute)
		if _, err := m.Get(t.Context(), Caller{}, task.ID); !errors.Is(err, ErrNotFound) {
			t.Errorf("after the TTL: %v", err)
		}
		if err := <-watched; !errors.Is(err, ErrNotFound) {
			t.Errorf("watch: %v", err)
		}
		m.Close()
		if _, err := m.Start(t.Context(), Caller{}, nil); err == nil {
			t.Error("started on a closed Memory")
		}
	})
}
