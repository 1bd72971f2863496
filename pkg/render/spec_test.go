package render_test

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
)

// request is the smallest request; edit changes it.
func request(edit func(r *render.Request)) render.Request {
	r := render.Request{SourceAssetURI: testSource.URI(), OutputFormat: "mp4", Resolution: "1080p"}
	if edit != nil {
		edit(&r)
	}
	return r
}

// watermarked is the smallest request with a text watermark.
func watermarked(edit func(w *render.WatermarkRequest)) render.Request {
	return request(func(r *render.Request) {
		r.Watermark = &render.WatermarkRequest{Text: new("hello")}
		if edit != nil {
			edit(r.Watermark)
		}
	})
}

// approving is watermarked with the approval argument.
func approving(required bool) render.Request {
	r := watermarked(nil)
	r.RequireWatermarkApproval = &required
	return r
}

func TestNormalize(t *testing.T) {
	t.Parallel()
	plain := render.Spec{Source: testSource, Format: render.FormatMP4, Resolution: render.Resolution1080p, Quality: render.QualityStandard}
	but := func(f func(*render.Spec)) render.Spec {
		s := plain
		f(&s)
		return s
	}
	with := func(approval bool, w render.Watermark) render.Spec {
		s := plain
		s.Watermark, s.RequireApproval = &w, approval
		return s
	}
	hello := render.Watermark{Mode: render.WatermarkText, Text: "hello", Position: render.PositionBottomRight, Opacity: 1}
	logo := render.Watermark{Mode: render.WatermarkImage, Image: testLogo, Position: render.PositionBottomRight, Opacity: 1}
	edit := func(w render.Watermark, f func(*render.Watermark)) render.Watermark {
		f(&w)
		return w
	}
	tests := map[string]struct {
		in   render.Request
		want render.Spec
	}{
		"only what is required":               {request(nil), plain},
		"720p":                                {request(func(r *render.Request) { r.Resolution = "720p" }), but(func(s *render.Spec) { s.Resolution = render.Resolution720p })},
		"webm":                                {request(func(r *render.Request) { r.OutputFormat = "webm" }), but(func(s *render.Spec) { s.Format = render.FormatWebM })},
		"mov":                                 {request(func(r *render.Request) { r.OutputFormat = "mov" }), but(func(s *render.Spec) { s.Format = render.FormatMOV })},
		"4k":                                  {request(func(r *render.Request) { r.Resolution = "4k" }), but(func(s *render.Spec) { s.Resolution = render.Resolution4K })},
		"draft":                               {request(func(r *render.Request) { r.Quality = new("draft") }), but(func(s *render.Spec) { s.Quality = render.QualityDraft })},
		"high":                                {request(func(r *render.Request) { r.Quality = new("high") }), but(func(s *render.Spec) { s.Quality = render.QualityHigh })},
		"the default quality":                 {request(func(r *render.Request) { r.Quality = new("standard") }), plain},
		"approval without a watermark":        {request(func(r *render.Request) { r.RequireWatermarkApproval = new(true) }), plain},
		"no approval without a watermark":     {request(func(r *render.Request) { r.RequireWatermarkApproval = new(false) }), plain},
		"an idempotency key":                  {request(func(r *render.Request) { r.IdempotencyKey = new(strings.Repeat("é", 128)) }), plain},
		"a text":                              {watermarked(nil), with(true, hello)},
		"a text of 200 characters":            {watermarked(func(w *render.WatermarkRequest) { w.Text = new(strings.Repeat("字", 200)) }), with(true, edit(hello, func(w *render.Watermark) { w.Text = strings.Repeat("字", 200) }))},
		"a text of what other formats escape": {watermarked(func(w *render.WatermarkRequest) { w.Text = new(": ' \" % \\ { } , [ ] ;\n") }), with(true, edit(hello, func(w *render.Watermark) { w.Text = ": ' \" % \\ { } , [ ] ;\n" }))},
		"a text with its mode":                {watermarked(func(w *render.WatermarkRequest) { w.Mode = new("text") }), with(true, hello)},
		"a text without approval":             {approving(false), with(false, hello)},
		"a text with approval":                {approving(true), with(true, hello)},
		"an image":                            {watermarked(func(w *render.WatermarkRequest) { w.Text, w.ImageAssetURI = nil, new(testLogo.URI()) }), with(true, logo)},
		"an image with its mode": {watermarked(func(w *render.WatermarkRequest) {
			*w = render.WatermarkRequest{Mode: new("image"), ImageAssetURI: new(testLogo.URI())}
		}), with(true, logo)},
		"invisible": {watermarked(func(w *render.WatermarkRequest) { w.Opacity = new(0.0) }), with(true, edit(hello, func(w *render.Watermark) { w.Opacity = 0 }))},
		"half":      {watermarked(func(w *render.WatermarkRequest) { w.Opacity = new(0.5) }), with(true, edit(hello, func(w *render.Watermark) { w.Opacity = 0.5 }))},
		"opaque":    {watermarked(func(w *render.WatermarkRequest) { w.Opacity = new(1.0) }), with(true, hello)},
	}
	for _, p := range constants(t, "Position") {
		tests["position "+p] = struct {
			in   render.Request
			want render.Spec
		}{
			watermarked(func(w *render.WatermarkRequest) { w.Position = new(p) }),
			with(true, edit(hello, func(w *render.Watermark) { w.Position = render.Position(p) })),
		}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := render.Normalize(tt.in)
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
			}
			if got.NeedsApproval() != (got.Watermark != nil && got.RequireApproval) {
				t.Errorf("NeedsApproval = %v", got.NeedsApproval())
			}
		})
	}
	if got, want := constants(t, "Position"), []string{"top_left", "top_right", "bottom_left", "bottom_right", "center"}; !slices.Equal(got, want) {
		t.Errorf("positions are %v, the contract's are %v", got, want)
	}
}

