package wire

import (
	"errors"

	"github.com/vidforge/vidforge/pkg/render"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

// FromUsage maps what a tenant has used of a quota.
func FromUsage(u render.Usage) *vidforgev1.Usage {
	return &vidforgev1.Usage{
		Tenant: string(u.Tenant), Used: u.Used, ReliefTime: fromTime(u.Relief),
		Holds: each(u.Holds, func(h render.Hold) *vidforgev1.UsageHold {
			return &vidforgev1.UsageHold{Id: h.ID, Amount: h.Amount, HoldTime: fromTime(h.At)}
		}),
	}
}

// ToUsage is the reverse of FromUsage.
func ToUsage(p *vidforgev1.Usage) (render.Usage, error) {
	if p.GetTenant() == "" {
		return render.Usage{}, errors.New("wire: usage without tenant")
	}
	d := &decoder{}
	u := render.Usage{
		Tenant: render.Tenant(p.GetTenant()), Used: p.GetUsed(), Relief: d.time("relief_time", p.GetReliefTime()),
		Holds: each(p.GetHolds(), func(h *vidforgev1.UsageHold) render.Hold {
			return render.Hold{ID: h.GetId(), Amount: h.GetAmount(), At: d.time("hold_time", h.GetHoldTime())}
		}),
	}
	return u, d.err
}
