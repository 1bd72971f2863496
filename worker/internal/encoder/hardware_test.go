package encoder

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
)

func TestOffers(t *testing.T) {
	t.Parallel()
	hd := Picture{render.QualityStandard, 1920, 1080, render.Rational{Num: 30, Den: 1}, 0}
	for _, c := range []struct {
		offer Offer
		args  string
		upto  string
	}{
		{Offer{Encoder: "h264_nvenc", Device: Device{KindNVIDIA, "1"}},
			"-c:v h264_nvenc -gpu 1 -profile:v high -level:v 4.0 -tune hq -rc vbr -b:v 0 -maxrate:v 25000k -bufsize:v 31250k -spatial-aq 1 -bf:v 0 -preset p4 -cq 25 -g 60", ""},
		{Offer{Encoder: "h264_qsv", Device: Device{KindDRI, "/dev/dri/renderD129"}},
			"-init_hw_device qsv=dev:hw,child_device=/dev/dri/renderD129 -filter_hw_device dev -c:v h264_qsv -profile:v high -i_qfactor 1 -i_qoffset 0 -flags:v +cgop -bf:v 0 -preset medium -q:v 24 -g 60",
			"format=nv12,hwupload=extra_hw_frames=64"},
		{Offer{Encoder: "h264_vaapi", Device: Device{KindDRI, "/dev/dri/renderD128"}, Extra: []string{"-low_power", "1"}},
			"-init_hw_device vaapi=dev:/dev/dri/renderD128 -filter_hw_device dev -c:v h264_vaapi -profile:v high -rc_mode CQP -bf:v 0 -qp 24 -low_power 1 -g 60", "format=nv12,hwupload"},
		{Offer{Encoder: "h264_videotoolbox", Device: Device{Kind: KindVideoToolbox}},
			"-c:v h264_videotoolbox -allow_sw 0 -profile:v high -level:v 4.0 -b:v 6220k -bf:v 0 -g 60", "format=nv12"},
		{Offer{Encoder: "h264_v4l2m2m", Device: Device{Kind: KindV4L2}}, "-c:v h264_v4l2m2m -b:v 6220k -bf:v 0 -g 60", ""},
	} {
		e, err := c.offer.Video(hd)
		if got := strings.Join(e.Args, " "); err != nil || got != c.args || e.Filters != c.upto || !e.Device {
			t.Errorf("%+v\n got %s, %q, %v\nwant %s, %q", c.offer, got, e.Filters, err, c.args, c.upto)
		}
	}
	for _, name := range []string{"h264_vulkan", "cuda"} {
		if _, err := (Offer{Encoder: name}).Video(hd); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s, which nobody drives as an encoder: %v", name, err)
		}
	}
	cuda := Offer{Encoder: "cuda", Device: Device{KindCUDA, "3"}}
	e, err := cuda.Decode(Encoding{Args: []string{"-c:v", "libx264"}}, 1280, 720)
	if err != nil || strings.Join(e.Input, " ") != "-hwaccel cuda -hwaccel_device 3 -hwaccel_output_format cuda" ||
		e.Scale != "scale_cuda=w=1280:h=720:interp_algo=bicubic:format=yuv420p,hwdownload,format=yuv420p" || !e.Device || len(e.Args) != 2 {
		t.Errorf("decoding: %+v, %v", e, err)
	}
	if _, err := (Offer{Encoder: "h264_nvenc"}).Decode(Encoding{}, 2, 2); !errors.Is(err, ErrUnknown) {
		t.Errorf("an encoder decodes: %v", err)
	}
}

// TestTable holds every row to what the others rely on.
func TestTable(t *testing.T) {
	t.Parallel()
	devices := map[Kind]string{KindNVIDIA: "0", KindDRI: "/dev/dri/renderD128"}
	for _, h := range table() {
		if h.scale != "" {
			continue // it decodes
		}
		for _, q := range []render.Quality{render.QualityDraft, render.QualityStandard, render.QualityHigh} {
			e, err := Offer{Encoder: h.name, Device: Device{h.kind, devices[h.kind]}}.Video(Picture{q, 1280, 720, render.Rational{Num: 25, Den: 1}, 0})
			if err != nil {
				t.Fatal(err)
			}
			args := strings.Join(e.Args, " ")
			if strings.ContainsAny(args, "{}") {
				t.Errorf("%s: something was not filled in: %s", h.name, args)
			}
			if !strings.Contains(args, "-bf:v 0") {
				t.Errorf("%s may make B-frames: %s", h.name, args)
			}
			if devices[h.kind] != "" && !strings.Contains(args, devices[h.kind]) {
				t.Errorf("%s is not told which device: %s", h.name, args)
			}
			if len(h.quality) == 0 && !strings.Contains(args, "-b:v") {
				t.Errorf("%s has neither quality nor bit rate: %s", h.name, args)
			}
		}
		if codec, _, _ := strings.Cut(h.name, "_"); codec != "h264" && codec != "vp9" {
			t.Errorf("%s does not begin with the codec that it makes", h.name)
		}
	}
}

func TestDevices(t *testing.T) {
	dev := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dev, "dri"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "dri/card0", "dri/renderD128", "video11"} {
		if err := os.WriteFile(filepath.Join(dev, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	if err := os.Unsetenv("CUDA_VISIBLE_DEVICES"); err != nil {
		t.Fatal(err)
	}
	check := func(setting, want string) {
		t.Helper()
		devices, err := Devices(setting, dev)
		var got []string
		for _, d := range devices {
			if d.Kind != KindVideoToolbox || setting != DevicesAuto {
				got = append(got, strings.ReplaceAll(d.String(), dev, "/dev"))
			}
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, %v, want %s", setting, got, err, want)
		}
	}
	check(DevicesAuto, "nvidia:0 nvidia:1 dri:/dev/dri/renderD128 v4l2")
	check(DevicesNone, "")
	check("nvidia:1, dri:/dev/dri/renderD129", "nvidia:1 dri:/dev/dri/renderD129")
	check("v4l2,videotoolbox,cuda:0", "v4l2 videotoolbox cuda:0")
	t.Setenv("CUDA_VISIBLE_DEVICES", "1")
	check(DevicesAuto, "nvidia:0 dri:/dev/dri/renderD128 v4l2")
	for _, bad := range []string{"nvidia", "nvidia:-1", "nvidia:x", "dri:renderD128", "dri:/dev/dri/a,b", "dri:/a:b", "v4l2:1", "cuda", "nvidia:0,nvidia:0", ","} {
		if got, err := Devices(bad, dev); err == nil {
			t.Errorf("%q passes as %v", bad, got)
		}
	}
}

func TestReason(t *testing.T) {
	t.Parallel()
	if got := Reason([]string{"frame= 1", "[h264_nvenc] [error] OpenEncodeSessionEx failed: out of memory (10): (no details)", "[error] Conversion failed!"}); got != "OpenEncodeSessionEx failed: out of memory (10): (no details)" {
		t.Error(got)
	}
	if got := Reason(nil); got != "" {
		t.Error(got)
	}
}
