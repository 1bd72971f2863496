// Package client talks to a vidforge server as its users do: to the MCP
// endpoint as an agent that declares the tasks extension and elicitation forms
// (MCP 2026-07-28), and to the HTTP API for uploads and downloads.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
)

// Tools of the contract that the client calls.
const (
	toolRender = "vidforge_render_video"
	toolCancel = "vidforge_cancel_render"
)

// requestTimeout bounds one request that carries no media.
const requestTimeout = 30 * time.Second

// Options of a Client.
type Options struct {
	// Server is the URL of the server without a path, such as
	// http://127.0.0.1:8080. A path of /mcp is accepted and cut off.
	Server string
	// APIKey is sent to the server and to nobody else; "" sends none.
	APIKey string
	// Version of this client, sent to the server.
	Version string
	// Transport defaults to one of its own.
	Transport http.RoundTripper
}

// Client is a connection to a server. It connects when it is first needed and
// again after a failure. Make it with New; its methods may be called at once.
type Client struct {
	base *url.URL
	http *http.Client
	mcp  *mcp.Client
	impl *mcp.Implementation
	caps *mcp.ClientCapabilities

	mu      sync.Mutex
	session *mcp.ClientSession
}

// New makes a client. It sends nothing yet.
func New(o Options) (*Client, error) {
	base, err := url.Parse(o.Server)
	if err != nil {
		return nil, fmt.Errorf("server URL: %w", err)
	}
	if base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("server URL %q is not of the form http://host:port", o.Server)
	}
	base = &url.URL{Scheme: base.Scheme, Host: base.Host}
	if o.Transport == nil {
		o.Transport = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: 2 * time.Minute, // an upload is probed before it is answered
			IdleConnTimeout:       90 * time.Second,
			ForceAttemptHTTP2:     true,
		}
	}
	c := &Client{
		base: base,
		impl: &mcp.Implementation{Name: "vidforge", Title: "vidforge command line", Version: o.Version},
		caps: &mcp.ClientCapabilities{Elicitation: &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}}},
	}
	c.http = &http.Client{Transport: credential{server: base, key: o.APIKey, next: o.Transport}}

	c.caps.AddExtension(mcptask.ExtensionID, nil)
	c.mcp = mcp.NewClient(c.impl, &mcp.ClientOptions{Capabilities: c.caps})
	err = errors.Join(
		mcp.AddSendingCustomMethod[*taskParams, *Task](c.mcp, "tasks/get"),
		mcp.AddSendingCustomMethod[*updateParams, *ack](c.mcp, "tasks/update"),
		mcp.AddSendingCustomMethod[*taskParams, *ack](c.mcp, "tasks/cancel"),
	)
	if err != nil {
		return nil, fmt.Errorf("register the methods of the tasks extension: %w", err)
	}
	return c, nil
}

// Server is the URL of the server.
func (c *Client) Server() string { return c.base.String() }

// Close ends the MCP session, if there is one, and idle connections.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.http.CloseIdleConnections()
	if c.session == nil {
		return nil
	}
	err := c.session.Close()
	c.session = nil
	if err != nil {
		return fmt.Errorf("close the MCP session: %w", err)
	}
	return nil
}

// Connect makes sure that the server speaks MCP 2026-07-28 with tasks.
func (c *Client) Connect(ctx context.Context) (*mcp.Implementation, error) {
	s, err := c.connected(ctx)
	if err != nil {
		return nil, err
	}
	return s.InitializeResult().ServerInfo, nil
}

func (c *Client) connected(ctx context.Context) (*mcp.ClientSession, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != nil {
		return c.session, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s, err := c.mcp.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint:   c.base.JoinPath("mcp").String(),
		HTTPClient: &http.Client{Transport: taskWire{next: c.http.Transport}},
	}, nil)
	if err != nil {
		return nil, classify("connect to "+c.base.String(), c.timedOut(ctx, err))
	}
	res := s.InitializeResult()
	tasks := false
	if res.Capabilities != nil {
		_, tasks = res.Capabilities.Extensions[mcptask.ExtensionID]
	}
	if res.ProtocolVersion < mcptask.Version20260728 || !tasks {
		return nil, errors.Join(
			fmt.Errorf("%s speaks MCP %s without %s: it is no vidforge server", c.base, res.ProtocolVersion, mcptask.ExtensionID),
			s.Close(),
		)
	}
	c.session = s
	return s, nil
}

// timedOut names the cause of an error that our own deadline made: a server
// that accepts connections and says nothing.
func (c *Client) timedOut(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.Is(err, ErrUnreachable) {
		return fmt.Errorf("%w: no answer in %s: %w", ErrUnreachable, requestTimeout, err)
	}
	return err
}

// call runs one request of a session and forgets the session when it broke.
func (c *Client) call(ctx context.Context, doing string, send func(context.Context, *mcp.ClientSession) error) error {
	s, err := c.connected(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err = send(limited, s)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, ctx.Err())
	}
	if _, answered := errors.AsType[*jsonrpc.Error](err); !answered {
		c.drop(s)
	}
	return classify(doing, c.timedOut(limited, err))
}

// drop forgets a session that may be broken; the next request opens another.
// Sessions of MCP 2026-07-28 hold no state.
func (c *Client) drop(s *mcp.ClientSession) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == s {
		c.session = nil
		_ = s.Close() // it failed before
	}
}

// tool calls a tool and decodes its structured content into out. A tool error
// is returned as the *render.Error that it holds.
func (c *Client) tool(ctx context.Context, name string, args, out any) error {
	return c.call(ctx, "call "+name, func(ctx context.Context, s *mcp.ClientSession) error {
		res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: args})
		if err != nil {
			return err //nolint:wrapcheck // call does
		}
		return decodeResult(res, out)
	})
}

// decodeResult decodes a call's structured content into out.
func decodeResult(res *mcp.CallToolResult, out any) error {
	b, err := json.Marshal(res.StructuredContent)
	if err != nil {
		return fmt.Errorf("read structured content: %w", err)
	}
	if res.IsError {
		if e := decodeEnvelope(b); e != nil {
			return e
		}
		for _, content := range res.Content {
			if text, ok := content.(*mcp.TextContent); ok {
				return render.Errorf(render.CodeInternalError, render.BlameFarm, "%s", text.Text)
			}
		}
		return render.Errorf(render.CodeInternalError, render.BlameFarm, "The tool failed without saying why.")
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("read structured content: %w", err)
	}
	return nil
}

// CancelRender cancels a render by the tool and returns the state that the
// server answered.
func (c *Client) CancelRender(ctx context.Context, id render.ID) (string, error) {
	var out struct {
		State string `json:"state"`
	}
	err := c.tool(ctx, toolCancel, map[string]any{"render_id": id}, &out)
	return out.State, err
}
