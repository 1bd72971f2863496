package render

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Format is the output container.
type Format string

// Formats of the contract.
const (
	FormatMP4  Format = "mp4"
	FormatWebM Format = "webm"
	FormatMOV  Format = "mov"
)

// Formats lists the formats in the order of the contract.
func Formats() []Format { return []Format{FormatMP4, FormatWebM, FormatMOV} }

// Codecs are what the streams of the container are, by the names that ffmpeg
// gives them: of the picture, of the sound, and of the software encoder of the
// picture.
func (f Format) Codecs() (video, audio, encoder string) {
	if f == FormatWebM {
		return "vp9", "opus", "libvpx-vp9"
	}
	return "h264", "aac", "libx264"
}

// MIMEType is the media type of the container.
func (f Format) MIMEType() string {
	switch f {
	case FormatWebM:
		return "video/webm"
	case FormatMOV:
		return "video/quicktime"
	default:
		return "video/mp4"
	}
}

// Resolution is the box that the picture fits into.
type Resolution string

// Resolutions of the contract.
const (
	Resolution720p  Resolution = "720p"
	Resolution1080p Resolution = "1080p"
	Resolution4K    Resolution = "4k"
)

// Box is the landscape box in pixels.
func (r Resolution) Box() (width, height int) {
	switch r {
	case Resolution1080p:
		return 1920, 1080
	case Resolution4K:
		return 3840, 2160
	default:
		return 1280, 720
	}
}

// Quality trades time and size against fidelity.
type Quality string

// Qualities of the contract.
const (
	QualityDraft    Quality = "draft"
	QualityStandard Quality = "standard"
	QualityHigh     Quality = "high"
)

// WatermarkMode says what is drawn.
type WatermarkMode string

// Watermark modes.
const (
	WatermarkText  WatermarkMode = "text"
	WatermarkImage WatermarkMode = "image"
)

// Position is where in the picture the watermark sits.
type Position string

// Positions of the contract.
const (
	PositionTopLeft     Position = "top_left"
	PositionTopRight    Position = "top_right"
	PositionBottomLeft  Position = "bottom_left"
	PositionBottomRight Position = "bottom_right"
	PositionCenter      Position = "center"
)

// Watermark is a normalised watermark: Mode is set and exactly one of Text and
// Image goes with it.
type Watermark struct {
	Mode     WatermarkMode `json:"mode"`
	Text     string        `json:"text"` // 1 to 200 characters, valid UTF-8 without NUL
	Image    AssetID       `json:"image"`
	Position Position      `json:"position"`
	Opacity  float64       `json:"opacity"` // 0 to 1
}

// Spec is a normalised render request: every default filled in. Its JSON is for
// Hash alone: a field that comes later is omitted when it has its default, so
// that the hashes of what could be asked before stay the same.
type Spec struct {
	Source     AssetID    `json:"source"`
	Format     Format     `json:"format"`
	Resolution Resolution `json:"resolution"`
	Quality    Quality    `json:"quality"`
	Watermark  *Watermark `json:"watermark"` // nil: none, and no pause
	// RequireApproval is false where there is no watermark, so that specs
	// which mean the same are equal.
	RequireApproval bool `json:"require_approval"`
	// Hardware is the farm's choice at submit, and not among the arguments.
	Hardware Hardware `json:"-"`
}

// NeedsApproval reports whether the render pauses for a person.
func (s Spec) NeedsApproval() bool { return s.Watermark != nil && s.RequireApproval }

