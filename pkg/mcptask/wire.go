package mcptask

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// taskResult is every shape in which SEP-2663 sends a task: CreateTaskResult
// ("task", no details), GetTaskResult ("complete") and the params of
// notifications/tasks (no resultType).
type taskResult struct {
	mcp.ResultBase
	ResultType     string                      `json:"resultType,omitempty"`
	TaskID         string                      `json:"taskId"`
	Status         Status                      `json:"status"`
	StatusMessage  string                      `json:"statusMessage,omitempty"`
	CreatedAt      string                      `json:"createdAt"`
	LastUpdatedAt  string                      `json:"lastUpdatedAt"`
	TTLMs          *int64                      `json:"ttlMs"`
	PollIntervalMs int64                       `json:"pollIntervalMs,omitempty"`
	InputRequests  *map[string]json.RawMessage `json:"inputRequests,omitempty"`
	Result         *completeResult             `json:"result,omitempty"`
	Error          *jsonrpc.Error              `json:"error,omitempty"`
}

// ackResult answers tasks/update and tasks/cancel.
type ackResult struct {
	mcp.ResultBase
	ResultType string `json:"resultType"`
}

// completeResult is a tool's result inside a task. The SDK sets resultType only
// on what it sends itself, but inside a task the schema asks for it too. The
// plain type sheds MarshalJSON, which would hide ResultType.
type completeResult struct {
	ResultType string `json:"resultType"`
	*plainResult
}

type plainResult mcp.CallToolResult

const (
	resultComplete = "complete"
	resultTask     = "task"
)

// createView is the answer to the call that made the task. The details follow
// with tasks/get, whatever the status is already.
func createView(t *Task) *taskResult {
	v := &taskResult{
		ResultType:     resultTask,
		TaskID:         t.ID,
		Status:         t.Status,
		StatusMessage:  t.StatusMessage,
		CreatedAt:      timestamp(t.CreatedAt),
		LastUpdatedAt:  timestamp(t.LastUpdatedAt),
		PollIntervalMs: t.PollInterval.Milliseconds(),
	}
	if t.TTL > 0 {
		ms := t.TTL.Milliseconds()
		v.TTLMs = &ms
	}
	return v
}

// detailedView is the answer to tasks/get. It fails on a task that breaks the
// rules of its status, rather than sending what no client can read.
func detailedView(t *Task) (*taskResult, error) {
	v := createView(t)
	v.ResultType = resultComplete
	switch t.Status {
	case StatusWorking, StatusCancelled:
	case StatusInputRequired:
		v.InputRequests = &t.InputRequests
		if t.InputRequests == nil {
			v.InputRequests = &map[string]json.RawMessage{}
		}
	case StatusCompleted:
		if t.Result == nil {
			return nil, errors.New("completed task without a result")
		}
		r := plainResult(*t.Result)
		if r.Content == nil {
			r.Content = []mcp.Content{}
		}
		v.Result = &completeResult{resultComplete, &r}
	case StatusFailed:
		if t.Error == nil {
			return nil, errors.New("failed task without an error")
		}
		v.Error = t.Error
	default:
		return nil, fmt.Errorf("task of unknown status %q", t.Status)
	}
	return v, nil
}

// timestamp is ISO 8601 in UTC, always with milliseconds.
func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// marshal encodes as the SDK does: HTML characters as they are, on one line.
func marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
