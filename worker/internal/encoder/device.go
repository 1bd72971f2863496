package encoder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Kind is how programs reach a device.
type Kind string

// Kinds.
const (
	KindNVIDIA       Kind = "nvidia"       // by its number, in the order of CUDA
	KindDRI          Kind = "dri"          // by its render node
	KindV4L2         Kind = "v4l2"         // ffmpeg looks for the node itself
	KindVideoToolbox Kind = "videotoolbox" // macOS
	// KindCUDA is an NVIDIA card, by its number, that decodes and scales for an
	// encoder in software. It is never looked for: such an encode then waits for
	// the card instead of running beside others.
	KindCUDA Kind = "cuda"
)

// Device is something that encodes.
type Device struct {
	Kind Kind
	// Name is the number of an NVIDIA card, or the path of a render node; ""
	// for the kinds of which ffmpeg knows one only.
	Name string
}

// String is what ParseDevices reads, such as nvidia:0 or dri:/dev/dri/renderD128.
func (d Device) String() string {
	if d.Name == "" {
		return string(d.Kind)
	}
	return string(d.Kind) + ":" + d.Name
}

// What Devices takes beside a list.
const (
	DevicesAuto = "auto"
	DevicesNone = "none"
)

// Devices returns those that a setting names, with commas between them: "auto"
// (or nothing) looks for them below dev, which is /dev; "none" is none.
func Devices(setting, dev string) ([]Device, error) {
	switch setting {
	case "", DevicesAuto:
		return findDevices(dev)
	case DevicesNone:
		return nil, nil
	}
	var all []Device
	for part := range strings.SplitSeq(setting, ",") {
		kind, name, _ := strings.Cut(strings.TrimSpace(part), ":")
		d := Device{Kind: Kind(kind), Name: name}
		if !d.valid() || slices.Contains(all, d) {
			return nil, fmt.Errorf("%q is no device: say auto, none, or different ones of nvidia:0, dri:/dev/dri/renderD128, v4l2, videotoolbox, cuda:0 with commas between them", part)
		}
		all = append(all, d)
	}
	return all, nil
}

func (d Device) valid() bool {
	switch d.Kind {
	case KindNVIDIA, KindCUDA:
		_, err := strconv.ParseUint(d.Name, 10, 8)
		return err == nil
	case KindDRI:
		return filepath.IsAbs(d.Name) && !strings.ContainsAny(d.Name, ",:=")
	case KindV4L2, KindVideoToolbox:
		return d.Name == ""
	default:
		return false
	}
}

// findDevices looks for device nodes. That there is one says nothing about what
// it can do.
func findDevices(dev string) ([]Device, error) {
	nvidia, err1 := filepath.Glob(filepath.Join(dev, "nvidia[0-9]*"))
	dri, err2 := filepath.Glob(filepath.Join(dev, "dri", "renderD*"))
	video, err3 := filepath.Glob(filepath.Join(dev, "video[0-9]*"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("look for devices: %w", err)
	}
	var all []Device
	n := len(nvidia)
	if visible, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok { // CUDA counts these alone
		n = min(n, len(strings.FieldsFunc(visible, func(r rune) bool { return r == ',' })))
	}
	for i := range n {
		all = append(all, Device{KindNVIDIA, strconv.Itoa(i)})
	}
	for _, node := range dri {
		all = append(all, Device{KindDRI, node})
	}
	if len(video) > 0 {
		all = append(all, Device{Kind: KindV4L2})
	}
	if runtime.GOOS == "darwin" {
		all = append(all, Device{Kind: KindVideoToolbox})
	}
	return all, nil
}