// Hash is the SHA-256, in hex, of the spec's canonical JSON: the identity of
// "the same arguments" for an idempotency key.
func (s Spec) Hash() string {
	b, err := json.Marshal(s)
	if err != nil { // only a non-finite opacity, which Normalize refuses
		panic(fmt.Sprintf("render: marshal spec: %v", err))
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Request is a render request as a client sent it, before normalisation. Nil
// pointers are omitted arguments.
type Request struct {
	SourceAssetURI           string
	OutputFormat             string
	Resolution               string
	Quality                  *string
	Watermark                *WatermarkRequest
	RequireWatermarkApproval *bool
	IdempotencyKey           *string
}

// WatermarkRequest is the watermark object as sent.
type WatermarkRequest struct {
	Mode          *string
	Text          *string
	ImageAssetURI *string
	Position      *string
	Opacity       *float64
}

// MaxWatermarkText is the longest watermark text in characters.
const MaxWatermarkText = 200

// MaxIdempotencyKey is the longest idempotency key in characters.
const MaxIdempotencyKey = 128

// Normalize checks a request and fills in the defaults. Errors are *Error of
// code invalid_field or source_not_found (an asset URI that cannot be one of
// ours) and name the field.
func Normalize(r Request) (Spec, error) {
	var s Spec
	id, ok := ParseAssetURI(r.SourceAssetURI)
	switch {
	case r.SourceAssetURI == "":
		return s, InvalidField("source_asset_uri", "", "source_asset_uri is required: upload a video to /v1/assets and send the asset URI that the upload returned.")
	case !strings.HasPrefix(r.SourceAssetURI, assetURIPrefix):
		return s, InvalidField("source_asset_uri", "", "source_asset_uri must be a vidforge://assets/… URI; external URLs and paths are not fetched. Upload the file to /v1/assets first.")
	case !ok:
		return s, SourceNotFound("source_asset_uri", r.SourceAssetURI)
	}
	s.Source = id

	format, err := oneOf("output_format", &r.OutputFormat, "", string(FormatMP4), string(FormatWebM), string(FormatMOV))
	if err != nil {
		return s, err
	}
	s.Format = Format(format)

	res, err := oneOf("resolution", &r.Resolution, "", string(Resolution720p), string(Resolution1080p), string(Resolution4K))
	if err != nil {
		return s, err
	}
	s.Resolution = Resolution(res)

	q, err := oneOf("quality", r.Quality, string(QualityStandard), string(QualityDraft), string(QualityStandard), string(QualityHigh))
	if err != nil {
		return s, err
	}
	s.Quality = Quality(q)

	if r.Watermark != nil {
		w, err := normalizeWatermark(*r.Watermark)
		if err != nil {
			return s, err
		}
		s.Watermark = &w
		s.RequireApproval = r.RequireWatermarkApproval == nil || *r.RequireWatermarkApproval
	}
	if r.IdempotencyKey != nil {
		if err := checkText("idempotency_key", *r.IdempotencyKey, MaxIdempotencyKey); err != nil {
			return s, err
		}
	}
	return s, nil
}

// SourceNotFound is the one answer to an unknown and to a foreign asset.
func SourceNotFound(field, uri string) *Error {
	e := Errorf(CodeSourceNotFound, BlameCaller, "No asset of yours has this URI; it may have expired. Upload the file again and use the URI that the upload returned.")
	e.Details = &Details{Field: field, Reason: "unknown asset"}
	if len(uri) <= 128 && utf8.ValidString(uri) {
		e.Details.Value = uri
	}
	return e
}

func normalizeWatermark(r WatermarkRequest) (Watermark, error) {
	var w Watermark
	mode, err := oneOf("watermark.mode", r.Mode, "-", string(WatermarkText), string(WatermarkImage))
	if err != nil {
		return w, err
	}
	both := &Details{Fields: []string{"watermark.text", "watermark.image_asset_uri"}}
	switch {
	case r.Text != nil && r.ImageAssetURI != nil:
		e := Errorf(CodeInvalidField, BlameCaller, "watermark has both text and image_asset_uri; send one of them.")
		both.Reason = e.Message
		e.Details = both
		return w, e
	case r.Text == nil && r.ImageAssetURI == nil:
		e := Errorf(CodeInvalidField, BlameCaller, "watermark has neither text nor image_asset_uri; send one of them, or leave out watermark.")
		both.Reason = e.Message
		e.Details = both
		return w, e
	case r.Text != nil:
		if mode == string(WatermarkImage) {
			return w, InvalidField("watermark.mode", mode, `watermark.mode "image" needs watermark.image_asset_uri; for watermark.text leave mode out or send "text".`)
		}
		if err := checkText("watermark.text", *r.Text, MaxWatermarkText); err != nil {
			return w, err
		}
		if strings.TrimSpace(*r.Text) == "" {
			return w, InvalidField("watermark.text", "", "watermark.text has only white space; send something visible.")
		}
		w.Mode, w.Text = WatermarkText, *r.Text
	default:
		if mode == string(WatermarkText) {
			return w, InvalidField("watermark.mode", mode, `watermark.mode "text" needs watermark.text; for watermark.image_asset_uri leave mode out or send "image".`)
		}
		id, ok := ParseAssetURI(*r.ImageAssetURI)
		if !ok {
			if strings.HasPrefix(*r.ImageAssetURI, assetURIPrefix) {
				return w, SourceNotFound("watermark.image_asset_uri", *r.ImageAssetURI)
			}
			return w, InvalidField("watermark.image_asset_uri", "", "watermark.image_asset_uri must be a vidforge://assets/… URI; upload the image to /v1/assets first.")
		}
		w.Mode, w.Image = WatermarkImage, id
	}
	pos, err := oneOf("watermark.position", r.Position, string(PositionBottomRight),
		string(PositionTopLeft), string(PositionTopRight), string(PositionBottomLeft), string(PositionBottomRight), string(PositionCenter))
	if err != nil {
		return w, err
	}
	w.Position = Position(pos)
	w.Opacity = 1
	if r.Opacity != nil {
		if !(*r.Opacity >= 0 && *r.Opacity <= 1) { // also true for NaN
			return w, InvalidField("watermark.opacity", "", "watermark.opacity must be a number from 0 to 1.")
		}
		w.Opacity = *r.Opacity + 0 // makes -0 the 0 that it means
	}
	return w, nil
}

// oneOf checks an enum argument. omitted is the default; "" makes the argument
// required, and "-" leaves an omitted argument empty.
func oneOf(field string, v *string, omitted string, allowed ...string) (string, error) {
	if v == nil || (omitted == "" && *v == "") {
		switch omitted {
		case "":
			return "", InvalidField(field, "", fmt.Sprintf("%s is required: one of %s.", field, strings.Join(allowed, ", ")))
		case "-":
			return "", nil
		default:
			return omitted, nil
		}
	}
	if !slices.Contains(allowed, *v) {
		shown := *v
		if len(shown) > 64 || !utf8.ValidString(shown) {
			shown = ""
		}
		return "", InvalidField(field, shown, fmt.Sprintf("%s must be one of %s.", field, strings.Join(allowed, ", ")))
	}
	return *v, nil
}

func checkText(field, s string, most int) error {
	switch {
	case !utf8.ValidString(s):
		return InvalidField(field, "", field+" is not valid UTF-8.")
	case strings.ContainsRune(s, 0):
		return InvalidField(field, "", field+" holds a NUL character; remove it.")
	case s == "":
		return InvalidField(field, "", fmt.Sprintf("%s is empty; send 1 to %d characters.", field, most))
	case utf8.RuneCountInString(s) > most:
		return InvalidField(field, "", fmt.Sprintf("%s is longer than %d characters; shorten it.", field, most))
	}
	return nil
}
