package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/encoder"
	"github.com/vidforge/vidforge/worker/internal/stage"
)

// device is a graphics device with the encoders of it that work. It has a slot
// of its own: drivers bound how many encode on one at once, and one keeps it
// busy.
type device struct {
	encoder.Device
	// proven are the encoders that worked at start, offers those that work now,
	// under the worker's lock.
	proven, offers []encoder.Offer
}

// proveDevices tries the devices of this machine, and returns those that encode.
func proveDevices(ctx context.Context, cfg Config, prover encoder.Prover) ([]*device, error) {
	all, err := encoder.Devices(cfg.Devices, devicesDir)
	if err != nil {
		return nil, fmt.Errorf("setting devices: %w", err)
	}
	found, err := prover.Prove(ctx, all)
	if err != nil {
		return nil, err
	}
	var devices []*device
	for _, f := range found {
		log := cfg.Logger.With("device", f.Device.String(), "encoder", f.Encoder)
		if f.Err != nil {
			log.InfoContext(ctx, "a hardware encoder is of no use here", "error", f.Err)
			continue
		}
		log.InfoContext(ctx, "a hardware encoder works", "remembered", f.Cached)
		i := slices.IndexFunc(devices, func(d *device) bool { return d.Device == f.Device })
		if i < 0 {
			i = len(devices)
			devices = append(devices, &device{Device: f.Device})
		}
		devices[i].proven = append(devices[i].proven, f.Offer)
		devices[i].offers = devices[i].proven
	}
	return devices, nil
}

// abilities are what the worker takes and has now, for the registry.
func (w *worker) abilities() (classes []render.Class, encoders []string, devices int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	classes, encoders = []render.Class{render.ClassPreview, render.ClassCPU}, slices.Clone(w.encoders)
	for _, d := range w.devices {
		for _, o := range d.offers {
			encoders = append(encoders, o.Encoder)
		}
		if len(d.offers) > 0 {
			devices++
		}
	}
	if devices > 0 {
		classes = append(classes, render.ClassGPU)
	}
	slices.Sort(encoders)
	return classes, slices.Compact(encoders), devices
}

// runnerFor is the runner of a slot: a device's knows its encoders.
func (w *worker) runnerFor(d *device) *stage.Runner {
	if d == nil {
		return w.runner
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r := *w.runner
	r.Offers = d.offers
	return &r
}

// deviceFailed reports whether a work on a device ended in a way that its
// device may be to blame for.
func deviceFailed(err error) bool {
	e, ok := errors.AsType[*render.Error](err)
	return ok && e.Blame == render.BlameJob
}

// The time between two tries of a device that failed.
const (
	mendFirst = 2 * time.Second
	mendMost  = 5 * time.Minute
)

// mend tries a device that failed at work until one of its encoders works. It
// is not offered meanwhile.
func (w *worker) mend(ctx context.Context, d *device) {
	log := w.log.With("device", d.String())
	w.offer(ctx, d, nil)
	for n := 0; ctx.Err() == nil; n++ {
		var works []encoder.Offer
		var errs []error
		for _, o := range d.proven {
			if err := w.prover.Again(ctx, o); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", o.Encoder, err))
			} else {
				works = append(works, o)
			}
		}
		if ctx.Err() != nil {
			return
		}
		w.offer(ctx, d, works)
		if len(works) > 0 {
			log.InfoContext(ctx, "a device that failed works when it is tried", "error", errors.Join(errs...))
			return
		}
		log.WarnContext(ctx, "a device that failed is set aside", "error", errors.Join(errs...))
		pause(ctx, min(mendMost, mendFirst<<min(n, 10)))
	}
}

// offer says from now on that the device has these encoders.
func (w *worker) offer(ctx context.Context, d *device, offers []encoder.Offer) {
	w.mu.Lock()
	d.offers = offers
	w.mu.Unlock()
	w.register(ctx)
}
