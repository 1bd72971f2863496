package contract

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

// timestamp is an instant on the wire: RFC 3339, UTC, whole seconds.
type timestamp time.Time

func (t timestamp) String() string { return time.Time(t).UTC().Format(time.RFC3339) }

// MarshalJSON implements json.Marshaler.
func (t timestamp) MarshalJSON() ([]byte, error) { return strconv.AppendQuote(nil, t.String()), nil }

// video is what a finished render gave. All members are empty before.
type video struct {
	VideoURI               string     `json:"video_uri,omitempty"`
	DownloadURL            string     `json:"download_url,omitempty"`
	DownloadExpiresAt      *timestamp `json:"download_expires_at,omitempty"`
	FilePath               string     `json:"file_path,omitempty"`
	PreviewPath            string     `json:"preview_path,omitempty"`
	DurationSeconds        *float64   `json:"duration_seconds,omitempty"`
	SizeBytes              int64      `json:"size_bytes,omitempty"`
	SHA256                 string     `json:"sha256,omitempty"`
	Resolution             string     `json:"resolution,omitempty"`
	Width                  int        `json:"width,omitempty"`
	Height                 int        `json:"height,omitempty"`
	FrameCount             int64      `json:"frame_count,omitempty"`
	VideoCodec             string     `json:"video_codec,omitempty"`
	AudioCodec             string     `json:"audio_codec,omitempty"`
	WatermarkApplied       *bool      `json:"watermark_applied,omitempty"`
	Encoder                string     `json:"encoder,omitempty"`
	HardwareFallbackReason string     `json:"hardware_fallback_reason,omitempty"`
	SegmentsTotal          *int       `json:"segments_total,omitempty"`
	SegmentsReused         *int       `json:"segments_reused,omitempty"`
}

// Status is a render as the status tool and GET /v1/renders/{id} show it.
type Status struct {
	RenderID            render.ID      `json:"render_id"`
	State               render.State   `json:"state"`
	Terminal            bool           `json:"terminal"`
	TerminalStates      []render.State `json:"terminal_states"`
	StatusMessage       string         `json:"status_message"`
	LogURI              string         `json:"log_uri"`
	ExpiresAt           timestamp      `json:"expires_at"`
	PollAfterMS         int64          `json:"poll_after_ms,omitempty"`
	Progress            *float64       `json:"progress,omitempty"`
	Stage               render.Stage   `json:"stage,omitempty"`
	FramesDone          *int64         `json:"frames_done,omitempty"`
	FramesTotal         *int64         `json:"frames_total,omitempty"`
	FPS                 *float64       `json:"fps,omitempty"`
	Speed               *float64       `json:"speed,omitempty"`
	ETASeconds          *float64       `json:"eta_seconds,omitempty"`
	SegmentsDone        *int           `json:"segments_done,omitempty"`
	Attempt             *int           `json:"attempt,omitempty"`
	QueuePosition       *int           `json:"queue_position,omitempty"`
	LogTail             []string       `json:"log_tail,omitempty"`
	WatermarkPreviewURI string         `json:"watermark_preview_uri,omitempty"`
	ApprovalExpiresAt   *timestamp     `json:"approval_expires_at,omitempty"`
	ApprovalURL         string         `json:"approval_url,omitempty"`
	FollowUp            *NextStep      `json:"follow_up,omitempty"`
	video
	Error *Envelope `json:"error,omitempty"`
}

// accepted answers a render call that cannot answer with a task.
type accepted struct {
	Status      string       `json:"status"`
	RenderID    render.ID    `json:"render_id"`
	State       render.State `json:"state"`
	PollAfterMS int64        `json:"poll_after_ms"`
	LogURI      string       `json:"log_uri"`
	ExpiresAt   timestamp    `json:"expires_at"`
	FollowUp    *NextStep    `json:"follow_up"`
}

// success is the result of a finished render.
type success struct {
	Status    string    `json:"status"`
	RenderID  render.ID `json:"render_id"`
	ExpiresAt timestamp `json:"expires_at"`
	video
}

