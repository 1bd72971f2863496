package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
)

// Task is a task of SEP-2663 as the server shows it.
type Task struct {
	mcp.ResultBase
	TaskID         string                  `json:"taskId"`
	Status         mcptask.Status          `json:"status"`
	StatusMessage  string                  `json:"statusMessage"`
	PollIntervalMS int64                   `json:"pollIntervalMs"`
	InputRequests  map[string]InputRequest `json:"inputRequests"`
	Result         *mcp.CallToolResult     `json:"result"`
	Error          *jsonrpc.Error          `json:"error"`
}

// InputRequest is a question of the server that a task waits for.
type InputRequest struct {
	Method string           `json:"method"`
	Params mcp.ElicitParams `json:"params"`
}

type taskParams struct {
	mcp.ParamsBase
	TaskID string `json:"taskId"`
}

type updateParams struct {
	mcp.ParamsBase
	TaskID         string                       `json:"taskId"`
	InputResponses map[string]*mcp.ElicitResult `json:"inputResponses"`
}

// ack answers tasks/update and tasks/cancel.
type ack struct{ mcp.ResultBase }

// Request is what the render tool takes; see the contract's input table.
type Request struct {
	SourceAssetURI  string     `json:"source_asset_uri"`
	OutputFormat    string     `json:"output_format"`
	Resolution      string     `json:"resolution"`
	Quality         string     `json:"quality,omitempty"`
	Watermark       *Watermark `json:"watermark,omitempty"`
	RequireApproval *bool      `json:"require_watermark_approval,omitempty"`
	IdempotencyKey  string     `json:"idempotency_key,omitempty"`
}

// Watermark of a Request.
type Watermark struct {
	Text          string   `json:"text,omitempty"`
	ImageAssetURI string   `json:"image_asset_uri,omitempty"`
	Position      string   `json:"position,omitempty"`
	Opacity       *float64 `json:"opacity,omitempty"`
}

// Video is the success of a render.
type Video struct {
	RenderID        string  `json:"render_id"`
	VideoURI        string  `json:"video_uri"`
	DownloadURL     string  `json:"download_url"`
	DurationSeconds float64 `json:"duration_seconds"`
	SizeBytes       int64   `json:"size_bytes"`
	SHA256          string  `json:"sha256"`
	Width           int     `json:"width"`
	Height          int     `json:"height"`
	FrameCount      int64   `json:"frame_count"`
	VideoCodec      string  `json:"video_codec"`
	AudioCodec      string  `json:"audio_codec"`
	Encoder         string  `json:"encoder"`
	// All is the whole structured content as it arrived.
	All map[string]any `json:"-"`
}

// Render calls the render tool and returns the task that it answers with.
func (c *Client) Render(ctx context.Context, r Request) (*Task, error) {
	var t Task
	if err := c.tool(ctx, toolRender, r, &t); err != nil {
		return nil, err
	}
	if _, ok := render.ParseID(t.TaskID); !ok {
		return nil, fmt.Errorf("call %s: the server answered without a task", toolRender)
	}
	return &t, nil
}

// GetTask returns the task as it is now.
func (c *Client) GetTask(ctx context.Context, id string) (*Task, error) {
	var t *Task
	err := c.call(ctx, "get the task", func(ctx context.Context, s *mcp.ClientSession) (err error) {
		t, err = mcp.CallCustomMethod[*taskParams, *Task](ctx, s, "tasks/get", &taskParams{TaskID: id})
		return err
	})
	return t, err
}

// Answer answers one of the task's input requests.
func (c *Client) Answer(ctx context.Context, id, key string, answer *mcp.ElicitResult) error {
	return c.call(ctx, "answer the server's question", func(ctx context.Context, s *mcp.ClientSession) error {
		_, err := mcp.CallCustomMethod[*updateParams, *ack](ctx, s, "tasks/update",
			&updateParams{TaskID: id, InputResponses: map[string]*mcp.ElicitResult{key: answer}})
		return err
	})
}

// CancelTask asks the server to cancel the task.
func (c *Client) CancelTask(ctx context.Context, id string) error {
	return c.call(ctx, "cancel the task", func(ctx context.Context, s *mcp.ClientSession) error {
		_, err := mcp.CallCustomMethod[*taskParams, *ack](ctx, s, "tasks/cancel", &taskParams{TaskID: id})
		return err
	})
}

// ReadResource returns the bytes of a resource.
func (c *Client) ReadResource(ctx context.Context, uri string) ([]byte, error) {
	var blob []byte
	err := c.call(ctx, "read "+uri, func(ctx context.Context, s *mcp.ClientSession) error {
		res, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			return err //nolint:wrapcheck // call does
		}
		if len(res.Contents) == 0 || len(res.Contents[0].Blob) == 0 {
			return errors.New("the server sent no bytes")
		}
		blob = res.Contents[0].Blob
		return nil
	})
	return blob, err
}

// outcome returns the video of a finished task or the error that it ended with.
func (t *Task) outcome() (*Video, error) {
	switch t.Status {
	case mcptask.StatusCompleted:
		if t.Result == nil {
			return nil, errors.New("the server sent a completed task without a result")
		}
		var v Video
		if err := decodeResult(t.Result, &v); err != nil {
			return nil, err
		}
		if err := decodeResult(t.Result, &v.All); err != nil {
			return nil, err
		}
		return &v, nil
	case mcptask.StatusCancelled:
		return nil, render.Errorf(render.CodeRenderCancelled, render.BlameCaller, "The render was cancelled.")
	case mcptask.StatusFailed:
		if t.Error == nil {
			return nil, render.Errorf(render.CodeInternalError, render.BlameFarm, "The render failed: %s", t.StatusMessage)
		}
		if e := decodeEnvelope(t.Error.Data); e != nil {
			return nil, e
		}
		return nil, render.Errorf(render.CodeInternalError, render.BlameFarm, "%s", t.Error.Message)
	default:
		return nil, fmt.Errorf("the task is not finished: %s", t.Status)
	}
}

// pollAfter is how long to wait before the next look at the task.
func (t *Task) pollAfter() time.Duration { return pollWait(t.PollIntervalMS) }
