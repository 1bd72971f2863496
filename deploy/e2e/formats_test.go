package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image/color"
	"io"
	"math"
	"mime"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/vidforge/vidforge/deploy/embedded/embeddedtest"
)

// The source of the format tests is of one colour for two seconds and then of
// another for two, so that a place in it can be told by a pixel; its sound is
// 5.1.
const (
	formatSeconds = 4
	formatRate    = 25
)

func firstColour() color.RGBA  { return color.RGBA{R: 0xc8, G: 0x64, B: 0x32, A: 255} }
func secondColour() color.RGBA { return color.RGBA{R: 0x32, G: 0x64, B: 0xc8, A: 255} }

func formatSource(t *testing.T) string {
	t.Helper()
	hex := func(c color.RGBA) string { return fmt.Sprintf("0x%02X%02X%02X", c.R, c.G, c.B) }
	part := func(c color.RGBA) string {
		return fmt.Sprintf("color=c=%s:size=320x180:rate=%d:duration=%d", hex(c), formatRate, formatSeconds/2)
	}
	file := filepath.Join(t.TempDir(), "clip.mp4")
	run(t, "ffmpeg", "-v", "error",
		"-f", "lavfi", "-i", part(firstColour())+"[a];"+part(secondColour())+"[b];[a][b]concat",
		"-f", "lavfi", "-i", fmt.Sprintf("aevalsrc=0.2*sin(440*2*PI*t)|0.2*sin(550*2*PI*t)|0.1*sin(330*2*PI*t)|0.1*sin(60*2*PI*t)|0.1*sin(660*2*PI*t)|0.1*sin(770*2*PI*t):c=5.1:s=48000:d=%d", formatSeconds),
		"-c:v", "libx264", "-preset", "ultrafast", "-qp", "4", "-pix_fmt", "yuv420p", "-c:a", "aac", file)
	return file
}

// formatWant is what a render to a format must give.
type formatWant struct {
	ext, mime, video, audio, container string
}

func formatWants() []formatWant {
	return []formatWant{
		{"mp4", "video/mp4", "h264", "aac", "mov,mp4,m4a,3gp,3g2,mj2"},
		{"webm", "video/webm", "vp9", "opus", "matroska,webm"},
		{"mov", "video/quicktime", "h264", "aac", "mov,mp4,m4a,3gp,3g2,mj2"},
	}
}

// TestFormats renders to every format through MCP, checks how each is named and
// what it holds, and plays those for browsers in one.
func TestFormats(t *testing.T) {
	share := embeddedtest.Servers(t)
	url, _ := startGateway(t, share)
	startWorker(t, share, "w1")
	a := &agent{url: url, t: t, tasks: true}
	source := a.upload(formatSource(t))
	tasks := map[string]string{}
	for _, w := range formatWants() {
		got := a.call("vidforge_render_video", args(source, map[string]any{"output_format": w.ext}))
		id, _ := got.Result["taskId"].(string)
		if id == "" {
			t.Fatalf("%s: the render tool answered %+v", w.ext, got)
		}
		tasks[w.ext] = id
	}
	files := map[string]string{}
	for _, w := range formatWants() {
		done := a.poll(tasks[w.ext], "completed", "failed", "cancelled")
		file := filepath.Join(t.TempDir(), "final."+w.ext)
		w.checkResult(t, a, tasks[w.ext], done, file)
		w.checkFile(t, file)
		files[w.ext] = file
	}
	playInBrowser(t, map[string]string{"mp4": files["mp4"], "webm": files["webm"]})
}