func TestNormalizeRefuses(t *testing.T) {
	t.Parallel()
	const unknownAsset = "vidforge://assets/a_nope"
	textAndImage := []string{"watermark.text", "watermark.image_asset_uri"}
	source := func(uri string) render.Request {
		return request(func(r *render.Request) { r.SourceAssetURI = uri })
	}
	watermark := func(w render.WatermarkRequest) render.Request {
		return request(func(r *render.Request) { r.Watermark = &w })
	}
	tests := map[string]struct {
		in     render.Request
		code   render.Code
		field  string
		fields []string
		value  string
		says   string // a part of the message
	}{
		"no source":              {in: source(""), field: "source_asset_uri", says: "required"},
		"a web address":          {in: source("https://example.com/a.mp4"), field: "source_asset_uri", says: "not fetched"},
		"a file":                 {in: source("file:///etc/passwd"), field: "source_asset_uri", says: "not fetched"},
		"a path":                 {in: source("/etc/passwd"), field: "source_asset_uri", says: "not fetched"},
		"a video's URI":          {in: source(testTask.VideoURI("mp4")), field: "source_asset_uri", says: "not fetched"},
		"an impossible asset":    {in: source(unknownAsset), code: render.CodeSourceNotFound, field: "source_asset_uri", value: unknownAsset, says: "Upload"},
		"a wildcard asset":       {in: source("vidforge://assets/>"), code: render.CodeSourceNotFound, field: "source_asset_uri", value: "vidforge://assets/>"},
		"an asset not in UTF-8":  {in: source("vidforge://assets/\xff"), code: render.CodeSourceNotFound, field: "source_asset_uri"},
		"an asset of any length": {in: source("vidforge://assets/" + strings.Repeat("a", 200)), code: render.CodeSourceNotFound, field: "source_asset_uri"},

		"no format":        {in: request(func(r *render.Request) { r.OutputFormat = "" }), field: "output_format", says: "required: one of mp4, webm, mov"},
		"another format":   {in: request(func(r *render.Request) { r.OutputFormat = "avi" }), field: "output_format", value: "avi", says: "one of mp4, webm, mov"},
		"a long format":    {in: request(func(r *render.Request) { r.OutputFormat = strings.Repeat("x", 65) }), field: "output_format"},
		"a broken format":  {in: request(func(r *render.Request) { r.OutputFormat = "\xff" }), field: "output_format"},
		"upper case":       {in: request(func(r *render.Request) { r.OutputFormat = "MP4" }), field: "output_format", value: "MP4"},
		"no resolution":    {in: request(func(r *render.Request) { r.Resolution = "" }), field: "resolution", says: "required: one of 720p, 1080p, 4k"},
		"no such box":      {in: request(func(r *render.Request) { r.Resolution = "1080" }), field: "resolution", value: "1080", says: "720p, 1080p, 4k"},
		"no such quality":  {in: request(func(r *render.Request) { r.Quality = new("best") }), field: "quality", value: "best", says: "draft, standard, high"},
		"an empty quality": {in: request(func(r *render.Request) { r.Quality = new("") }), field: "quality"},

		"an empty watermark":    {in: watermark(render.WatermarkRequest{}), fields: textAndImage, says: "neither"},
		"a mode alone":          {in: watermark(render.WatermarkRequest{Mode: new("text")}), fields: textAndImage, says: "neither"},
		"text and image":        {in: watermark(render.WatermarkRequest{Text: new("x"), ImageAssetURI: new(testLogo.URI())}), fields: textAndImage, says: "both"},
		"both and a mode":       {in: watermark(render.WatermarkRequest{Mode: new("image"), Text: new("x"), ImageAssetURI: new(testLogo.URI())}), fields: textAndImage, says: "both"},
		"no such mode":          {in: watermark(render.WatermarkRequest{Mode: new("none"), Text: new("x")}), field: "watermark.mode", value: "none", says: "text, image"},
		"an empty mode":         {in: watermark(render.WatermarkRequest{Mode: new(""), Text: new("x")}), field: "watermark.mode"},
		"text as an image":      {in: watermark(render.WatermarkRequest{Mode: new("image"), Text: new("x")}), field: "watermark.mode", value: "image", says: "image_asset_uri"},
		"an image as text":      {in: watermark(render.WatermarkRequest{Mode: new("text"), ImageAssetURI: new(testLogo.URI())}), field: "watermark.mode", value: "text", says: "watermark.text"},
		"an empty text":         {in: watermark(render.WatermarkRequest{Text: new("")}), field: "watermark.text", says: "1 to 200"},
		"white space":           {in: watermark(render.WatermarkRequest{Text: new(" \n\t")}), field: "watermark.text", says: "white space"},
		"201 characters":        {in: watermark(render.WatermarkRequest{Text: new(strings.Repeat("字", 201))}), field: "watermark.text", says: "200"},
		"a text with NUL":       {in: watermark(render.WatermarkRequest{Text: new("a\x00b")}), field: "watermark.text", says: "NUL"},
		"a text not in UTF-8":   {in: watermark(render.WatermarkRequest{Text: new("a\xffb")}), field: "watermark.text", says: "UTF-8"},
		"a logo from the web":   {in: watermark(render.WatermarkRequest{ImageAssetURI: new("https://example.com/x.png")}), field: "watermark.image_asset_uri", says: "vidforge://assets/"},
		"an impossible logo":    {in: watermark(render.WatermarkRequest{ImageAssetURI: new(unknownAsset)}), code: render.CodeSourceNotFound, field: "watermark.image_asset_uri", value: unknownAsset},
		"no such position":      {in: watermark(render.WatermarkRequest{Text: new("x"), Position: new("middle")}), field: "watermark.position", value: "middle", says: "center"},
		"an empty position":     {in: watermark(render.WatermarkRequest{Text: new("x"), Position: new("")}), field: "watermark.position"},
		"a negative opacity":    {in: watermark(render.WatermarkRequest{Text: new("x"), Opacity: new(-0.01)}), field: "watermark.opacity", says: "0 to 1"},
		"an opacity in percent": {in: watermark(render.WatermarkRequest{Text: new("x"), Opacity: new(1.01)}), field: "watermark.opacity"},
		"no opacity":            {in: watermark(render.WatermarkRequest{Text: new("x"), Opacity: new(math.NaN())}), field: "watermark.opacity"},
		"an endless opacity":    {in: watermark(render.WatermarkRequest{Text: new("x"), Opacity: new(math.Inf(1))}), field: "watermark.opacity"},

		"an empty key":     {in: request(func(r *render.Request) { r.IdempotencyKey = new("") }), field: "idempotency_key", says: "1 to 128"},
		"129 characters":   {in: request(func(r *render.Request) { r.IdempotencyKey = new(strings.Repeat("é", 129)) }), field: "idempotency_key", says: "128"},
		"a key with NUL":   {in: request(func(r *render.Request) { r.IdempotencyKey = new("\x00") }), field: "idempotency_key"},
		"a key of no text": {in: request(func(r *render.Request) { r.IdempotencyKey = new("\xff") }), field: "idempotency_key"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := render.Normalize(tt.in)
			code := tt.code
			if code == "" {
				code = render.CodeInvalidField
			}
			if render.CodeOf(err) != code {
				t.Fatalf("got %v, want %s", err, code)
			}
			e := render.AsError(err)
			if e.Details.Field != tt.field || !slices.Equal(e.Details.Fields, tt.fields) || e.Details.Value != tt.value {
				t.Errorf("details are %+v, want field %q, fields %q, value %q", *e.Details, tt.field, tt.fields, tt.value)
			}
			if !strings.Contains(e.Message, tt.says) {
				t.Errorf("message %q does not say %q", e.Message, tt.says)
			}
			if e.Temporary || e.Blame != render.BlameCaller || e.Details.Reason == "" {
				t.Errorf("classified as %+v", e)
			}
		})
	}
}

