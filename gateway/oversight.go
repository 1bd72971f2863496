package gateway

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

// overseen is the farm as every way in sees it: decisions are held to the
// tenant's policy, and what is decided, cancelled or handed out is in the log.
type overseen struct {
	facade

	human func(render.Tenant) bool
	log   *slog.Logger
}

// Actions of audit lines.
const (
	actionDecide  = "decide"
	actionCancel  = "cancel"
	actionVideo   = "download_video"
	actionPreview = "download_preview"
	actionPresign = "presign_video"
)

// audit writes a line. All lines have the same keys; none holds a secret, or a
// text that a client chose but the subject of its credential.
func (o overseen) audit(ctx context.Context, action string, tenant render.Tenant, id render.ID, detail string, channel render.Channel, err error) {
	req, ok := auth.RequestFrom(ctx)
	if !ok {
		if c, found := mcptask.CallerFrom(ctx); found {
			req, _ = c.Principal.(auth.Request)
		}
	}
	result := "ok"
	if err != nil {
		result = string(render.CodeOf(err))
	}
	o.log.InfoContext(ctx, "audit", "action", action, "result", result, "detail", detail, "channel", string(channel),
		telemetry.KeyRenderID, string(id), telemetry.KeyTenant, tenant.Key(), "subject", req.Subject, "issuer", req.Issuer, "request_id", req.ID)
}

// Decide implements the facade. Under the policy human only the page decides.
func (o overseen) Decide(ctx context.Context, tenant render.Tenant, id render.ID, d render.Decision) (v *farm.View, err error) {
	if d.Channel != render.ChannelPage && o.human(tenant) {
		if v, err = o.Get(ctx, tenant, id); err == nil {
			v, err = nil, humanDecides()
		}
	} else {
		v, err = o.facade.Decide(ctx, tenant, id, d)
	}
	detail := "rejected"
	if d.Approved {
		detail = "approved"
	}
	o.audit(ctx, actionDecide, tenant, id, detail, d.Channel, err)
	return v, err
}

func humanDecides() *render.Error {
	return render.Errorf(render.CodeApprovalRequiresHuman, render.BlameCaller, "Only a person decides on this render, signed in on the approval page.")
}

// Cancel implements the facade.
func (o overseen) Cancel(ctx context.Context, tenant render.Tenant, id render.ID, by string) (*farm.View, error) {
	v, err := o.facade.Cancel(ctx, tenant, id, by)
	o.audit(ctx, actionCancel, tenant, id, "", "", err)
	return v, err
}

// Preview implements the facade. Whoever asks for it hands it out, perhaps
// scaled before.
func (o overseen) Preview(ctx context.Context, tenant render.Tenant, id render.ID) (*farm.Content, error) {
	c, err := o.facade.Preview(ctx, tenant, id)
	o.audit(ctx, actionPreview, tenant, id, "", "", err)
	return c, err
}

// Video implements the facade. It is in the log once somebody reads it, or gets
// a URL to read it at.
func (o overseen) Video(ctx context.Context, tenant render.Tenant, id render.ID) (*farm.Content, error) {
	c, err := o.facade.Video(ctx, tenant, id)
	if err != nil {
		o.audit(ctx, actionVideo, tenant, id, "", "", err)
		return nil, err
	}
	out, once := *c, sync.Once{}
	out.Open = func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
		body, err := c.Open(ctx, offset, length)
		once.Do(func() { o.audit(ctx, actionVideo, tenant, id, "", "", err) })
		return body, err
	}
	if c.Presign != nil {
		out.Presign = func(ctx context.Context, ttl time.Duration) (string, time.Time, error) {
			link, until, err := c.Presign(ctx, ttl)
			o.audit(ctx, actionPresign, tenant, id, "", "", err)
			return link, until, err
		}
	}
	return &out, nil
}
