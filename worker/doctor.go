package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker/internal/encoder"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
	"github.com/vidforge/vidforge/worker/internal/media"
)

// Check is one thing that a worker needs or can use on this machine.
type Check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Needed: without it this machine cannot render.
	Needed bool `json:"needed"`
	// Detail is what was found, Fix what to do when OK is false.
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`
}

const (
	ffmpegPackages = "install ffmpeg (Debian: apt-get install ffmpeg)"
	fontPackages   = "install fonts (Debian: apt-get install fonts-dejavu-core fonts-droid-fallback)"
	// leastScratch is where doctor warns: room for a source and an encode of
	// common size.
	leastScratch = 2 << 30
)

// scripts are texts of which a farm's fonts should have every glyph.
func scripts() []struct{ name, text string } {
	return []struct{ name, text string }{
		{"latin", "Vidforge"}, {"greek and cyrillic", "Ωж"}, {"arabic and hebrew", "سلام שלום"}, {"chinese", "視頻"},
	}
}

// Doctor looks at what this machine has for rendering, by trying it: a listed
// encoder proves nothing. scratchDir and devices are as in Config. The error is
// only ctx's.
func Doctor(ctx context.Context, scratchDir, devices string) ([]Check, error) {
	tools, err := ffmpeg.Find(ctx)
	if err != nil {
		return []Check{{Name: "ffmpeg", Needed: true, Detail: err.Error(), Fix: ffmpegPackages}}, ctx.Err() //nolint:wrapcheck // ctx's own
	}
	checks := []Check{{Name: "ffmpeg", Needed: true, OK: true, Detail: "version " + tools.Version + " at " + tools.FFmpeg}}
	dir, err := os.MkdirTemp(scratchDir, "vidforge-doctor-*")
	if err != nil {
		return append(checks, Check{Name: "scratch", Needed: true, Detail: err.Error(), Fix: "make the scratch directory writable"}), nil //nolint:nilerr // it is the finding
	}
	for _, name := range encoder.Pictures() {
		checks = append(checks, tryEncoder(ctx, tools, dir, name))
	}
	hardware, err := tryDevices(ctx, tools, dir, devices)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	checks = append(checks, hardware...)
	for _, name := range encoder.Sounds() {
		c := Check{Name: "encoder " + name, Needed: needed(name), OK: tools.HasEncoder(name), Detail: "for sound"}
		if !c.OK {
			c.Fix = ffmpegPackages + " built with it"
		}
		checks = append(checks, c)
	}
	for _, f := range filters() {
		c := Check{Name: "filter " + f.name, Needed: f.needed, OK: tools.HasFilter(f.name), Detail: "for " + f.use}
		if !c.OK {
			c.Fix = ffmpegPackages + " built with it"
		}
		checks = append(checks, c)
	}
	for _, s := range scripts() {
		checks = append(checks, tryFonts(ctx, tools, dir, s.name, s.text))
	}
	checks = append(checks, space(cmp.Or(scratchDir, os.TempDir())))
	return checks, errors.Join(ctx.Err(), os.RemoveAll(dir))
}

// filter is a filter of ffmpeg that some renders need.
type filter struct {
	name   string
	needed bool
	use    string
}

func filters() []filter {
	return []filter{
		{"ass", true, "text watermarks"}, {"overlay", true, "watermarks"},
		{"zscale", false, "HDR sources"}, {"tonemap", false, "HDR sources"}, {"bwdif", false, "interlaced sources"},
	}
}

// lacking names what this machine's ffmpeg was built without and some renders
// need.
func lacking(tools *ffmpeg.Tools) []string {
	_, names := encoder.Found(tools)
	for _, f := range filters() {
		if !tools.HasFilter(f.name) {
			names = append(names, f.name)
		}
	}
	return names
}

// needed reports whether a machine without the encoder cannot render mp4, the
// format that every farm must have.
func needed(name string) bool { return name == "libx264" || name == "aac" }

func tryEncoder(ctx context.Context, tools *ffmpeg.Tools, dir, name string) Check {
	c := Check{Name: "encoder " + name, Needed: needed(name), Detail: "encodes 640×360 and decodes it back"}
	if err := encoder.Try(ctx, tools, dir, name); err != nil {
		c.Detail, c.Fix = err.Error(), ffmpegPackages+" with "+name
		return c
	}
	c.OK = true
	return c
}

// tryDevices tries what each device can do, whatever a worker remembers of it.
// Nothing here is needed: without it, renders are encoded on processors.
func tryDevices(ctx context.Context, tools *ffmpeg.Tools, dir, setting string) ([]Check, error) {
	const name = "hardware encoders"
	devices, err := encoder.Devices(setting, devicesDir)
	if err != nil {
		return []Check{{Name: name, Detail: err.Error(), Fix: "correct the setting devices"}}, nil //nolint:nilerr // it is the finding
	}
	if len(devices) == 0 {
		return []Check{{Name: name, OK: true, Detail: "there is no graphics device; renders are encoded on processors"}}, nil
	}
	found, err := encoder.Prover{Tools: tools, Scratch: dir}.Prove(ctx, devices)
	if err != nil {
		return nil, err
	}
	var checks []Check
	for _, f := range found {
		c := Check{Name: "encoder " + f.Encoder, OK: f.Err == nil, Detail: f.Device.String() + " encodes 640×360, and it decodes to the same"}
		if f.Err != nil {
			c.Detail, c.Fix = f.Device.String()+": "+f.Err.Error(), "see docs/hardware.md, or leave the device out by the setting devices"
		}
		checks = append(checks, c)
	}
	if len(checks) == 0 {
		checks = append(checks, Check{Name: name, Detail: fmt.Sprintf("ffmpeg %s was built without an encoder for %v", tools.Version, devices), Fix: "install an ffmpeg with one"})
	}
	return checks, nil
}

func tryFonts(ctx context.Context, tools *ffmpeg.Tools, dir, name, text string) Check {
	c := Check{Name: "fonts " + name, Needed: name == "latin", Detail: "watermarks in this script"}
	w := &render.Watermark{Mode: render.WatermarkText, Text: text, Opacity: 1, Position: render.PositionCenter}
	if _, err := media.DrawOverlay(ctx, tools, dir, w, "", 640, 360); err != nil {
		c.Detail, c.Fix = render.AsError(err).Message, fontPackages
		return c
	}
	c.OK = true
	return c
}

func space(dir string) Check {
	c := Check{Name: "scratch space"}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		c.Detail, c.Fix = err.Error(), "check the scratch directory"
		return c
	}
	free := fs.Bavail * uint64(fs.Bsize) //nolint:gosec // a block's size
	c.OK = free >= leastScratch
	c.Detail = fmt.Sprintf("%.1f GiB free in %s", float64(free)/(1<<30), dir)
	if !c.OK {
		c.Fix = "free some space: a job needs room for its source and its result"
	}
	return c
}
