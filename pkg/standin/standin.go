// Package standin is for tests: a program in front of the real ffmpeg, whose
// hardware encoders, and the decoder of CUDA, do what a test says. Those that
// succeed are software under other names.
package standin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Mode is what the hardware encoders do.
type Mode string

// Modes, with the words that ffmpeg has for them.
const (
	// Works encodes in software, exit code 0, as an encoder with a software
	// driver does.
	Works Mode = "works"
	// NoDevice is an encoder that is listed on a machine without its hardware.
	NoDevice Mode = "no-device"
	// SessionLimit is a card that encodes for as many others as its driver
	// allows.
	SessionLimit Mode = "session-limit"
	// Short ends with exit code 0 after a few frames.
	Short Mode = "short"
	// Hangs encodes a frame and then nothing.
	Hangs Mode = "hangs"
	// WrongPicture encodes every frame, and none as it was.
	WrongPicture Mode = "wrong-picture"
	// LowPowerOnly is a model that encodes only when it is asked for its
	// low-power mode.
	LowPowerOnly Mode = "low-power-only"
)

// FFmpeg is the stand-in.
type FFmpeg struct {
	// Path of the program, Dir its directory.
	Path, Dir string

	t    testing.TB
	mode string
}

const script = `#!/bin/sh
hardware= low_power=
for a; do
	case $a in
	cuda) hardware=cuda ;;
	h264_nvenc | h264_qsv | h264_vaapi | h264_v4l2m2m | h264_videotoolbox | vp9_qsv | vp9_vaapi) hardware=$a ;;
	-low_power) low_power=1 ;;
	esac
done
[ -n "$hardware" ] || exec '%[1]s' "$@"
mode=$(cat '%[2]s')
echo "$mode $hardware" >>'%[2]s.tried'
fail() {
	echo "[$hardware @ 0x55d0c8a3b2c0] [error] $1" >&2
	echo "[error] Error initializing output stream 0:0 -- Error while opening encoder for output stream #0:0 - maybe incorrect parameters such as bit_rate, rate, width or height" >&2
	echo "[error] $2" >&2
	exit 1
}
case $mode in
no-device) fail 'Cannot load libcuda.so.1' 'Operation not permitted' ;;
session-limit) fail 'OpenEncodeSessionEx failed: out of memory (10): (no details)' 'Cannot allocate memory' ;;
low-power-only) [ -n "$low_power" ] || fail 'No usable encoding entrypoint found for profile VAProfileH264High (7).' 'Function not implemented' ;;
hangs)
	printf 'frame=1\nprogress=continue\n'
	exec sleep 600
	;;
esac
n=$#
while [ "$n" -gt 0 ]; do
	a=$1 n=$((n - 1))
	shift
	case $a in
	h264_*) set -- "$@" libx264 -preset ultrafast ;;
	vp9_*) set -- "$@" libvpx-vp9 -deadline realtime -cpu-used 8 ;;
	-hwaccel | -hwaccel_device | -hwaccel_output_format | -init_hw_device | -filter_hw_device | -gpu | -tune | -rc | -rc_mode | -spatial-aq | -preset | -cq | -qp | -q:v | -global_quality:v | -i_qfactor | -i_qoffset | -profile:v | -level:v | -low_power | -allow_sw)
		shift
		n=$((n - 1))
		;;
	-frames:v)
		frames=$1 n=$((n - 1))
		shift
		[ "$mode" = short ] && frames=5
		set -- "$@" -frames:v "$frames"
		;;
	-vf | -filter_complex)
		option=$a graph=$(printf '%%s' "$1" | sed 's/,hwupload[^,[]*//; s/scale_cuda=\(w=[0-9]*:h=[0-9]*\)[^,]*,hwdownload/scale=\1/') n=$((n - 1))
		shift
		[ "$mode" = wrong-picture ] && graph=$(printf '%%s' "$graph" | sed 's/format=yuv420p/format=yuv420p,negate/')
		set -- "$@" "$option" "$graph"
		;;
	*) set -- "$@" "$a" ;;
	esac
done
exec '%[1]s' "$@"
`

// New makes a stand-in for the ffmpeg that is in PATH, whose hardware encoders
// work.
func New(t testing.TB) *FFmpeg {
	t.Helper()
	ffmpeg, err := exec.LookPath("ffmpeg")
	if err != nil {
		t.Fatalf("these tests run the real ffmpeg: %v", err)
	}
	dir := t.TempDir()
	if strings.ContainsRune(dir+ffmpeg, '\'') {
		t.Fatalf("%q or %q cannot stand in a script", dir, ffmpeg)
	}
	f := &FFmpeg{Path: filepath.Join(dir, "ffmpeg"), Dir: dir, t: t, mode: filepath.Join(dir, "mode")}
	if err := os.WriteFile(f.Path, fmt.Appendf(nil, script, ffmpeg, f.mode), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	f.Set(Works)
	return f
}

// Set says what the hardware encoders do from now on.
func (f *FFmpeg) Set(m Mode) {
	f.t.Helper()
	if err := os.WriteFile(f.mode+".new", []byte(m), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(f.mode+".new", f.mode); err != nil { // at once, for whoever reads it just now
		f.t.Fatal(err)
	}
}

// Env is the environment of programs that are to find it.
func (f *FFmpeg) Env() []string {
	return []string{"PATH=" + f.Dir + string(os.PathListSeparator) + os.Getenv("PATH")}
}

// Tried returns what was asked of hardware encoders so far: mode and encoder,
// such as "works h264_nvenc".
func (f *FFmpeg) Tried() []string {
	f.t.Helper()
	b, err := os.ReadFile(f.mode + ".tried")
	if err != nil && !os.IsNotExist(err) {
		f.t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")[:strings.Count(string(b), "\n")]
}
