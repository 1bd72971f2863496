#!/usr/bin/env bash
# Usage: demo.sh [FILE]
# Renders FILE, or a made-up ten seconds of picture and sound, to 1080p with a
# text watermark, through MCP on a farm of its own. Leaves the video and the
# watermark's preview in out/. FORMAT is mp4 (the default), webm or mov.
set -euo pipefail
here=$PWD
format=${FORMAT:-mp4}
cd "$(dirname "$0")/.."

phase() {
	local name=$1 start=$EPOCHREALTIME
	shift
	"$@"
	awk -v n="$name" -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "[%6.1f s] %s\n", b - a, n }'
}

make_source() {
	ffmpeg -nostdin -v error -y \
		-f lavfi -i testsrc2=size=640x360:rate=30:duration=10 \
		-f lavfi -i sine=frequency=440:beep_factor=4:duration=10 \
		-c:v libx264 -preset veryfast -pix_fmt yuv420p -c:a aac -shortest "$1"
}

mkdir -p out
start=$EPOCHREALTIME
phase 'packages' make --no-print-directory deps
phase 'build' make --no-print-directory build
if [ $# -gt 0 ]; then
	source=$(cd "$here" && realpath -e -- "$1")
else
	source=$PWD/out/demo-source.mp4
	phase 'made-up source' make_source "$source"
fi
phase 'render through MCP' bin/vidforge render "$source" \
	--to "$format" --resolution 1080p --watermark-text 'made with vidforge' --position bottom_right \
	--approve --preview-out out/demo-preview.png --force -o "out/demo.$format"

echo
ffprobe -v error -of default=noprint_wrappers=1 \
	-show_entries 'format=format_name,duration,size:stream=codec_type,codec_name,width,height,r_frame_rate,nb_frames,channels' "out/demo.$format"
echo
echo "video:   $PWD/out/demo.$format"
echo "preview: $PWD/out/demo-preview.png"
awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "total:   %.1f s\n", b - a }'