// Equal meanings have equal hashes, different ones different hashes.
func TestSpecHash(t *testing.T) {
	t.Parallel()
	hash := func(r render.Request) string {
		t.Helper()
		s, err := render.Normalize(r)
		if err != nil {
			t.Fatal(err)
		}
		return s.Hash()
	}
	meanings := map[string][]render.Request{
		"plain": {
			request(nil),
			request(func(r *render.Request) { r.Quality = new("standard") }),
			request(func(r *render.Request) { r.RequireWatermarkApproval = new(false) }),
			request(func(r *render.Request) { r.RequireWatermarkApproval = new(true) }),
			request(func(r *render.Request) { r.IdempotencyKey = new("k") }),
		},
		"text": {
			watermarked(nil),
			watermarked(func(w *render.WatermarkRequest) {
				w.Mode, w.Position, w.Opacity = new("text"), new("bottom_right"), new(1.0)
			}),
			approving(true),
		},
		"invisible": {
			watermarked(func(w *render.WatermarkRequest) { w.Opacity = new(0.0) }),
			watermarked(func(w *render.WatermarkRequest) { w.Opacity = new(math.Copysign(0, -1)) }),
		},
		"unapproved":     {approving(false)},
		"other source":   {request(func(r *render.Request) { r.SourceAssetURI = testLogo.URI() })},
		"other box":      {request(func(r *render.Request) { r.Resolution = "4k" })},
		"other quality":  {request(func(r *render.Request) { r.Quality = new("high") })},
		"other text":     {watermarked(func(w *render.WatermarkRequest) { w.Text = new("Hello") })},
		"other position": {watermarked(func(w *render.WatermarkRequest) { w.Position = new("center") })},
		"image":          {watermarked(func(w *render.WatermarkRequest) { w.Text, w.ImageAssetURI = nil, new(testLogo.URI()) })},
		"other image":    {watermarked(func(w *render.WatermarkRequest) { w.Text, w.ImageAssetURI = nil, new(testSource.URI()) })},
	}
	owner := map[string]string{}
	for meaning, requests := range meanings {
		want := hash(requests[0])
		if other, taken := owner[want]; taken {
			t.Errorf("%s and %s have the same hash", meaning, other)
		}
		owner[want] = meaning
		for i, r := range requests[1:] {
			if got := hash(r); got != want {
				t.Errorf("%s: request %d has another hash", meaning, i+1)
			}
		}
	}
	// Hashes are stored: a version that computes others would refuse repeated
	// requests during its rollout.
	if got, want := hash(watermarked(nil)), "c91a4e4cedfada8d7213244aff58d4888ef72e91c52f5557aeb341878fdcf1b3"; got != want {
		t.Errorf("the hash changed between versions: %s, was %s", got, want)
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	want := map[render.Format]string{
		render.FormatMP4: "video/mp4 h264 aac libx264", render.FormatWebM: "video/webm vp9 opus libvpx-vp9", render.FormatMOV: "video/quicktime h264 aac libx264",
	}
	for _, f := range render.Formats() {
		video, audio, encoder := f.Codecs()
		if got := strings.Join([]string{f.MIMEType(), video, audio, encoder}, " "); got != want[f] {
			t.Errorf("%s: got %s, want %s", f, got, want[f])
		}
	}
	if len(render.Formats()) != len(want) {
		t.Errorf("formats %v", render.Formats())
	}
}