// checkResult checks names and types in the result and behind them, and
// downloads the video.
func (w formatWant) checkResult(t *testing.T, a *agent, id string, done answer, file string) {
	t.Helper()
	result, _ := done.Result["result"].(map[string]any)
	content, _ := result["structuredContent"].(map[string]any)
	uri := "vidforge://videos/" + id + "/final." + w.ext
	if content["status"] != "completed" || content["video_uri"] != uri || content["video_codec"] != w.video || content["audio_codec"] != w.audio ||
		content["width"] != 1280.0 || content["height"] != 720.0 || content["frame_count"] != float64(formatSeconds*formatRate) {
		t.Fatalf("%s: completed with %+v", w.ext, done)
	}
	blocks, _ := result["content"].([]any)
	var link map[string]any
	for _, block := range blocks {
		if b, _ := block.(map[string]any); b["type"] == "resource_link" {
			link = b
		}
	}
	if link["uri"] != uri || link["mimeType"] != w.mime || link["name"] != "clip."+w.ext {
		t.Errorf("%s: resource link %v", w.ext, link)
	}

	read := a.ask("resources/read", map[string]any{"uri": uri})
	contents, _ := read.Result["contents"].([]any)
	if len(contents) != 1 {
		t.Fatalf("%s: read %+v", w.ext, read)
	}
	one, _ := contents[0].(map[string]any)
	blob, _ := one["blob"].(string)
	inline, err := base64.StdEncoding.DecodeString(blob)
	if err != nil || one["uri"] != uri || one["mimeType"] != w.mime {
		t.Errorf("%s: read %v %v, %v", w.ext, one["uri"], one["mimeType"], err)
	}
	for ext, code := range map[string]string{"mp4": "", "webm": "", "mov": "", "avi": "resource_not_found"} {
		if ext != w.ext {
			code = "resource_not_found"
		}
		if got := a.ask("resources/read", map[string]any{"uri": strings.TrimSuffix(uri, w.ext) + ext}).code(); got != code {
			t.Errorf("%s: read as %s: %q", w.ext, ext, got)
		}
	}
	complete := a.ask("completion/complete", map[string]any{
		"ref": map[string]any{"type": "ref/resource", "uri": "vidforge://videos/{render_id}/final.{ext}"}, "argument": map[string]any{"name": "ext", "value": ""},
		"context": map[string]any{"arguments": map[string]any{"render_id": id}}})
	completion, _ := complete.Result["completion"].(map[string]any)
	if got := fmt.Sprint(completion["values"]); got != "["+w.ext+"]" {
		t.Errorf("%s: completes to %s", w.ext, got)
	}

	download, _ := content["download_url"].(string)
	res, err := http.Get(download)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || !bytes.Equal(body, inline) {
		t.Errorf("%s: downloaded %d bytes with HTTP %d, read inline %d, %v", w.ext, len(body), res.StatusCode, len(inline), err)
	}
	_, disposition, err := mime.ParseMediaType(res.Header.Get("Content-Disposition"))
	if err != nil || res.Header.Get("Content-Type") != w.mime || disposition["filename"] != "clip."+w.ext {
		t.Errorf("%s: downloaded as %q, %v, %v", w.ext, res.Header.Get("Content-Type"), disposition, err)
	}
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}
}

// checkFile looks into the file with ffprobe.
func (w formatWant) checkFile(t *testing.T, file string) {
	t.Helper()
	var got struct {
		Streams []map[string]any `json:"streams"`
		Format  map[string]any   `json:"format"`
	}
	if err := json.Unmarshal(run(t, "ffprobe", "-v", "error", "-count_frames", "-show_streams", "-show_format", "-of", "json", file), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Streams) != 2 || got.Format["format_name"] != w.container {
		t.Fatalf("%s: %+v", w.ext, got)
	}
	for name, want := range map[string]any{
		"codec_name": w.video, "width": 1280.0, "height": 720.0, "pix_fmt": "yuv420p", "nb_read_frames": strconv.Itoa(formatSeconds * formatRate),
		"color_range": "tv", "color_space": "bt709", "color_transfer": "bt709", "color_primaries": "bt709", "start_time": "0.000000",
	} {
		if got.Streams[0][name] != want {
			t.Errorf("%s: %s is %v, want %v", w.ext, name, got.Streams[0][name], want)
		}
	}
	for name, want := range map[string]any{"codec_name": w.audio, "channels": 6.0, "channel_layout": "5.1", "sample_rate": "48000"} {
		if got.Streams[1][name] != want {
			t.Errorf("%s: %s of the sound is %v, want %v", w.ext, name, got.Streams[1][name], want)
		}
	}
}

// page plays one video and resolves with what was seen. A promise that fails
// names the step.
const page = `<!doctype html><meta charset="utf-8"><title>player</title>
<video id="v" muted playsinline preload="auto"></video>
<script>
const v = document.getElementById("v");
function when(event, act) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("no " + event + ", ready " + v.readyState)), 60000);
    v.addEventListener(event, () => { clearTimeout(timer); resolve(); }, {once: true});
    v.addEventListener("error", () => { clearTimeout(timer); reject(new Error(event + ": media error " + v.error.code + " " + v.error.message)); }, {once: true});
    act();
  });
}
// mean colour and spread of the drawn frame
function drawn() {
  const c = document.createElement("canvas");
  c.width = v.videoWidth; c.height = v.videoHeight;
  const g = c.getContext("2d", {colorSpace: "srgb", willReadFrequently: true});
  g.drawImage(v, 0, 0);
  const p = g.getImageData(0, 0, c.width, c.height).data, sum = [0, 0, 0], low = [255, 255, 255], high = [0, 0, 0];
  for (let i = 0; i < p.length; i += 4) for (let k = 0; k < 3; k++) {
    sum[k] += p[i + k]; low[k] = Math.min(low[k], p[i + k]); high[k] = Math.max(high[k], p[i + k]);
  }
  return {mean: sum.map(s => s / (p.length / 4)), spread: Math.max(...high.map((h, k) => h - low[k]))};
}
async function play(file) {
  const seen = {};
  await when("loadeddata", () => { v.src = file; });
  seen.duration = v.duration; seen.width = v.videoWidth; seen.height = v.videoHeight; seen.first = drawn();
  await when("seeked", () => { v.currentTime = v.duration / 2 + 0.5; });
  seen.at = v.currentTime; seen.second = drawn();
  await when("seeked", () => { v.currentTime = 0.5; });
  seen.back = drawn();
  await when("timeupdate", () => { v.play(); });
  await when("ended", () => { v.currentTime = v.duration - 0.3; });
  seen.audioBytes = v.webkitAudioDecodedByteCount; seen.videoBytes = v.webkitVideoDecodedByteCount;
  const bytes = await (await fetch(file)).arrayBuffer();
  const sound = await new OfflineAudioContext(1, 1, 48000).decodeAudioData(bytes);
  seen.channels = sound.numberOfChannels; seen.soundSeconds = sound.duration;
  seen.loudest = Array.from({length: sound.numberOfChannels}, (_, k) => sound.getChannelData(k).reduce((m, x) => Math.max(m, Math.abs(x)), 0));
  return seen;
}
</script>`

