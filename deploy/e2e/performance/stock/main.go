// Command stock is a server of the official MCP Go SDK as anybody would write
// one, without a farm: what the gateway's cost is measured against. It answers
// tasks/get and a tool with values that are always the same.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/pkg/process"
)

func main() {
	ctx, stop := process.Interrupted(context.Background())
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "stock:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to give back
	}
}

type getParams struct {
	mcp.ParamsBase
	TaskID string `json:"taskId"`
}

// task has the fields of a working task of SEP-2663.
type task struct {
	mcp.ResultBase
	ResultType     string    `json:"resultType"`
	TaskID         string    `json:"taskId"`
	Status         string    `json:"status"`
	StatusMessage  string    `json:"statusMessage"`
	CreatedAt      time.Time `json:"createdAt"`
	LastUpdatedAt  time.Time `json:"lastUpdatedAt"`
	TTLMs          int64     `json:"ttlMs"`
	PollIntervalMs int64     `json:"pollIntervalMs"`
}

func run(ctx context.Context) error {
	s := mcp.NewServer(&mcp.Implementation{Name: "stock", Version: "1"}, nil)
	began := time.Now().UTC()
	err := mcp.AddReceivingCustomMethod(s, "tasks/get", func(_ context.Context, _ *mcp.ServerSession, p *getParams) (*task, error) {
		return &task{
			ResultType: "complete", TaskID: p.TaskID, Status: "working", StatusMessage: "Queued.",
			CreatedAt: began, LastUpdatedAt: began, TTLMs: 86_400_000, PollIntervalMs: 2000,
		}, nil
	})
	if err != nil {
		return fmt.Errorf("add tasks/get: %w", err)
	}
	s.AddTool(&mcp.Tool{Name: "vidforge_render_video", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "accepted"}}}, nil
		})
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true})
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	slog.New(slog.NewJSONHandler(os.Stderr, nil)).Info("listens", "address", l.Addr().String())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err = <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
		return errors.Join(srv.Close(), ignoreClosed(<-served))
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