// Status describes a render to its owner. It reads nothing but the view, and
// mints a download URL when there is a video.
func (s *Service) Status(ctx context.Context, v *farm.View) Status {
	rec, p := v.Record, v.Progress
	st := Status{
		RenderID: rec.ID, State: rec.State, Terminal: rec.State.Terminal(),
		TerminalStates: []render.State{render.StateSucceeded, render.StateFailed, render.StateCancelled},
		StatusMessage:  statusMessage(v),
		LogURI:         rec.ID.LogURI(), ExpiresAt: timestamp(rec.Expires()),
	}
	st.SegmentsTotal = p.SegmentsTotal
	if !st.Terminal {
		st.PollAfterMS = pollInterval(v).Milliseconds()
		st.Progress, st.Stage = p.Fraction, p.Stage
		st.FramesDone, st.FramesTotal, st.FPS, st.Speed = p.FramesDone, p.FramesTotal, rounded(p.FPS), rounded(p.Speed)
		st.SegmentsDone, st.Attempt = p.SegmentsDone, p.Attempt
		if p.ETA != nil {
			eta := math.Round(p.ETA.Seconds())
			st.ETASeconds = &eta
		}
		if rec.State == render.StateQueued {
			st.QueuePosition = p.QueuePosition
		}
	}
	st.LogTail = cleanLog(p.LogTail)
	switch rec.State {
	case render.StateAwaitingApproval:
		st.ApprovalURL = s.ApprovalURL(rec.ID)
		st.FollowUp = s.decisionCall(rec)
		if rec.Preview != nil {
			deadline := timestamp(rec.Preview.Deadline)
			st.WatermarkPreviewURI, st.ApprovalExpiresAt = rec.ID.PreviewURI(), &deadline
			st.PreviewPath = s.previewPath(ctx, rec)
		}
	case render.StateSucceeded:
		st.video = s.video(ctx, rec)
	case render.StateFailed:
		e := s.envelope(ctx, failureOf(rec), failure{tool: ToolStatus, record: rec, approvalURL: s.ApprovalURL(rec.ID)})
		st.Error = &e
		if len(st.LogTail) == 0 && rec.Failure != nil {
			st.LogTail = cleanLog(rec.Failure.LogTail)
		}
	case render.StateQueued, render.StateRendering, render.StateCancelled:
	}
	return st
}

// video describes the finished video. A download URL that cannot be minted is
// left out: the resource still answers.
func (s *Service) video(ctx context.Context, rec *render.Record) video {
	o := rec.Output
	if o == nil {
		return video{}
	}
	duration, applied := round3(o.Duration.Seconds()), o.WatermarkApplied
	total, reused := o.SegmentsTotal, o.SegmentsReused
	out := video{
		VideoURI: rec.ID.VideoURI(rec.Spec.Format), DurationSeconds: &duration, SizeBytes: o.Object.Size, SHA256: o.Object.SHA256,
		Resolution: string(rec.Spec.Resolution), Width: o.Width, Height: o.Height, FrameCount: o.Frames,
		VideoCodec: o.VideoCodec, AudioCodec: o.AudioCodec, WatermarkApplied: &applied,
		Encoder: o.Encoder, HardwareFallbackReason: o.FallbackReason, SegmentsTotal: &total, SegmentsReused: &reused,
	}
	if s.cfg.Local != nil {
		out.FilePath, out.PreviewPath = s.videoPath(ctx, rec), s.previewPath(ctx, rec)
		return out
	}
	if link, until, err := s.downloadURL(ctx, rec); err != nil {
		s.cfg.Logger.WarnContext(ctx, "no download URL", "render_id", rec.ID, "error", err)
	} else if link != "" {
		expires := timestamp(until)
		out.DownloadURL, out.DownloadExpiresAt = link, &expires
	}
	return out
}

// downloadURL mints a URL of the store when clients may use it (https, or this
// machine), else it is the one of the HTTP API.
func (s *Service) downloadURL(ctx context.Context, rec *render.Record) (string, time.Time, error) {
	c, err := s.cfg.Farm.Video(ctx, rec.Tenant, rec.ID)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("find video of %s: %w", rec.ID, err)
	}
	if c.Presign != nil {
		link, until, err := c.Presign(ctx, downloadTTL)
		if err == nil && s.reachableURL(link) {
			return link, until, nil
		}
		if err != nil {
			s.cfg.Logger.WarnContext(ctx, "presign failed", "render_id", rec.ID, "error", err)
		}
	}
	if link := s.publicURL("/v1/renders/" + string(rec.ID) + "/video"); safeURL(link) {
		return link, rec.Expires(), nil
	}
	return "", time.Time{}, nil
}

// reachableURL reports whether a URL of the store may be handed out. Its loopback
// address is this machine's, which is of use only to clients of a gateway that
// is reached there as well.
func (s *Service) reachableURL(link string) bool {
	u, err := url.Parse(link)
	if err != nil {
		return false
	}
	if isLoopback(u.Hostname()) {
		own, err := url.Parse(s.cfg.PublicURL)
		return err == nil && isLoopback(own.Hostname())
	}
	return safeURL(link)
}

// safeURL reports whether a URL may be handed out: https, or http to this very
// machine.
func safeURL(link string) bool {
	u, err := url.Parse(link)
	if err != nil {
		return false
	}
	return u.Scheme == "https" || u.Scheme == "http" && isLoopback(u.Hostname())
}

// failureOf is the client's error of a failed render.
func failureOf(rec *render.Record) *render.Error {
	if rec.Failure == nil {
		return render.AsError(errors.New("failed render without a failure"))
	}
	return rec.Failure.Error()
}

func cancelledError() *render.Error {
	return render.Errorf(render.CodeRenderCancelled, render.BlameCaller, "The render was cancelled; submit it again if it is still wanted.")
}

