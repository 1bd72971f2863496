package videorender

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/vidforge/vidforge/gateway/internal/contract"
	"github.com/vidforge/vidforge/pkg/render"
)

var assetIDPattern = regexp.MustCompile(`^as_[a-z0-9]{3,}$`)

// renderIDArguments are those of the tools that take a render's id alone, which
// has the same name behind.
func renderIDArguments(raw json.RawMessage) (json.RawMessage, error) {
	m, ok := open(raw)
	if !ok {
		return raw, nil
	}
	first := m.only("", "render_id")
	out, err := m.close()
	if err != nil {
		return raw, err
	}
	return out, first
}

// members are the arguments of a call, or of an object among them.
type members map[string]json.RawMessage

// open decodes an object. ok is false for anything else, which the tool behind
// refuses with its own words.
func open(raw json.RawMessage) (m members, ok bool) {
	err := json.Unmarshal(raw, &m)
	return m, err == nil && m != nil
}

// close encodes the object again.
func (m members) close() (json.RawMessage, error) {
	raw, err := json.Marshal(map[string]json.RawMessage(m))
	if err != nil {
		return nil, fmt.Errorf("encode arguments: %w", err)
	}
	return raw, nil
}

// only takes out what is not known, and returns the error of the first such
// argument. prefix is of names, such as "watermark.".
func (m members) only(prefix string, known ...string) error {
	var first error
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if slices.Contains(known, k) {
			continue
		}
		delete(m, k)
		if first == nil {
			first = contract.UnknownArgument(prefix, k, known)
		}
	}
	return first
}

// rename moves an asset's id to the argument that takes its URI.
func (m members) rename(prefix, from, to string) error {
	raw, ok := m[from]
	if !ok {
		return nil
	}
	delete(m, from)
	m[to] = raw
	id, ok := text(raw)
	switch {
	case !ok: // not a string: refused behind
	case !assetIDPattern.MatchString(id):
		delete(m, to)
		return render.InvalidField(prefix+from, "", prefix+from+" must be as_ and what follows vidforge://assets/a_ in the asset URI that the upload to /v1/assets returned.")
	default:
		m[to] = quote(assetURIPrefix + strings.TrimPrefix(id, assetIDPrefix))
	}
	return nil
}

func text(raw json.RawMessage) (s string, ok bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	return s, json.Unmarshal(raw, &s) == nil
}

func quote(s string) json.RawMessage {
	return json.RawMessage(`"` + s + `"`) // nothing in it needs an escape
}

// renderArguments translates the arguments of the render tool. Of several
// faults the first is told, and all that this contract knows of are left out.
func (t *translator) renderArguments(raw json.RawMessage) (json.RawMessage, error) {
	m, ok := open(raw)
	if !ok {
		return raw, nil
	}
	first := m.only("", "source_asset_id", "output_format", "resolution", "watermark", "require_watermark_approval", "idempotency_key")
	also := func(err error) {
		if first == nil {
			first = err
		}
	}
	if _, ok := m["source_asset_id"]; !ok {
		also(render.InvalidField("source_asset_id", "", "source_asset_id is required: upload a video to /v1/assets; its asset URI vidforge://assets/a_x is the source_asset_id as_x."))
	}
	also(m.rename("", "source_asset_id", "source_asset_uri"))
	for name, omitted := range map[string]string{"output_format": "mp4", "resolution": "1080p"} {
		if _, ok := m[name]; !ok {
			m[name] = quote(omitted)
		}
	}
	if w, ok := open(m["watermark"]); ok {
		also(w.watermark())
		var err error
		if m["watermark"], err = w.close(); err != nil {
			return raw, err
		}
		if mode, _ := text(w["mode"]); mode == "none" {
			delete(m, "watermark")
		}
	}
	out, err := m.close()
	if err != nil {
		return raw, err
	}
	return out, first
}

// watermark translates the arguments of a watermark in place.
func (m members) watermark() error {
	mode, isText := text(m["mode"])
	if mode == "none" {
		return nil // ignores the rest
	}
	first := m.only("watermark.", "mode", "text", "image_asset_id", "position")
	also := func(err error) {
		if first == nil {
			first = err
		}
	}
	switch {
	case m["mode"] == nil:
		also(render.InvalidField("watermark.mode", "", "watermark.mode is required: one of none, text, image."))
	case isText && mode != string(render.WatermarkText) && mode != string(render.WatermarkImage):
		delete(m, "mode")
		also(render.InvalidField("watermark.mode", contract.Clip(mode, 64), "watermark.mode must be one of none, text, image."))
	}
	also(m.rename("watermark.", "image_asset_id", "image_asset_uri"))
	return first
}

// approveArguments translates the arguments of the approve tool.
func approveArguments(raw json.RawMessage) (json.RawMessage, error) {
	m, ok := open(raw)
	if !ok {
		return raw, nil
	}
	first := m.only("", "render_id", "approved", "feedback")
	if v, ok := m["feedback"]; ok {
		delete(m, "feedback")
		m["note"] = v
	}
	out, err := m.close()
	if err != nil {
		return raw, err
	}
	return out, first
}
