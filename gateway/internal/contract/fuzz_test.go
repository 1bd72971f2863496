package contract

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/gateway/internal/farmtest"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/mcptask"
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

// FuzzTaskHandlers: whatever is sent as answers to a paused render, an error
// changes nothing and is an envelope, and only a well-formed answer decides.
func FuzzTaskHandlers(f *testing.F) {
	for _, s := range []string{
		`{"watermark-approval-1":{"action":"accept","content":{"approved":true,"note":"x"}}}`,
		`{"watermark-approval-1":{"action":"accept","content":{"approved":false}},"watermark-approval-1-url":{"action":"accept"}}`,
		`{"watermark-approval-1":{"action":"accept","content":{"approved":"true"}}}`, `{"watermark-approval-1":{"action":"decline"}}`,
		`{"watermark-approval-1":{"action":"accept","content":{"approved":true,"approved":false}}}`, `{"watermark-approval-1":{"Action":"accept"}}`,
		`{"watermark-approval-1":null}`, `{"watermark-approval-1":[[]]}`, `{"x":{"action":"accept"}}`, `{}`, "{\"watermark-approval-1\":{\"action\":\"\xff\"}}",
	} {
		f.Add(s, "accept")
	}
	f.Fuzz(func(t *testing.T, answers, taskID string) {
		fake := farmtest.New(time.Now)
		s, err := New(Config{Farm: fake, Version: "1", PublicURL: "http://localhost", Tracer: noop.NewTracerProvider().Tracer(""), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		text := "Draft"
		v, _, err := fake.Submit(t.Context(), render.LocalTenant, farm.Submission{Request: render.Request{
			SourceAssetURI: fake.AddAsset(render.LocalTenant, "a.mov", farmtest.VideoFacts()).URI(), OutputFormat: "mp4", Resolution: "720p",
			Watermark: &render.WatermarkRequest{Text: &text},
		}})
		if err != nil {
			t.Fatal(err)
		}
		id := v.Record.ID
		if err := fake.Apply(id, render.PreviewReady{Result: render.StageResult{Work: render.Work{Generation: 1}, Object: fake.Put("p", nil)}}); err != nil {
			t.Fatal(err)
		}
		caller := mcptask.Caller{
			Principal: auth.Request{Principal: auth.Local(), ID: "req_1"}, ProtocolVersion: mcptask.Version20260728,
			Capabilities: &mcp.ClientCapabilities{Elicitation: &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}}},
		}
		st := store{s}
		envelope := func(err error) {
			var e *jsonrpc.Error
			if err != nil && (!errors.As(err, &e) || !json.Valid(e.Data) || !hasEnvelope(e.Data)) {
				t.Errorf("%q: %v is no envelope", answers, err)
			}
		}
		if _, err := st.Get(t.Context(), caller, string(id)); err != nil { // mints the request
			t.Fatal(err)
		}
		if _, err := st.Get(t.Context(), caller, taskID); taskID != string(id) && err == nil {
			t.Errorf("%q is a task", taskID)
		} else {
			envelope(err)
		}
		envelope(st.Cancel(t.Context(), caller, taskID))

		var responses map[string]json.RawMessage
		if json.Unmarshal([]byte(answers), &responses) != nil {
			return
		}
		err = st.Update(t.Context(), caller, string(id), responses)
		envelope(err)
		rec := fake.Record(id)
		if err != nil && (rec.Decision != nil || len(rec.OpenInputs()) != 1) {
			t.Errorf("%q: %v, and yet %+v", answers, err, rec)
		}
		if rec.Decision != nil {
			var a struct {
				Action  string
				Content struct{ Approved *bool }
			}
			if json.Unmarshal(responses[keyForm], &a) != nil || a.Action != "accept" || a.Content.Approved == nil || *a.Content.Approved != rec.Decision.Approved {
				t.Errorf("%q decided %+v", answers, rec.Decision)
			}
		}
	})
}
