package worker

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/standin"
	"github.com/vidforge/vidforge/worker/internal/encoder"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
	"github.com/vidforge/vidforge/worker/internal/stage"
)

// standIn puts an ffmpeg with devices in front of the installed one.
func standIn(t *testing.T) *standin.FFmpeg {
	t.Helper()
	f := standin.New(t)
	t.Setenv("PATH", strings.TrimPrefix(f.Env()[0], "PATH="))
	return f
}

// TestDevices: each device that works has a slot and is registered; one that
// does not is left out.
func TestDevices(t *testing.T) {
	f := standIn(t)
	tools, err := ffmpeg.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Devices: "nvidia:0,nvidia:1,dri:/dev/dri/renderD128", Logger: slog.New(slog.DiscardHandler)}
	prover := encoder.Prover{Tools: tools, Scratch: t.TempDir(), Limit: time.Minute}
	w := &worker{encoders: []string{"libx264"}}
	check := func(mode standin.Mode, devices string, classes []render.Class, encoders string) {
		t.Helper()
		f.Set(mode)
		if w.devices, err = proveDevices(t.Context(), cfg, prover); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, d := range w.devices {
			names = append(names, d.String())
		}
		gotClasses, gotEncoders, gotDevices := w.abilities()
		if strings.Join(names, " ") != devices || !slices.Equal(gotClasses, classes) || strings.Join(gotEncoders, " ") != encoders || gotDevices != len(names) {
			t.Errorf("%s: devices %v, classes %v, encoders %v", mode, names, gotClasses, gotEncoders)
		}
	}
	processors := []render.Class{render.ClassPreview, render.ClassCPU}
	check(standin.Works, "nvidia:0 nvidia:1 dri:/dev/dri/renderD128", append(processors, render.ClassGPU),
		"h264_nvenc h264_qsv h264_vaapi libx264 vp9_qsv vp9_vaapi")
	w.runner = &stage.Runner{}
	if got := w.runnerFor(w.devices[1]).Offers; len(got) != 1 || got[0].Device.Name != "1" {
		t.Errorf("the second card's slot has %+v", got)
	}
	check(standin.LowPowerOnly, "dri:/dev/dri/renderD128", append(processors, render.ClassGPU), "h264_vaapi libx264 vp9_vaapi")
	check(standin.NoDevice, "", processors, "libx264")
	cfg.Devices = "gpu0"
	if _, err := proveDevices(t.Context(), cfg, prover); err == nil || !strings.Contains(err.Error(), "setting devices") {
		t.Errorf("a wrong setting: %v", err)
	}
}

func TestDoctorTriesDevices(t *testing.T) {
	f := standIn(t)
	tools, err := ffmpeg.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	find := func(devices, name string) Check {
		t.Helper()
		checks, err := tryDevices(t.Context(), tools, t.TempDir(), devices)
		if err != nil || len(checks) != 1 || checks[0].Name != name || checks[0].Needed {
			t.Fatalf("%s: %+v, %v", devices, checks, err)
		}
		return checks[0]
	}
	if c := find("nvidia:0", "encoder h264_nvenc"); !c.OK || !strings.HasPrefix(c.Detail, "nvidia:0 ") {
		t.Errorf("a device that works: %+v", c)
	}
	f.Set(standin.NoDevice)
	if c := find("nvidia:0", "encoder h264_nvenc"); c.OK || !strings.Contains(c.Detail, "Cannot load libcuda.so.1") || c.Fix == "" {
		t.Errorf("a device that does not: %+v", c)
	}
	if c := find("none", "hardware encoders"); !c.OK {
		t.Errorf("no device: %+v", c)
	}
	if c := find("x", "hardware encoders"); c.OK {
		t.Errorf("a wrong setting: %+v", c)
	}
	checks, err := Doctor(t.Context(), t.TempDir(), "none")
	if err != nil || !slices.ContainsFunc(checks, func(c Check) bool { return c.Name == "hardware encoders" && c.OK }) {
		t.Errorf("doctor says %+v, %v", checks, err)
	}
}
