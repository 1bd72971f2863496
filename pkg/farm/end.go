package farm

import (
	"context"
	"errors"
	"time"

	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

// maxEndings is how many ended renders may wait to be settled. Those beyond it
// are left to reconciliation.
const maxEndings = 1024

// releaseTimeout bounds what a process that ends does for those that stay.
const releaseTimeout = 2 * time.Second

// endings are renders that somebody ended just now.
type endings chan ledger.Sign

// add does not wait: it is called by the feed of watchers.
func (e endings) add(s ledger.Sign) {
	select {
	case e <- s:
	default:
	}
}

// settleEnds settles renders as they end, until ctx ends: a worker that ended
// one may not free its slot, and its tenant should not wait for reconciliation.
//
// Every gateway sees every end; one of them acts, as long as it keeps the lease.
// The ends that nobody acts on after it died, until the lease runs out, are
// reconciliation's. As there, correctness does not depend on the lease.
func (f *Farm) settleEnds(ctx context.Context, ends endings) {
	var lease ledger.Lease
	defer func() {
		if lease == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		if err := lease.Release(ctx); err != nil {
			f.log.WarnContext(ctx, "release the settling of ends", "error", err)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case sign := <-ends:
			taken, err := f.settleSigned(ctx, sign)
			if taken != nil {
				lease = taken
			}
			if err != nil && ctx.Err() == nil {
				f.log.WarnContext(ctx, "settle an end, left to reconciliation", "render_id", sign.ID, "error", err)
			}
		}
	}
}

// settleSigned settles one render if this process is the one that does, and
// returns the lease that makes it so. The sign may be false: the record counts.
func (f *Farm) settleSigned(ctx context.Context, sign ledger.Sign) (ledger.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	lease, err := f.stores.Ledger.LeaseName(ctx, "settle", f.cfg.Holder) // anew: a holder may take its own again
	if errors.Is(err, ledger.ErrLeased) {
		return nil, nil //nolint:nilnil // another does
	}
	if err != nil {
		return nil, unavailable("lease the settling of ends", err)
	}
	entry, err := f.entry(ctx, sign.Tenant, sign.ID)
	if render.CodeOf(err) == render.CodeRenderNotFound || err == nil && !entry.Record.State.Terminal() {
		return lease, nil
	}
	if err != nil {
		return lease, err
	}
	return lease, f.settle(ctx, entry.Record)
}
