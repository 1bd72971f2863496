package farm

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
)

// goneAfter is how long no worker may be seen that has a render's hardware
// encoder, before the render goes on without: longer than a worker needs to
// start again, or to be listed again after Redis was flushed.
const goneAfter = time.Minute

// gone remembers since when nobody has an encoder that renders wait for. Each
// gateway watches for itself.
type gone struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// for how long the encoder has been gone by now, given whether somebody has it.
func (g *gone) duration(encoder string, offered bool, now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if offered {
		delete(g.since, encoder)
		return 0
	}
	since, ok := g.since[encoder]
	if !ok {
		since = now
		g.since[encoder] = now
	}
	return now.Sub(since)
}

// withoutHardware is the event of a render whose segments wait for hardware that
// no living worker has; nil while there is some, or while nothing is known.
func (f *Farm) withoutHardware(ctx context.Context, rec *render.Record) render.Event {
	if f.worker() || !rec.Plan.OnHardware() {
		return nil
	}
	workers, err := f.stores.Progress.Workers(ctx)
	if err != nil {
		return nil // progress is disposable: nothing is known
	}
	offered := slices.ContainsFunc(workers, func(w render.Worker) bool { return w.Offers(rec.Plan.Needs()) })
	if f.gone.duration(rec.Plan.Needs(), offered, f.now()) < goneAfter {
		return nil
	}
	if !rec.FallsBack() {
		return render.Failed{Failure: *failureOf(render.NoHardware(rec.Plan.VideoCodec), render.StageSegment)}
	}
	return render.Restarted{Generation: rec.Generation, Reason: fmt.Sprintf("No living worker has %s any more.", rec.Plan.Needs())}
}

// hardwareWarnings tells that a render would fail for want of hardware just now.
func (f *Farm) hardwareWarnings(ctx context.Context, plan render.Plan) []string {
	if f.cfg.Hardware != render.HardwareRequire {
		return nil
	}
	workers, err := f.stores.Progress.Workers(ctx)
	if err != nil || render.HardwareEncoder(plan.VideoCodec, workers) != "" {
		return nil // it has one, or nothing is known
	}
	return []string{render.NoHardware(plan.VideoCodec).Message}
}
