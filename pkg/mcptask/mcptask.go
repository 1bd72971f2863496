// Package mcptask adds tasks to servers built with the official MCP Go SDK, in
// both generations: the extension io.modelcontextprotocol/tasks (SEP-2663) of MCP
// 2026-07-28, and the core tasks of 2025-11-25. It knows nothing of what the
// tasks do: a [Store] looks them up, a [Tool] makes them. [New] puts both behind
// one HTTP handler, which serves clients of 2025-06-18 and 2025-03-26 as well,
// without tasks. [Memory] is a Store for tests and for tasks that may die with
// their process.
//
// Every request of MCP 2026-07-28 declares by itself whether its client knows
// tasks; a call of 2025-11-25 asks for one with params.task. [Caller.Tasks] tells
// of either. A tool may answer such a caller with a task, and must answer any
// other with a result or [ErrTasksRequired].
//
// One Task serves both: where they differ, the handler translates. A tool's
// error is a completed task of the one and a failed task of the other; input
// requests wait in tasks/get of the one, and go out to the other as requests of
// the server, on the tasks/result that is held or on the GET stream.
//
// # What goes beyond the SDK
//
// The SDK serves the requests; this package stands in front of it for what it
// has no way to do:
//
//   - Mcp-Name is decoded before it is compared, and compared for tasks/* too.
//     A header that mirrors the body and comes twice is refused (-32020).
//   - subscriptions/listen takes taskIds beside the SDK's own kinds. The
//     acknowledgement names those that exist for the caller and drops the
//     others; a snapshot of each follows, then its changes, at most one per
//     NotifyInterval and task, the last one included. The stream ends when all
//     tasks ended and nothing else is listened to.
//   - tasks/get is answered without the SDK, at a tenth of the cost, in the
//     same bytes.
//   - [ServeStdio] serves the same handler on a pair of streams.
//   - params.task, tasks/result that waits, progress for a task's life, and
//     questions that are asked again when the stream that carried them is lost.
//   - Whatever an error says that nobody meant for a client stays in the log.
package mcptask

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// ExtensionID is the extension's name in capabilities.
const ExtensionID = "io.modelcontextprotocol/tasks"

// Status of a task on the wire.
type Status string

// Statuses of both generations.
const (
	StatusWorking       Status = "working"
	StatusInputRequired Status = "input_required"
	StatusCompleted     Status = "completed"
	StatusFailed        Status = "failed"
	StatusCancelled     Status = "cancelled"
)

// Terminal reports whether the status is final.
func (s Status) Terminal() bool {
	return s == StatusCompleted || s == StatusFailed || s == StatusCancelled
}

// ErrNotFound is returned by a Store for a task that does not exist, or not
// for this caller.
var ErrNotFound = errors.New("task not found")

// ErrTasksRequired is returned by a Tool that cannot serve a caller without
// tasks. It becomes -32021.
var ErrTasksRequired = errors.New("the client must declare the extension " + ExtensionID)

// ErrTooManySessions is what initialize is answered with when its principal has
// Options.MaxSessions sessions. It becomes -32603 unless MapError says more.
var ErrTooManySessions = errors.New("too many sessions are open")

// Task is a task as one caller sees it now.
type Task struct {
	ID            string
	Status        Status
	StatusMessage string
	CreatedAt     time.Time
	LastUpdatedAt time.Time
	// TTL counts from CreatedAt; zero is null on the wire (no limit).
	TTL time.Duration
	// PollInterval is how long a client should wait before it asks again.
	PollInterval time.Duration
	// InputRequests go out with StatusInputRequired, also when empty. Each
	// value is the whole request, {"method":"elicitation/create","params":…},
	// and is sent byte for byte.
	InputRequests map[string]json.RawMessage
	// Result of a completed task (a tool error is a completed task whose
	// result has IsError; MCP 2025-11-25 calls it failed). Of a cancelled task
	// it is what tasks/result of MCP 2025-11-25 answers; nil says just that.
	Result *mcp.CallToolResult
	// Error of a failed task.
	Error *jsonrpc.Error
	// Progress is the fraction that is done, from 0 to 1; zero is unknown. Only
	// clients of MCP 2025-11-25 are sent it, as notifications/progress.
	Progress float64
}

// Caller is who asks, and what the request declared.
type Caller struct {
	// Principal is what the HTTP layer put there (WithPrincipal), or nil.
	Principal       any
	ProtocolVersion string
	Capabilities    *mcp.ClientCapabilities
	// Meta is the request's _meta.
	Meta map[string]any
	// Task is set for a call of MCP 2025-11-25 that asks for a task, and for
	// later requests about that task in the same session.
	Task *TaskRequest
}

// Tasks reports whether the caller can be answered with a task: it declared the
// tasks extension on this very request (MCP 2026-07-28), or asked for a task
// (2025-11-25).
func (c Caller) Tasks() bool {
	if c.Task != nil {
		return true
	}
	if c.ProtocolVersion < Version20260728 || c.Capabilities == nil {
		return false
	}
	_, ok := c.Capabilities.Extensions[ExtensionID]
	return ok
}

type (
	principalKey struct{}
	callerKey    struct{}
)

// WithPrincipal is for the layer that authenticates HTTP requests: handlers
// and the Store find p in their Caller.
func WithPrincipal(ctx context.Context, p any) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// CallerFrom returns who sent the request that a tool, resource, prompt,
// completion or subscription handler is serving. ok is false outside of one.
func CallerFrom(ctx context.Context) (c Caller, ok bool) {
	c, ok = ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// Store looks up and changes tasks. Errors that are *jsonrpc.Error go to the
// client as they are; ErrNotFound becomes -32602; anything else -32603.
type Store interface {
	// Get returns the task as this caller sees it.
	Get(ctx context.Context, c Caller, id string) (*Task, error)
	// Update hands over answers to input requests, keyed as they were asked.
	// Unknown and answered keys are ignored.
	Update(ctx context.Context, c Caller, id string, responses map[string]json.RawMessage) error
	// Cancel ends the task: Get then shows it cancelled. Cancelling a finished
	// task is no error.
	Cancel(ctx context.Context, c Caller, id string) error
	// Watch calls fn with the task as it is and after every change until it
	// is terminal, fn fails or ctx ends.
	Watch(ctx context.Context, c Caller, id string, fn func(*Task) error) error
}

// Tool is a tool that answers a declaring caller with a task. For any other
// caller it is an ordinary handler: task is nil then and result is sent.
type Tool func(ctx context.Context, c Caller, req *mcp.CallToolRequest) (result *mcp.CallToolResult, task *Task, err error)
