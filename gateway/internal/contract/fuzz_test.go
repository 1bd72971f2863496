package contract

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/vidforge/vidforge/pkg/render"
)

const someAsset = "vidforge://assets/a_abcdefghijklmnopqrstuvwxyz"

// FuzzRepair: whatever the arguments, decoding ends in a classified error or a
// valid call, and a repair is always a valid call that keeps the source.
func FuzzRepair(f *testing.F) {
	for _, s := range []string{
		`{}`, `[]`, `null`, `"x"`, ``, `{"a":`, `{"render_id":"` + exampleID + `","approved":"yes","note":7}`,
		`{"source_asset_uri":"` + someAsset + `","output_format":"MP4","resolution":"4K","watermark":{"text":"a","image_asset_uri":"` + someAsset + `"},"x":1}`,
		`{"source_asset_uri":"` + someAsset + `","output_format":"mp4","resolution":"720p","watermark":"{\"text\":\"🎬\",\"opacity\":\"7\"}","quality":null}`,
		`{"source_asset_uri":"` + someAsset + `","output_format":"mp4","resolution":"720p","watermark":{"text":"\ud800"}}`,
		"{\"source_asset_uri\":\"\xff\"}", `{"watermark":{"watermark":{}},"watermark.text":1}`, `{"detail":["full"]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, tool := range toolOrder() {
			err := check(tool, raw)
			if err == nil {
				continue
			}
			var e *render.Error
			if !errors.As(err, &e) {
				t.Fatalf("%s %q: %v is not classified", tool, raw, err)
			}
			if !utf8.ValidString(e.Message) {
				t.Errorf("%s %q: message %q", tool, raw, e.Message)
			}
			n := repair(e, failure{tool: tool, raw: raw})
			if n == nil {
				continue
			}
			args, err := json.Marshal(n.Arguments)
			if err != nil {
				t.Fatalf("%s %q: repair %v: %v", tool, raw, n.Arguments, err)
			}
			if err := check(n.Tool, args); err != nil {
				t.Errorf("%s %q: repair %s %s fails: %v", tool, raw, n.Tool, args, err)
			}
		}
	})
}

// FuzzParseResource: what is accepted is exactly what is minted.
func FuzzParseResource(f *testing.F) {
	id, asset := render.ID(exampleID), render.AssetID(strings.TrimPrefix(exampleAsset, "vidforge://assets/"))
	for _, s := range []string{id.VideoURI(render.FormatMP4), id.PreviewURI(), id.LogURI(), asset.URI(), "vidforge://renders/task_*/log", "vidforge://videos//final.", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		r, ok := parseResource(uri)
		if !ok {
			return
		}
		again := map[ResourceKind]string{
			KindVideo: r.ID.VideoURI(render.Format(r.Ext)), KindPreview: r.ID.PreviewURI(), KindLog: r.ID.LogURI(), KindAsset: r.Asset.URI(),
		}[r.Kind]
		if again != uri {
			t.Errorf("%q parses as %q", uri, again)
		}
	})
}

func TestLoneSurrogates(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]bool{
		`"a"`: true, `"\u00e9"`: true, `"\ud83d\ude00"`: true, `"\\ud83d"`: true, `"\ufffd"`: true, `"x\n\ud83d\ude00\""`: true,
		`"\ud83d"`: false, `"\ude00"`: false, `"\ud83dx"`: false, `"\ud83d\ud83d"`: false, `"\ud83d\n"`: false, `"\ud83d\u0041"`: false,
	} {
		if s, ok := decodeString(json.RawMessage(raw)); ok != want {
			t.Errorf("%s: %q, %t", raw, s, ok)
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	var e *render.Error
	err := check(ToolRender, json.RawMessage(`{"source_asset_uri":"`+someAsset+`","output_format":"mp4","resolution":"720p","watermark":{"text":"x","opacity":1e999}}`))
	if !errors.As(err, &e) || e.Details.Field != "watermark.opacity" {
		t.Errorf("%v", err)
	}
}