// pollInterval is how long a client should wait before it asks again.
func pollInterval(v *farm.View) time.Duration {
	const least, most = 2 * time.Second, 10 * time.Second
	switch {
	case v.Record.State == render.StateAwaitingApproval:
		return 30 * time.Second
	case v.Record.State == render.StateQueued:
		return 5 * time.Second
	case v.Progress.ETA != nil:
		return min(most, max(least, (*v.Progress.ETA/5).Truncate(time.Second)))
	default:
		return least
	}
}

// statusMessage tells in a sentence how far a render is. It holds no text of
// the caller or of the media.
func statusMessage(v *farm.View) string {
	rec, p := v.Record, v.Progress
	switch rec.State {
	case render.StateQueued:
		if p.QueuePosition != nil {
			return fmt.Sprintf("Queued at position %d.", *p.QueuePosition)
		}
		return "Queued."
	case render.StateRendering:
		return renderingMessage(rec, p)
	case render.StateAwaitingApproval:
		if rec.Preview == nil {
			return "Waiting for a decision on the watermark preview."
		}
		return fmt.Sprintf("Waiting until %s for a decision on the watermark preview %s.", timestamp(rec.Preview.Deadline), rec.ID.PreviewURI())
	case render.StateSucceeded:
		if o := rec.Output; o != nil {
			return fmt.Sprintf("Completed: %d×%d %s, %.1f s, %d bytes.", o.Width, o.Height, rec.Spec.Format, o.Duration.Seconds(), o.Object.Size)
		}
		return "Completed."
	case render.StateFailed:
		e := failureOf(rec)
		return fmt.Sprintf("Failed with %s: %s", e.Code, e.Message)
	default:
		return "Cancelled."
	}
}

func renderingMessage(rec *render.Record, p farm.Progress) string {
	switch {
	case rec.Step == render.StepPreview:
		return "Making the watermark preview."
	case rec.Step == render.StepPlan:
		return "Planning the render."
	case rec.Step == render.StepAssemble:
		return "Joining and checking the video."
	case p.Fraction == nil:
		return "Rendering."
	}
	parts := []string{fmt.Sprintf("%d%%", int(*p.Fraction*100))}
	if p.FramesDone != nil && p.FramesTotal != nil {
		parts[0] += fmt.Sprintf(" (frame %d/%d)", *p.FramesDone, *p.FramesTotal)
	}
	if p.SegmentsDone != nil && p.SegmentsTotal != nil && *p.SegmentsTotal > 1 {
		parts = append(parts, fmt.Sprintf("segment %d of %d", min(*p.SegmentsDone+1, *p.SegmentsTotal), *p.SegmentsTotal))
	}
	if p.FPS != nil {
		parts = append(parts, fmt.Sprintf("%.0f fps", *p.FPS))
	}
	if p.ETA != nil {
		parts = append(parts, fmt.Sprintf("about %.0f s left", p.ETA.Seconds()))
	}
	return "Rendering: " + strings.Join(parts, ", ") + "."
}

// Limits of log_tail.
const (
	maxLogLines = 20
	maxLogLine  = 300
)

// cleanLog bounds the encoder's lines and drops control characters. What the
// lines say was cleaned where they were read.
func cleanLog(lines []string) []string {
	if len(lines) > maxLogLines {
		lines = lines[len(lines)-maxLogLines:]
	}
	var out []string
	for _, l := range lines {
		l = strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return -1
			}
			return r
		}, l)
		if r := []rune(l); len(r) > maxLogLine {
			l = string(r[:maxLogLine])
		}
		out = append(out, l)
	}
	return out
}

// askAt is what to do when only a person may decide.
func askAt(page string) string { return "ask the user to decide at " + page + "." }

func (s *Service) pollCall(id render.ID) *NextStep {
	return &NextStep{Step: "poll_status", Tool: ToolStatus, Arguments: map[string]any{"render_id": string(id)}}
}

// acceptedCall is what to do after a call was accepted: look again.
func (s *Service) acceptedCall(v *farm.View) *NextStep {
	n := s.pollCall(v.Record.ID)
	if v.Record.State == render.StateAwaitingApproval {
		n.Step = "review_watermark"
		n.Alternative = "a person can look and decide at " + s.ApprovalURL(v.Record.ID) + "."
	}
	return n
}

// decisionCall is how the pause of a render ends: by a call, or by a person on
// the page, which the caller sees in the status.
func (s *Service) decisionCall(rec *render.Record) *NextStep {
	id := rec.ID
	if s.cfg.HumanApproval(rec.Tenant) {
		n := s.pollCall(id)
		n.Step, n.Alternative = "await_decision", askAt(s.ApprovalURL(id))
		return n
	}
	return &NextStep{Step: "decide_watermark", Tool: ToolApprove, Arguments: map[string]any{"render_id": string(id), "approved": true},
		Alternative: "if the user does not want the watermark as shown, send approved false, which ends the render; or a person decides at " + s.ApprovalURL(id) + "."}
}

func rounded(f *float64) *float64 {
	if f == nil {
		return nil
	}
	r := math.Round(*f*100) / 100
	return &r
}

func round3(f float64) float64 { return math.Round(f*1000) / 1000 }
