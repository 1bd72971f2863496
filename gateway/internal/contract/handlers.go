package contract

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

// maxNote is the longest note of a decision in characters.
const maxNote = 500

// renderTool submits a render. A caller that declared tasks gets one; any other
// gets accepted or, for a repeated idempotency key, what the render became.
func (s *Service) renderTool(ctx context.Context, c mcptask.Caller, req *mcp.CallToolRequest) (*mcp.CallToolResult, *mcptask.Task, error) {
	return s.run(ctx, c, req, func(ctx context.Context, in *call) (*mcp.CallToolResult, *mcptask.Task, error) {
		r, err := s.renderRequest(ctx, in)
		if err != nil {
			return nil, nil, err
		}
		sub := farm.Submission{Request: r, IdempotencyWindow: s.dialect.IdempotencyWindow, Trace: telemetry.TraceOf(ctx)}
		if c.Task != nil {
			sub.TaskRetention = c.Task.TTL
		}
		v, _, err := s.cfg.Farm.Submit(ctx, in.Tenant, sub)
		if err != nil {
			return nil, nil, err
		}
		in.record = v.Record
		if c.Tasks() {
			task, err := s.task(ctx, c, v)
			return nil, task, err
		}
		switch v.Record.State {
		case render.StateSucceeded:
			res, err := s.success(ctx, v.Record)
			return res, nil, err
		case render.StateFailed:
			return nil, nil, failureOf(v.Record)
		case render.StateCancelled:
			return nil, nil, cancelledError()
		default:
		}
		res, err := Structured(accepted{
			Status: "accepted", RenderID: v.Record.ID, State: v.Record.State, PollAfterMS: pollInterval(v).Milliseconds(),
			LogURI: v.Record.ID.LogURI(), ExpiresAt: timestamp(v.Record.Expires()), FollowUp: s.acceptedCall(v),
		})
		return res, nil, err
	})
}

// success is the result of a finished render.
func (s *Service) success(ctx context.Context, rec *render.Record) (*mcp.CallToolResult, error) {
	v := s.video(ctx, rec)
	return Structured(success{Status: "completed", RenderID: rec.ID, ExpiresAt: timestamp(rec.Expires()), video: v}, s.videoContent(ctx, rec, v)...)
}

// videoLink points at the finished video.
func videoLink(rec *render.Record) *mcp.ResourceLink {
	size := rec.Output.Object.Size
	return &mcp.ResourceLink{
		URI: rec.ID.VideoURI(rec.Spec.Format), Name: videoName(rec), Title: "Rendered video",
		Description: fmt.Sprintf("%d×%d %s, %.1f s", rec.Output.Width, rec.Output.Height, rec.Spec.Format, rec.Output.Duration.Seconds()),
		MIMEType:    rec.Spec.Format.MIMEType(), Size: &size,
		Annotations: &mcp.Annotations{Audience: []mcp.Role{"user"}, Priority: 0.9, LastModified: timestamp(rec.Ended).String()},
	}
}

// videoName is the source's name with the extension of the output.
func videoName(rec *render.Record) string {
	base := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == '/' || r == '\\' {
			return -1
		}
		return r
	}, strings.TrimSuffix(rec.Source.Name, path.Ext(rec.Source.Name)))
	if base == "" {
		base = "final"
	}
	return base + "." + string(rec.Spec.Format)
}

func idArgument(raw json.RawMessage) (render.ID, error) {
	a := parseArguments(raw, "render_id")
	id := a.renderID()
	return id, *a.err
}

func (s *Service) status(ctx context.Context, in *call) (*mcp.CallToolResult, error) {
	id, err := idArgument(in.raw)
	if err != nil {
		return nil, err
	}
	v, err := s.cfg.Farm.Get(ctx, in.Tenant, id)
	if err != nil {
		return nil, err
	}
	var more []mcp.Content
	st := s.Status(ctx, v)
	switch v.Record.State {
	case render.StateAwaitingApproval:
		if img := s.previewImage(ctx, v.Record); img != nil {
			more = append(more, img)
		}
	case render.StateSucceeded:
		if v.Record.Output != nil {
			more = s.videoContent(ctx, v.Record, st.video)
		}
	default:
	}
	return Structured(st, more...)
}

// previewImage is the preview as an image block, nil when it cannot be read:
// the status holds its URI as well.
func (s *Service) previewImage(ctx context.Context, rec *render.Record) *mcp.ImageContent {
	b, err := s.preview(ctx, rec.Tenant, rec.ID, maxPreviewWidth)
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "no preview image", "render_id", rec.ID, "error", err)
		return nil
	}
	return &mcp.ImageContent{Data: b, MIMEType: "image/png"}
}

