package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/vidforge/vidforge/pkg/render"
)

// arguments decodes the arguments of a call member by member, so that every
// fault is an invalid_field error that names the argument. Its getters return
// nil for what was left out, and remember the first error.
type arguments struct {
	prefix string // of field names, such as "watermark."
	raw    map[string]json.RawMessage
	err    *error
}

// parseArguments opens the arguments object of a tool that knows these names.
func parseArguments(raw json.RawMessage, known ...string) arguments {
	a := arguments{err: new(error)}
	if len(raw) == 0 {
		return a
	}
	return a.open(raw, known)
}

func (a arguments) open(raw json.RawMessage, known []string) arguments {
	name := strings.TrimSuffix(a.prefix, ".")
	what := "arguments"
	if name != "" {
		what = name
	}
	if kindOf(raw) != "object" || json.Unmarshal(raw, &a.raw) != nil {
		a.fail(render.InvalidField(what, "", fmt.Sprintf("%s must be an object, not %s.", what, kindOf(raw))))
		return a
	}
	for _, k := range sortedKeys(a.raw) {
		if !slices.Contains(known, k) {
			a.fail(UnknownArgument(a.prefix, k, known))
		}
	}
	return a
}

// UnknownArgument is the error of an argument that a tool does not have. prefix
// is of names, such as "watermark.".
func UnknownArgument(prefix, name string, known []string) *render.Error {
	shown := prefix + Clip(name, 64)
	if name == "" {
		shown = prefix + `""`
	}
	return render.InvalidField(shown, "", fmt.Sprintf("There is no argument %s; remove it. Known are %s.", shown, prefix+strings.Join(known, ", "+prefix)))
}

func (a arguments) fail(err error) {
	if *a.err == nil {
		*a.err = err
	}
}

// get returns a member of the wanted JSON type, nil when it was left out.
func (a arguments) get(name, kind string) json.RawMessage {
	raw, ok := a.raw[name]
	if !ok {
		return nil
	}
	if got := kindOf(raw); got != kind {
		hint := ""
		if got == "null" {
			hint = " Leave it out for its default."
		}
		a.fail(render.InvalidField(a.prefix+name, "", fmt.Sprintf("%s must be %s, not %s.%s", a.prefix+name, article(kind), article(got), hint)))
		return nil
	}
	return raw
}

func (a arguments) str(name string) *string {
	raw := a.get(name, "string")
	if raw == nil {
		return nil
	}
	s, ok := decodeString(raw)
	if !ok {
		a.fail(render.InvalidField(a.prefix+name, "", a.prefix+name+" is not valid UTF-8."))
		return nil
	}
	return &s
}

func (a arguments) boolean(name string) *bool {
	raw := a.get(name, "boolean")
	if raw == nil {
		return nil
	}
	v := raw[0] == 't'
	return &v
}

func (a arguments) number(name string) *float64 {
	raw := a.get(name, "number")
	if raw == nil {
		return nil
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil { // 1e999
		a.fail(render.InvalidField(a.prefix+name, "", a.prefix+name+" is out of range."))
		return nil
	}
	return &v
}

// object opens a member that is itself an object. ok is false when it was left
// out.
func (a arguments) object(name string, known ...string) (arguments, bool) {
	raw := a.get(name, "object")
	if raw == nil {
		return arguments{}, false
	}
	return arguments{prefix: a.prefix + name + ".", err: a.err}.open(raw, known), true
}

// need fails for a required argument that was left out.
func (a arguments) need(name, hint string) {
	if _, ok := a.raw[name]; !ok {
		a.fail(render.InvalidField(a.prefix+name, "", a.prefix+name+" is required: "+hint))
	}
}

// renderRequest decodes the arguments of the render tool.
func renderRequest(raw json.RawMessage) (render.Request, error) {
	a := parseArguments(raw, "source_asset_uri", "output_format", "resolution", "quality", "watermark", "require_watermark_approval", "idempotency_key")
	r := render.Request{
		SourceAssetURI:           deref(a.str("source_asset_uri")),
		OutputFormat:             deref(a.str("output_format")),
		Resolution:               deref(a.str("resolution")),
		Quality:                  a.str("quality"),
		RequireWatermarkApproval: a.boolean("require_watermark_approval"),
		IdempotencyKey:           a.str("idempotency_key"),
	}
	if w, ok := a.object("watermark", "mode", "text", "image_asset_uri", "position", "opacity"); ok {
		r.Watermark = &render.WatermarkRequest{
			Mode: w.str("mode"), Text: w.str("text"), ImageAssetURI: w.str("image_asset_uri"),
			Position: w.str("position"), Opacity: w.number("opacity"),
		}
	}
	return r, *a.err
}

// renderID decodes a render_id argument. An id that cannot be one of ours gets
// the answer of an unknown one.
func (a arguments) renderID() render.ID {
	a.need("render_id", "the id that "+ToolRender+" returned.")
	s := a.str("render_id")
	if s == nil {
		return ""
	}
	id, ok := render.ParseID(*s)
	if !ok {
		a.fail(RenderNotFound())
	}
	return id
}

// RenderNotFound is the one answer to unknown, foreign and malformed ids.
func RenderNotFound() *render.Error {
	e := render.Errorf(render.CodeRenderNotFound, render.BlameCaller, "No render of yours has this id; it may be past its retention of 7 days.")
	e.Details = &render.Details{Field: "render_id", Reason: "unknown render"}
	return e
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// kindOf names the JSON type of a value.
func kindOf(raw json.RawMessage) string {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	default:
		return "number"
	}
}

func article(kind string) string {
	switch kind {
	case "object", "array":
		return "an " + kind
	case "null", "nothing":
		return kind
	default:
		return "a " + kind
	}
}

// decodeString decodes a JSON string. encoding/json replaces invalid UTF-8 and
// lone surrogates silently; here they are refused, so that what is drawn is
// what was sent.
func decodeString(raw json.RawMessage) (string, bool) {
	if !utf8.Valid(raw) {
		return "", false
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", false
	}
	if strings.ContainsRune(s, utf8.RuneError) && loneSurrogate(raw) {
		return "", false
	}
	return s, true
}

// loneSurrogate finds a \u escape of half a surrogate pair in a JSON string.
func loneSurrogate(raw []byte) bool {
	unit := func(i int) (uint64, bool) {
		if i+6 > len(raw) || raw[i] != '\\' || raw[i+1] != 'u' {
			return 0, false
		}
		v, err := strconv.ParseUint(string(raw[i+2:i+6]), 16, 16)
		return v, err == nil
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		v, ok := unit(i)
		switch {
		case !ok:
			i++ // another escape of two characters
		case v >= 0xDC00 && v <= 0xDFFF:
			return true
		case v >= 0xD800 && v <= 0xDBFF:
			if low, ok := unit(i + 6); !ok || low < 0xDC00 || low > 0xDFFF {
				return true
			}
			i += 11
		default:
			i += 5
		}
	}
	return false
}

// Clip shortens a caller's text for a message and keeps it printable.
func Clip(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
