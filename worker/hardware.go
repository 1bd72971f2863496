package worker

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/vidforge/vidforge/worker/internal/encoder"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
)

// device is a graphics device with the encoders of it that work.
type device struct {
	encoder.Device
	offers []encoder.Offer
}

func (d device) encoders() []string {
	var names []string
	for _, o := range d.offers {
		names = append(names, o.Encoder)
	}
	return names
}

// proveDevices tries the devices of this machine, and returns those that encode.
func proveDevices(ctx context.Context, cfg Config, tools *ffmpeg.Tools, scratch string) ([]device, error) {
	all, err := encoder.Devices(cfg.Devices, devicesDir)
	if err != nil {
		return nil, fmt.Errorf("setting devices: %w", err)
	}
	prover := encoder.Prover{Tools: tools, Scratch: scratch, Cache: encoder.CacheFile(filepath.Dir(scratch))}
	found, err := prover.Prove(ctx, all)
	if err != nil {
		return nil, err
	}
	var devices []device
	for _, f := range found {
		log := cfg.Logger.With("device", f.Device.String(), "encoder", f.Encoder)
		if f.Err != nil {
			log.InfoContext(ctx, "a hardware encoder is of no use here", "error", f.Err)
			continue
		}
		log.InfoContext(ctx, "a hardware encoder works", "remembered", f.Cached)
		if i := slices.IndexFunc(devices, func(d device) bool { return d.Device == f.Device }); i >= 0 {
			devices[i].offers = append(devices[i].offers, f.Offer)
		} else {
			devices = append(devices, device{f.Device, []encoder.Offer{f.Offer}})
		}
	}
	return devices, nil
}

// distinct leaves each name once.
func distinct(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