// preview reads the preview at most so wide.
func (s *Service) preview(ctx context.Context, tenant render.Tenant, id render.ID, width int) ([]byte, error) {
	c, err := s.cfg.Farm.Preview(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	return s.previews.scaled(ctx, c, width)
}

type approval struct {
	id       render.ID
	approved bool
	note     string
}

func approveArguments(raw json.RawMessage) (approval, error) {
	a := parseArguments(raw, "render_id", "approved", "note")
	out := approval{id: a.renderID()}
	a.need("approved", "true renders the video, false ends the render.")
	if b := a.boolean("approved"); b != nil {
		out.approved = *b
	}
	if n := a.str("note"); n != nil {
		out.note = *n
		if err := CheckNote("note", *n); err != nil {
			a.fail(err)
		}
	}
	return out, *a.err
}

// CheckNote refuses notes that are too long or hold NUL.
func CheckNote(field, note string) error {
	switch {
	case utf8.RuneCountInString(note) > maxNote:
		return render.InvalidField(field, "", fmt.Sprintf("%s is longer than %d characters; shorten it.", field, maxNote))
	case strings.ContainsRune(note, 0):
		return render.InvalidField(field, "", field+" holds a NUL character; remove it.")
	}
	return nil
}

func (s *Service) approve(ctx context.Context, in *call) (*mcp.CallToolResult, error) {
	a, err := approveArguments(in.raw)
	if err != nil {
		return nil, err
	}
	in.id = a.id
	v, err := s.cfg.Farm.Decide(ctx, in.Tenant, a.id, render.Decision{Approved: a.approved, Note: a.note, By: in.Subject, Channel: render.ChannelTool})
	if err != nil {
		return nil, err
	}
	out := struct {
		RenderID    render.ID    `json:"render_id"`
		Decision    string       `json:"decision"`
		State       render.State `json:"state"`
		PollAfterMS int64        `json:"poll_after_ms,omitempty"`
		FollowUp    *NextStep    `json:"follow_up"`
	}{RenderID: a.id, Decision: decisionWord(a.approved), State: v.Record.State, FollowUp: s.pollCall(a.id)}
	switch {
	case !v.Record.State.Terminal():
		out.PollAfterMS = pollInterval(v).Milliseconds()
	case !a.approved:
		out.FollowUp = repair(failureOf(v.Record), failure{tool: in.tool, record: v.Record})
	}
	return Structured(out)
}

func decisionWord(approved bool) string {
	if approved {
		return "approved"
	}
	return "rejected"
}

func (s *Service) cancel(ctx context.Context, in *call) (*mcp.CallToolResult, error) {
	id, err := idArgument(in.raw)
	if err != nil {
		return nil, err
	}
	v, err := s.cfg.Farm.Cancel(ctx, in.Tenant, id, in.Subject)
	if err != nil {
		return nil, err
	}
	state := string(v.Record.State)
	if !v.Record.State.Terminal() {
		state = "cancelling"
	}
	return Structured(struct {
		RenderID     render.ID `json:"render_id"`
		Acknowledged bool      `json:"acknowledged"`
		State        string    `json:"state"`
	}{id, true, state})
}

func (s *Service) validate(ctx context.Context, in *call) (*mcp.CallToolResult, error) {
	r, err := s.renderRequest(ctx, in)
	if err != nil {
		return nil, err
	}
	v, err := s.cfg.Farm.Validate(ctx, in.Tenant, r)
	if err != nil {
		return nil, err
	}
	type output struct {
		Width           int     `json:"width"`
		Height          int     `json:"height"`
		FrameRate       float64 `json:"frame_rate"`
		DurationSeconds float64 `json:"duration_seconds"`
		VideoCodec      string  `json:"video_codec"`
		AudioCodec      string  `json:"audio_codec,omitempty"`
	}
	out := struct {
		Valid            bool           `json:"valid"`
		Spec             map[string]any `json:"spec"`
		Output           output         `json:"output"`
		EstimatedSeconds *float64       `json:"estimated_seconds,omitempty"`
		Warnings         []string       `json:"warnings"`
	}{
		Valid: true, Spec: specArguments(v.Spec), Warnings: v.Warnings,
		Output: output{
			Width: v.Plan.Width, Height: v.Plan.Height, FrameRate: round3(v.Plan.FrameRate.Float()),
			DurationSeconds: round3(v.Duration.Seconds()), VideoCodec: v.Plan.VideoCodec, AudioCodec: v.Plan.AudioCodec,
		},
	}
	if out.Warnings == nil {
		out.Warnings = []string{}
	}
	if v.Estimate != nil {
		seconds := round3(v.Estimate.Seconds())
		out.EstimatedSeconds = &seconds
	}
	return Structured(out)
}

func probeURI(raw json.RawMessage) (string, error) {
	a := parseArguments(raw, "asset_uri")
	a.need("asset_uri", "the URI that the upload returned.")
	return deref(a.str("asset_uri")), *a.err
}

func probeArgument(raw json.RawMessage) (render.AssetID, error) {
	uri, err := probeURI(raw)
	if err != nil {
		return "", err
	}
	return probedURI(uri)
}

func probedURI(uri string) (render.AssetID, error) {
	id, ok := render.ParseAssetURI(uri)
	switch {
	case ok:
		return id, nil
	case strings.HasPrefix(uri, "vidforge://assets/"):
		return "", render.SourceNotFound("asset_uri", uri)
	default:
		return "", render.InvalidField("asset_uri", "", "asset_uri must be a vidforge://assets/… URI, as the upload returned it.")
	}
}

func (s *Service) probe(ctx context.Context, in *call) (*mcp.CallToolResult, error) {
	id, err := s.probedAsset(ctx, in)
	if err != nil {
		return nil, err
	}
	a, err := s.cfg.Farm.Asset(ctx, in.Tenant, id)
	if err != nil {
		return nil, assetField(err, id)
	}
	out, err := NewAsset(a)
	if err != nil {
		return nil, err
	}
	return Structured(out)
}

// assetField names the argument in an error of the farm, which knows none.
func assetField(err error, id render.AssetID) error {
	if render.CodeOf(err) == render.CodeSourceNotFound {
		return render.SourceNotFound("asset_uri", id.URI())
	}
	return err
}

// Asset is an asset as the probe tool and the HTTP API show it.
type Asset struct {
	AssetURI        string    `json:"asset_uri"`
	Name            string    `json:"name"`
	MIMEType        string    `json:"mime_type"`
	SizeBytes       int64     `json:"size_bytes"`
	SHA256          string    `json:"sha256"`
	Container       string    `json:"container"`
	DurationSeconds *float64  `json:"duration_seconds,omitempty"`
	Streams         []stream  `json:"streams"`
	Renderable      bool      `json:"renderable"`
	Reason          string    `json:"reason,omitempty"`
	ExpiresAt       timestamp `json:"expires_at"`
}

type stream struct {
	Kind              string  `json:"kind"`
	Codec             string  `json:"codec"`
	Width             int     `json:"width,omitempty"`
	Height            int     `json:"height,omitempty"`
	FrameRate         float64 `json:"frame_rate,omitempty"`
	VariableFrameRate *bool   `json:"variable_frame_rate,omitempty"`
	Rotation          *int    `json:"rotation,omitempty"`
	PixelAspect       string  `json:"pixel_aspect,omitempty"`
	BitDepth          int     `json:"bit_depth,omitempty"`
	HDR               string  `json:"hdr,omitempty"`
	Channels          int     `json:"channels,omitempty"`
	SampleRate        int     `json:"sample_rate,omitempty"`
}

// AssetNotReady is the error of an asset that is not probed yet.
func AssetNotReady(field string) *render.Error {
	e := render.Errorf(render.CodeAssetNotReady, render.BlameCaller, "The asset is being looked at; ask again in a moment.")
	e.Details = &render.Details{Field: field, Reason: "not probed yet"}
	return e
}

// NewAsset describes a probed asset: asset_not_ready for any other.
func NewAsset(a *render.Asset) (Asset, error) {
	f := a.Facts
	if a.State != render.AssetReady || f == nil {
		e := AssetNotReady("asset_uri")
		if a.State == render.AssetPending {
			e.Message = "The upload of this asset is not finalised; it is looked at once POST /v1/assets/{id}:finalize was called."
			e.Details.Reason = "not finalised"
		}
		return Asset{}, e
	}
	out := Asset{
		AssetURI: a.ID.URI(), Name: a.Name, MIMEType: a.MIMEType, SizeBytes: a.Object.Size, SHA256: a.Object.SHA256,
		Container: f.Container, Streams: []stream{}, Renderable: f.Renderable, Reason: f.Reason, ExpiresAt: timestamp(a.Expires),
	}
	if f.Duration > 0 {
		d := round3(f.Duration.Seconds())
		out.DurationSeconds = &d
	}
	for _, st := range f.Streams {
		v := stream{Kind: st.Kind, Codec: st.Codec}
		switch st.Kind {
		case "video":
			vfr, rotation := st.VariableFrameRate, st.Rotation
			v.Width, v.Height, v.FrameRate, v.VariableFrameRate, v.Rotation = st.Width, st.Height, round3(st.FrameRate.Float()), &vfr, &rotation
			v.BitDepth, v.HDR = st.BitDepth, st.HDR
			if !st.PixelAspect.IsZero() {
				v.PixelAspect = fmt.Sprintf("%d:%d", st.PixelAspect.Num, st.PixelAspect.Den)
			}
		case "audio":
			v.Channels, v.SampleRate = st.Channels, st.SampleRate
		}
		out.Streams = append(out.Streams, v)
	}
	return out, nil
}
