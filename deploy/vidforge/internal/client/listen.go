package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/pkg/mcptask"
)

// listenPause is the wait before a listen stream that ended is opened again.
const listenPause = 5 * time.Second

// errNoListen says that the server will not open a stream.
var errNoListen = errors.New("the server opens no stream")

// changes sends a hint whenever the server says that the task changed, until
// ctx ends; then it closes the channel. A hint saves waiting for the next poll
// and nothing more: they may all be missing.
func (c *Client) changes(ctx context.Context, id string) <-chan struct{} {
	hints := make(chan struct{}, 1)
	go func() {
		defer close(hints)
		for ctx.Err() == nil {
			if err := c.listen(ctx, id, hints); errors.Is(err, errNoListen) {
				<-ctx.Done()
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(listenPause):
			}
		}
	}()
	return hints
}

// listen reads one subscriptions/listen stream to its end. It speaks JSON-RPC
// itself, as the SDK's client knows no taskIds and drops the notifications.
func (c *Client) listen(ctx context.Context, id string, hints chan<- struct{}) error {
	body, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": "listen", "method": "subscriptions/listen",
		"params": map[string]any{
			"notifications": map[string]any{"taskIds": []string{id}},
			"_meta": map[string]any{
				mcp.MetaKeyProtocolVersion:    mcptask.Version20260728,
				mcp.MetaKeyClientInfo:         c.impl,
				mcp.MetaKeyClientCapabilities: map[string]any{"extensions": c.caps.Extensions},
			},
		},
	})
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base.JoinPath("mcp").String(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Protocol-Version", mcptask.Version20260728)
	req.Header.Set("Mcp-Method", "subscriptions/listen")
	resp, err := c.http.Do(req)
	if err != nil {
		return unwrapURL(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // only read from
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != "text/event-stream" || resp.StatusCode != http.StatusOK {
		if resp.StatusCode >= http.StatusInternalServerError {
			return fmt.Errorf("listen: HTTP %d", resp.StatusCode)
		}
		return errNoListen
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, mostAnswer)
	for lines.Scan() {
		if bytes.HasPrefix(lines.Bytes(), []byte("data:")) && bytes.Contains(lines.Bytes(), []byte("notifications/tasks")) {
			select {
			case hints <- struct{}{}:
			default: // one is waiting already
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return nil
}
