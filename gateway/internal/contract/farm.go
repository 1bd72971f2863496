// Package contract is what an MCP client sees of the farm: seven tools, the
// resources, the tasks, and the errors with their repairs. It maps between the
// wire and the farm's facade and keeps no state of its own.
package contract

import (
	"context"

	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

// Farm is what the contract needs of the farm's facade. Errors that a client
// may see are *render.Error.
type Farm interface {
	Submit(ctx context.Context, tenant render.Tenant, s farm.Submission) (v *farm.View, existing bool, err error)
	Validate(ctx context.Context, tenant render.Tenant, req render.Request) (*farm.Validation, error)
	Get(ctx context.Context, tenant render.Tenant, id render.ID) (*farm.View, error)
	Watch(ctx context.Context, tenant render.Tenant, id render.ID, fn func(*farm.View) error) error
	Decide(ctx context.Context, tenant render.Tenant, id render.ID, d render.Decision) (*farm.View, error)
	MintInput(ctx context.Context, tenant render.Tenant, id render.ID, in render.InputRequest) (*farm.View, error)
	AnswerInput(ctx context.Context, tenant render.Tenant, id render.ID, key, action string) (*farm.View, error)
	Cancel(ctx context.Context, tenant render.Tenant, id render.ID, by string) (*farm.View, error)
	Video(ctx context.Context, tenant render.Tenant, id render.ID) (*farm.Content, error)
	Preview(ctx context.Context, tenant render.Tenant, id render.ID) (*farm.Content, error)
	Log(ctx context.Context, tenant render.Tenant, id render.ID) (string, error)
	Asset(ctx context.Context, tenant render.Tenant, id render.AssetID) (*render.Asset, error)
	Assets(ctx context.Context, tenant render.Tenant, cursor string, limit int) (page []*render.Asset, next string, err error)
}
