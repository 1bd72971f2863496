package render_test

import (
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
)

func TestParseHardware(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]render.Hardware{"": "prefer", "prefer": "prefer", "require": "require", "never": "never", "Always": ""} {
		if got, err := render.ParseHardware(in); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

func TestHardwareEncoder(t *testing.T) {
	t.Parallel()
	gpu := func(encoders ...string) render.Worker {
		return render.Worker{Classes: []render.Class{render.ClassCPU, render.ClassGPU}, Encoders: encoders}
	}
	asleep := render.Worker{Classes: []render.Class{render.ClassCPU}, Encoders: []string{"h264_nvenc", "libx264"}}
	for name, c := range map[string]struct {
		codec   string
		workers []render.Worker
		want    string
	}{
		"nobody":                   {"h264", nil, ""},
		"processors":               {"h264", []render.Worker{asleep, gpu("libx264")}, ""},
		"one":                      {"h264", []render.Worker{asleep, gpu("h264_vaapi", "vp9_vaapi")}, "h264_vaapi"},
		"another codec":            {"vp9", []render.Worker{gpu("h264_nvenc")}, ""},
		"most have it":             {"h264", []render.Worker{gpu("h264_nvenc"), gpu("h264_vaapi"), gpu("h264_qsv", "h264_vaapi")}, "h264_vaapi"},
		"as many have both":        {"h264", []render.Worker{gpu("h264_vaapi", "h264_qsv")}, "h264_qsv"},
		"one that nobody drives":   {"h264", []render.Worker{gpu("h264_vulkan")}, ""},
		"VP9 in a mixed neighbour": {"vp9", []render.Worker{gpu("h264_nvenc"), gpu("vp9_qsv")}, "vp9_qsv"},
	} {
		if got := render.HardwareEncoder(c.codec, c.workers); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestHardwareOverEveryPlace: at which places a failure sends a render back to
// processors, and where its segments wait.
func TestHardwareOverEveryPlace(t *testing.T) {
	t.Parallel()
	segment := render.Work{Tenant: testTenant, Task: testTask, Generation: 1, Stage: render.StageSegment}
	for _, place := range []string{"QV", "QP", "RV", "A", "P", "E", "M", "P+", "E+", "M+", "S", "S+", "F", "F+", "F-", "C", "C+"} {
		for _, encoder := range []string{"h264_nvenc", "libx264"} {
			for _, choice := range []render.Hardware{"", render.HardwarePrefer, render.HardwareRequire, render.HardwareNever} {
				r := *at(t, place)
				r.Spec.Hardware = choice
				hardware := false
				if r.Plan != nil {
					p := *r.Plan
					p.VideoCodec, p.Encoder = "h264", encoder
					r.Plan, hardware = &p, encoder == "h264_nvenc"
				}
				underWay := r.Step == render.StepEncode || r.Step == render.StepAssemble
				if got, want := r.FallsBack(), underWay && hardware && choice != render.HardwareRequire; got != want {
					t.Errorf("%s, %s, %q: falls back: %t", place, encoder, choice, got)
				}
				if r.FallsBack() {
					again, err := render.Apply(&r, render.Restarted{Generation: r.Generation, Reason: "it broke"}, testTime(9))
					if err != nil || again.MayUseHardware() || again.Step != render.StepPlan {
						t.Errorf("%s: after the fall back: %+v, %v", place, again, err)
					}
				}
				if got, want := r.ClassOf(segment) == render.ClassGPU, hardware; got != want {
					t.Errorf("%s, %s: a segment waits for a device: %t", place, encoder, got)
				}
				if got := r.MayUseHardware(); got != (choice != render.HardwareNever) {
					t.Errorf("%s, %q: may use hardware: %t", place, choice, got)
				}
			}
		}
	}
	r := *at(t, "E")
	r.Plan.VideoCodec, r.Plan.Encoder = "h264", "h264_nvenc"
	for _, stage := range []render.Stage{render.StageAudio, render.StageAssemble} {
		w := segment
		if w.Stage = stage; r.ClassOf(w) != render.ClassCPU {
			t.Errorf("%s waits for a device", stage)
		}
	}
}

func TestChooseHardware(t *testing.T) {
	t.Parallel()
	gpu := func(encoders ...string) []render.Worker {
		return []render.Worker{{Classes: []render.Class{render.ClassGPU}, Encoders: encoders, Devices: 2}}
	}
	for name, c := range map[string]struct {
		choice  render.Hardware
		workers []render.Worker
		waiting int
		decodes bool
		needs   string
		fails   bool
	}{
		"an encoder":                        {render.HardwarePrefer, gpu("h264_nvenc", "cuda"), 0, true, "h264_nvenc", false},
		"a decoder":                         {render.HardwarePrefer, gpu("libx264", "cuda"), 0, true, "cuda", false},
		"a decoder for another source":      {render.HardwarePrefer, gpu("libx264", "cuda"), 0, false, "", false},
		"nothing":                           {render.HardwarePrefer, gpu("libx264"), 0, true, "", false},
		"a decoder is not what is required": {render.HardwareRequire, gpu("libx264", "cuda"), 0, true, "", true},
		"a device with a short queue":       {render.HardwarePrefer, gpu("h264_nvenc"), 7, true, "h264_nvenc", false},
		"a device with a long queue":        {render.HardwarePrefer, gpu("h264_nvenc", "cuda"), 8, true, "", false},
		"a decoder with a long queue":       {render.HardwarePrefer, gpu("cuda"), 8, true, "", false},
		"a long queue that must be stood":   {render.HardwareRequire, gpu("h264_nvenc"), 800, true, "h264_nvenc", false},
	} {
		p := render.Plan{VideoCodec: "h264", Encoder: "libx264"}
		err := p.ChooseHardware(c.choice, c.workers, c.waiting, c.decodes)
		if p.Needs() != c.needs || p.OnHardware() != (c.needs != "") || (render.CodeOf(err) == render.CodeRenderFailed) != c.fails {
			t.Errorf("%s: needs %q, %v", name, p.Needs(), err)
		}
	}
}
