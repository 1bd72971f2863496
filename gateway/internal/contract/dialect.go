package contract

import (
	"context"
	"encoding/json"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
)

// Dialect is a contract over a Service: the tools and resources that clients
// of one endpoint see, under their own names. Inside, everything has the names
// of this package; a dialect translates at the edge, both ways. All members
// are required but those that say otherwise.
type Dialect struct {
	// Name and Title of the server.
	Name, Title string
	// Path of the endpoint below the public URL.
	Path string
	// Namespace begins the names of members of _meta, such as "com.vidforge".
	Namespace string
	// Instructions of the server.
	Instructions string
	// Tools in the order of tools/list. One of them renders.
	Tools []Tool
	// Resources that are always there, and Templates of the others.
	Resources []StaticResource
	Templates []*mcp.ResourceTemplate
	// Parse takes the URI of a resource apart. ok is false for everything that
	// cannot be one.
	Parse func(uri string) (r Resource, ok bool)
	// Complete answers completions of this package's templates.
	Complete bool
	// IdempotencyWindow is how long a key stands for its render.
	IdempotencyWindow time.Duration

	// Text translates names inside prose and JSON that hold nothing of callers.
	Text func(string) string
	// Next translates a next call; nil if the dialect has no such call.
	Next func(*NextStep) *NextStep
	// Error translates an error, its repair included.
	Error func(Envelope) Envelope
}

// Tool is a tool of a dialect.
type Tool struct {
	*mcp.Tool
	// As is the tool of this package that does it.
	As string
	// Arguments translates what a caller sent. With an error, the arguments
	// are what remains to be sent when the fault is put right by leaving it out.
	Arguments func(json.RawMessage) (json.RawMessage, error)
	// Result translates what the tool of this package answered; it is not
	// called for errors.
	Result func(c mcptask.Caller, res *mcp.CallToolResult) (*mcp.CallToolResult, error)
}

// StaticResource is a resource that is always there.
type StaticResource struct {
	*mcp.Resource
	// Read makes its text. c is what the server does for the caller.
	Read func(c Capabilities) (string, error)
}

// native is the contract of this package.
func native() *Dialect {
	d := &Dialect{
		Name: "vidforge", Title: "vidforge video render farm", Path: "/mcp", Namespace: "com.vidforge", Instructions: instructions,
		Resources: staticResources(), Templates: templates(), Parse: parseResource, Complete: true, IdempotencyWindow: render.IdempotencyWindow,
		Text:  func(s string) string { return s },
		Next:  func(n *NextStep) *NextStep { return n },
		Error: func(e Envelope) Envelope { return e },
	}
	for _, t := range toolSpecs() {
		d.Tools = append(d.Tools, Tool{
			Tool: t.tool(), As: t.name,
			Arguments: func(raw json.RawMessage) (json.RawMessage, error) { return raw, nil },
			Result:    func(_ mcptask.Caller, res *mcp.CallToolResult) (*mcp.CallToolResult, error) { return res, nil },
		})
	}
	return d
}

// tool finds a tool by the name that clients call it by.
func (d *Dialect) tool(name string) (Tool, bool) {
	for _, t := range d.Tools {
		if t.Name == name {
			return t, true
		}
	}
	return Tool{}, false
}

// as finds a tool by the tool of this package that does it.
func (d *Dialect) as(tool string) (Tool, bool) {
	for _, t := range d.Tools {
		if t.As == tool {
			return t, true
		}
	}
	return Tool{}, false
}

// names lists the tools in their order.
func (d *Dialect) names() []string {
	var out []string
	for _, t := range d.Tools {
		out = append(out, t.Name)
	}
	return out
}

// static finds a resource that is always there.
func (d *Dialect) static(uri string) (StaticResource, bool) {
	for _, r := range d.Resources {
		if r.URI == uri {
			return r, true
		}
	}
	return StaticResource{}, false
}

// rendered translates the result of a finished render.
func (s *Service) rendered(ctx context.Context, c mcptask.Caller, rec *render.Record) (*mcp.CallToolResult, error) {
	res, err := s.success(ctx, rec)
	if err != nil {
		return nil, err
	}
	t, _ := s.dialect.as(ToolRender)
	return t.Result(c, res)
}
