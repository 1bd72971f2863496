package videorender

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/vidforge/vidforge/gateway/internal/contract"
	"github.com/vidforge/vidforge/pkg/render"
)

const someAsset = "as_abcdefghijklmnopqrstuvwxyz"

// FuzzArguments: whatever is sent, what goes on is JSON, errors are classified
// and named in this contract's words, and arguments that are translated there
// and back are the same.
func FuzzArguments(f *testing.F) {
	for _, s := range []string{
		`{}`, `[]`, `null`, `{"source_asset_id":"` + someAsset + `"}`, `{"source_asset_id":"as_../x","resolution":null}`,
		`{"source_asset_id":"` + someAsset + `","watermark":{"mode":"text","text":"vidforge://assets/a_b source_asset_uri \ud83c\udfac"}}`,
		`{"source_asset_id":"` + someAsset + `","watermark":{"mode":"image","image_asset_id":"` + someAsset + `","position":"center"},"idempotency_key":"k"}`,
		`{"source_asset_id":"` + someAsset + `","watermark":{"mode":"none","x":[]},"quality":"high"}`, `{"watermark":{"mode":1e999}}`,
		`{"render_id":"task_abcdefghijklmnopqrstuvwxyz","approved":true,"feedback":"note","note":"x"}`, "{\"source_asset_id\":\"\xff\"}", `{"a":`,
	} {
		f.Add([]byte(s))
	}
	tr := newTranslator()
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, tool := range tr.tools() {
			out, err := tool.Arguments(raw)
			if json.Valid(raw) && !json.Valid(out) {
				t.Fatalf("%s %q becomes %q", tool.Name, raw, out)
			}
			var e *render.Error
			if err != nil && (!errors.As(err, &e) || e.Code != render.CodeInvalidField || e.Details.Field == "" || !utf8.ValidString(e.Message)) {
				t.Fatalf("%s %q: %v", tool.Name, raw, err)
			}
			var args map[string]any
			if err != nil || json.Unmarshal(out, &args) != nil || args == nil {
				continue
			}
			back, err := json.Marshal(tr.next(&contract.NextStep{Tool: tool.As, Arguments: args}).Arguments)
			if err != nil {
				t.Fatal(err)
			}
			again, err := tool.Arguments(back)
			var second map[string]any
			if err != nil && !strings.Contains(err.Error(), "watermark.mode") { // a mode that is no text stays wrong
				t.Fatalf("%s %q comes back as %s, which fails: %v", tool.Name, raw, back, err)
			}
			if err == nil && (json.Unmarshal(again, &second) != nil || !sameJSON(args, second)) {
				t.Fatalf("%s %q is %s, and after a round %s", tool.Name, raw, out, again)
			}
		}
	})
}

func sameJSON(a, b any) bool {
	x, err := json.Marshal(a)
	y, other := json.Marshal(b)
	return err == nil && other == nil && string(x) == string(y)
}

// FuzzParse: what is accepted is exactly what is told.
func FuzzParse(f *testing.F) {
	id := render.ID(exampleID)
	tr := newTranslator()
	for _, s := range []string{tr.text(id.VideoURI(render.FormatMP4)), tr.text(id.PreviewURI()), "video://renders/task_*/output", "video://renders//output", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		r, ok := parse(uri)
		if !ok {
			return
		}
		if again := map[contract.ResourceKind]string{contract.KindVideo: tr.text(r.ID.VideoURI(render.FormatMP4)), contract.KindPreview: tr.text(r.ID.PreviewURI())}[r.Kind]; again != uri {
			t.Errorf("%q parses as %q", uri, again)
		}
	})
}
