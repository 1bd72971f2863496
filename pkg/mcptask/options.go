package mcptask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Protocol versions that a Handler serves.
const (
	Version20260728 = "2026-07-28"
	Version20251125 = "2025-11-25"
	Version20250618 = "2025-06-18"
	Version20250326 = "2025-03-26"
)

// TaskTool is a tool that may answer with a task.
type TaskTool struct {
	*mcp.Tool
	// Handle runs the tool. Its arguments arrive raw and unvalidated.
	Handle Tool
}

// Options configure a [Handler].
type Options struct {
	// Implementation names the server. Required.
	Implementation *mcp.Implementation
	// Store holds the tasks. Required.
	Store Store
	// Tools that answer with tasks.
	Tools []TaskTool
	// Configure adds ordinary tools, resources and prompts. It is called once
	// for the server of MCP 2026-07-28 and once for that of older clients.
	Configure func(s *mcp.Server)
	// Server holds the SDK's own options for both servers: instructions,
	// completion and subscription handlers, capabilities and so on.
	// Capabilities defaults to none but those the SDK infers, so that nothing
	// deprecated is announced. SupportedProtocolVersions is set by New.
	Server mcp.ServerOptions
	// ToolOrder lists tool names in the order in which tools/list shows them;
	// tools that it does not name follow, sorted by name. Without it the
	// SDK's order by name stands.
	ToolOrder []string
	// SurfaceMeta is added to _meta of server/discover, initialize and the
	// list results.
	SurfaceMeta map[string]any
	// CacheTTL and CacheScope are the cache hints of server/discover and the
	// list results. CacheScope defaults to "private". Server.SetCacheable, if
	// set, decides instead.
	CacheTTL   time.Duration
	CacheScope string

	// MapError sees every error that a request is about to be answered with
	// and returns the one to send. Errors that are not *jsonrpc.Error after it
	// become -32602 (ErrNotFound), -32021 (ErrTasksRequired) or -32603 with no
	// detail. Nil sends errors as they are.
	MapError func(ctx context.Context, c Caller, method string, err error) error
	// MissingCapability returns fields to send beside requiredCapabilities in
	// the data of error -32021. taskID is empty where the request names none.
	MissingCapability func(ctx context.Context, c Caller, method, taskID string) map[string]any
	// FailureMessage makes the statusMessage of a task of MCP 2025-11-25 that
	// failed with a tool error; some clients show nothing else. Defaults to the
	// text of the result.
	FailureMessage func(res *mcp.CallToolResult) string
	// ImmediateResponse is what a host of MCP 2025-11-25 may give its model as
	// the tool's answer while the task goes on. Defaults to a sentence that
	// says so.
	ImmediateResponse func(t *Task) string
	// PrincipalKey names a principal. Sessions of older clients then belong
	// to the principal that opened them, and are unknown to any other. Nil
	// leaves sessions to whoever knows their id.
	PrincipalKey func(principal any) string

	// MaxBodyBytes bounds a request's body. Defaults to 4 MiB.
	MaxBodyBytes int64
	// MaxListenTasks bounds the task ids of one subscriptions/listen, and the
	// tasks that one session is told of. Defaults to 256.
	MaxListenTasks int
	// NotifyInterval is the least time between two notifications about one
	// task on one stream, and between two of a task's progress. Defaults to 2 s.
	NotifyInterval time.Duration
	// KeepAlive is the time between comments on a stream that is held open.
	// Defaults to 20 s.
	KeepAlive time.Duration
	// WriteTimeout bounds each single write to a client, so that one that
	// stopped reading does not hold a stream for ever. Defaults to 30 s.
	WriteTimeout time.Duration
	// SessionTimeout ends an older client's session that had no request and no
	// stream open for so long. Defaults to 2 h.
	SessionTimeout time.Duration
	// MaxSessions bounds the sessions of one principal; initialize is then
	// answered with ErrTooManySessions. It needs PrincipalKey. Defaults to no
	// bound.
	MaxSessions int
	// DisableLocalhostProtection accepts any Host header on loopback
	// addresses. Set it only behind a proxy that checks Host itself.
	DisableLocalhostProtection bool
	// CrossOrigin decides which browser origins may call. Defaults to the
	// same origin only; requests that no browser sent are not concerned.
	CrossOrigin *http.CrossOriginProtection
	// Logger defaults to none. It never sees arguments, results or ids.
	Logger *slog.Logger
}

func (o *Options) validate() error {
	switch {
	case o.Implementation == nil:
		return errors.New("mcptask: Implementation is required")
	case o.Store == nil:
		return errors.New("mcptask: Store is required")
	case o.MaxBodyBytes < 0, o.MaxListenTasks < 0, o.NotifyInterval < 0, o.KeepAlive < 0, o.WriteTimeout < 0, o.SessionTimeout < 0, o.MaxSessions < 0, o.CacheTTL < 0:
		return errors.New("mcptask: limits and times cannot be negative")
	}
	for i, t := range o.Tools {
		if t.Tool == nil || t.Handle == nil || t.InputSchema == nil {
			return fmt.Errorf("mcptask: Tools[%d]: tool, input schema and handler are required", i)
		}
	}
	o.MaxBodyBytes = cmp.Or(o.MaxBodyBytes, 4<<20)
	o.MaxListenTasks = cmp.Or(o.MaxListenTasks, 256)
	o.NotifyInterval = cmp.Or(o.NotifyInterval, 2*time.Second)
	o.KeepAlive = cmp.Or(o.KeepAlive, 20*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 30*time.Second)
	o.SessionTimeout = cmp.Or(o.SessionTimeout, 2*time.Hour)
	o.CacheScope = cmp.Or(o.CacheScope, "private")
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.CrossOrigin == nil {
		o.CrossOrigin = http.NewCrossOriginProtection()
	}
	return nil
}
