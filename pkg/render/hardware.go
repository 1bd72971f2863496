package render

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Hardware says whether a render is encoded on graphics hardware. It is the
// farm's choice, not a client's.
type Hardware string

// Choices. A record that says nothing prefers it.
const (
	// HardwarePrefer encodes on hardware where a living worker has it, else on
	// processors, and begins again there when the hardware fails.
	HardwarePrefer Hardware = "prefer"
	// HardwareRequire fails the render where hardware would be given up.
	HardwareRequire Hardware = "require"
	// HardwareNever encodes on processors.
	HardwareNever Hardware = "never"
)

// ParseHardware checks a setting; "" is HardwarePrefer.
func ParseHardware(s string) (Hardware, error) {
	h := cmp.Or(Hardware(s), HardwarePrefer)
	if !slices.Contains([]Hardware{HardwarePrefer, HardwareRequire, HardwareNever}, h) {
		return "", fmt.Errorf("hardware %q must be %s, %s or %s", s, HardwarePrefer, HardwareRequire, HardwareNever)
	}
	return h, nil
}

// hardwareAPIs are, after the codec, the names of hardware encoders, in the order
// in which one is taken of several that as many workers have.
func hardwareAPIs() []string { return []string{"nvenc", "qsv", "vaapi", "videotoolbox", "v4l2m2m"} }

// HardwareEncoder chooses the encoder of a plan by what living workers have: the
// one that most have, since all segments of a render share it; "" when none has
// any for the codec.
func HardwareEncoder(codec string, workers []Worker) string {
	best, most := "", 0
	for _, api := range hardwareAPIs() {
		name := codec + "_" + api
		n := 0
		for _, w := range workers {
			if w.Offers(name) {
				n++
			}
		}
		if n > most {
			best, most = name, n
		}
	}
	return best
}

// Offers reports whether the worker takes encodes for a hardware encoder, or for
// DecoderCUDA.
func (w *Worker) Offers(encoder string) bool {
	return slices.Contains(w.Classes, ClassGPU) && slices.Contains(w.Encoders, encoder)
}

// DecoderCUDA is the decoder of NVIDIA cards, which scales too: for an encode in
// software, on cards that have no encoder.
const DecoderCUDA = "cuda"

// Needs is what a worker must offer for the plan's segments: a hardware encoder,
// or what decodes for one in software; "" for processors alone.
func (p *Plan) Needs() string {
	if slices.ContainsFunc(hardwareAPIs(), func(api string) bool { return p.Encoder == p.VideoCodec+"_"+api }) {
		return p.Encoder
	}
	return p.Decoder
}

// OnHardware reports whether the plan's segments need a device.
func (p *Plan) OnHardware() bool { return p != nil && p.Needs() != "" }

// worksPerDevice is how many works may wait or run for each device before a
// render that only prefers devices is planned for processors: these are many,
// and would stand idle beside a device with a long queue.
const worksPerDevice = 4

// ChooseHardware puts into a plan what living workers have: an encoder, else,
// where it would serve, the decoder; unless the render need not wait for one and
// too much does. unfinished are the works of class gpu. Errors are those of
// NoHardware.
func (p *Plan) ChooseHardware(choice Hardware, workers []Worker, unfinished int, decodes bool) error {
	free := func(name string) bool {
		devices := 0
		for _, w := range workers {
			if w.Offers(name) {
				devices += w.Devices
			}
		}
		return unfinished < worksPerDevice*devices
	}
	name := HardwareEncoder(p.VideoCodec, workers)
	switch {
	case choice == HardwareRequire && name == "":
		return NoHardware(p.VideoCodec)
	case name != "" && (choice == HardwareRequire || free(name)):
		p.Encoder = name
	case name == "" && decodes && free(DecoderCUDA):
		p.Decoder = DecoderCUDA
	}
	return nil
}

// FallsBack reports whether a failure of the present encoding, or of joining
// it, may be put down to hardware, so that it begins again without.
func (r *Record) FallsBack() bool {
	return (r.Step == StepEncode || r.Step == StepAssemble) && r.Plan.OnHardware() && r.Spec.Hardware != HardwareRequire
}

// MayUseHardware reports whether the next plan may choose a hardware encoder:
// once it was given up, the render is finished on processors.
func (r *Record) MayUseHardware() bool {
	return r.Spec.Hardware != HardwareNever && r.RestartReason == ""
}

// ClassOf is the queue that a work of the render waits in.
func (r *Record) ClassOf(w Work) Class {
	if w.Stage == StageSegment && r.Plan.OnHardware() {
		return ClassGPU
	}
	return w.Stage.Class()
}

// NoHardware is the failure of a render that must be encoded on hardware while
// nobody has any.
func NoHardware(codec string) *Error {
	name := strings.ToUpper(codec)
	if codec == "h264" {
		name = "H.264"
	}
	e := Errorf(CodeRenderFailed, BlameCaller, "This farm encodes on graphics hardware only, and no living worker has any for %s. Submit again when one is there.", name)
	e.Details = &Details{Reason: "no hardware encoder for " + name}
	return e
}