// drawn and seen are what the page reports.
type drawn struct {
	Mean   [3]float64 `json:"mean"`
	Spread float64    `json:"spread"`
}

type seen struct {
	Duration     float64   `json:"duration"`
	Width        int       `json:"width"`
	Height       int       `json:"height"`
	First        drawn     `json:"first"`
	At           float64   `json:"at"`
	Second       drawn     `json:"second"`
	Back         drawn     `json:"back"`
	AudioBytes   int64     `json:"audioBytes"`
	VideoBytes   int64     `json:"videoBytes"`
	Channels     int       `json:"channels"`
	SoundSeconds float64   `json:"soundSeconds"`
	Loudest      []float64 `json:"loudest"`
}

// mostOff is how far a drawn colour may be from the source's: two conversions
// and a lossy encode lie between them. A wrong matrix or range is off by more.
const mostOff = 6

func (d drawn) is(c color.RGBA) bool {
	off := 0.0
	for i, want := range []uint8{c.R, c.G, c.B} {
		off = max(off, math.Abs(d.Mean[i]-float64(want)))
	}
	return off <= mostOff && d.Spread <= 2*mostOff
}

// playInBrowser plays each file from a page in Chromium: it loads, has its
// length, jumps, and shows the right colours.
func playInBrowser(t *testing.T, files map[string]string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if _, err := io.WriteString(w, page); err != nil {
			t.Errorf("serve the page: %v", err)
		}
	})
	mux.HandleFunc("GET /{file}", func(w http.ResponseWriter, r *http.Request) {
		ext := strings.TrimPrefix(r.PathValue("file"), "final.")
		i := slices.IndexFunc(formatWants(), func(f formatWant) bool { return f.ext == ext })
		if i < 0 || files[ext] == "" {
			http.NotFound(w, r) // such as the page's icon
			return
		}
		w.Header().Set("Content-Type", formatWants()[i].mime)
		http.ServeFile(w, r, files[ext])
	})
	server := httptest.NewServer(mux)
	defer server.Close()

	browser, err := findBrowser()
	if err != nil {
		t.Fatal(err)
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(browser), chromedp.NoSandbox, // tests may run as root, and the page is ours
		chromedp.Flag("disable-gpu", true), chromedp.Flag("autoplay-policy", "no-user-gesture-required"), chromedp.UserDataDir(t.TempDir()))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.Navigate(server.URL)); err != nil {
		t.Fatalf("open the page in %s: %v", browser, err)
	}
	for ext := range files {
		got, err := chromedp.Run(ctx, chromedp.Evaluate[seen](fmt.Sprintf("play(%q)", "/final."+ext), chromedp.EvalAwaitPromise))
		if err != nil {
			t.Errorf("play %s: %v", ext, err)
			continue
		}
		t.Logf("%s: %+v", ext, got)
		if math.Abs(got.Duration-formatSeconds) > 0.05 || got.Width != 1280 || got.Height != 720 {
			t.Errorf("%s: %d×%d of %v s", ext, got.Width, got.Height, got.Duration)
		}
		if !got.First.is(firstColour()) || !got.Second.is(secondColour()) || !got.Back.is(firstColour()) {
			t.Errorf("%s: draws %+v at the start, %+v in the middle, %+v at half a second", ext, got.First, got.Second, got.Back)
		}
		if math.Abs(got.At-(got.Duration/2+0.5)) > 0.001 || got.AudioBytes == 0 || got.VideoBytes == 0 {
			t.Errorf("%s: jumped to %v, decoded %d bytes of sound and %d of pictures", ext, got.At, got.AudioBytes, got.VideoBytes)
		}
		if got.Channels != 6 || math.Abs(got.SoundSeconds-formatSeconds) > 0.05 || slices.Min(got.Loudest) < 0.05 {
			t.Errorf("%s: %d channels of %v s, as loud as %v", ext, got.Channels, got.SoundSeconds, got.Loudest)
		}
	}
}
