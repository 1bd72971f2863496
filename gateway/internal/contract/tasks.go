package contract

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
)

// Keys of the input requests.
const (
	keyForm = "watermark-approval-1"
	keyURL  = "watermark-approval-1-url"
)

// store shows renders as tasks.
type store struct{ *Service }

var _ mcptask.Store = store{}

// find reads the render behind a task id.
func (s store) find(ctx context.Context, c mcptask.Caller, method, id string) (auth.Request, *farm.View, error) {
	r, _ := c.Principal.(auth.Request)
	if need := methodScopes(method); !r.HasAny(need...) {
		return r, nil, s.rpc(ctx, r, InsufficientScope(need, s.Endpoint()), failure{})
	}
	rid, ok := render.ParseID(id)
	if !ok || r.Tenant == "" {
		return r, nil, s.rpc(ctx, r, taskNotFound(), failure{})
	}
	v, err := s.cfg.Farm.Get(ctx, r.Tenant, rid)
	if err != nil {
		return r, nil, s.rpc(ctx, r, err, failure{})
	}
	if v.Record.TaskExpired(s.cfg.Now()) {
		e := render.Errorf(render.CodeTaskExpired, render.BlameCaller, "The task's %.4g hours after its end are over; the render is still there until %s.", v.Record.TaskFor().Hours(), timestamp(v.Record.Expires()))
		return r, nil, s.rpc(ctx, r, e, failure{id: rid})
	}
	return r, v, nil
}

func taskNotFound() *render.Error {
	e := render.Errorf(render.CodeTaskNotFound, render.BlameCaller, "No task of yours has this id.")
	e.Details = &render.Details{Field: "taskId", Reason: "unknown task"}
	return e
}

// rpc is the JSON-RPC error of tasks/*.
func (s store) rpc(ctx context.Context, r auth.Request, err error, f failure) error {
	e := render.AsError(err)
	if e.Code == render.CodeRenderNotFound {
		e = taskNotFound()
	}
	return s.envelopeFor(ctx, r.ID, e, f).rpcError()
}

func (s store) Get(ctx context.Context, c mcptask.Caller, id string) (t *mcptask.Task, err error) {
	r, v, err := s.find(ctx, c, "tasks/get", id)
	if err != nil {
		return nil, err
	}
	err = s.guarded(ctx, "tasks/get", func() (err error) {
		t, err = s.task(ctx, c, v)
		return err
	})
	if err != nil {
		return nil, s.rpc(ctx, r, err, failure{id: v.Record.ID})
	}
	return t, nil
}

func (s store) Watch(ctx context.Context, c mcptask.Caller, id string, fn func(*mcptask.Task) error) error {
	r, v, err := s.find(ctx, c, "tasks/get", id)
	if err != nil {
		return err
	}
	err = s.cfg.Farm.Watch(ctx, r.Tenant, v.Record.ID, func(v *farm.View) error {
		t, err := s.task(ctx, c, v)
		if err != nil {
			return err
		}
		return fn(t)
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", id, err)
	}
	return nil
}

func (s store) Cancel(ctx context.Context, c mcptask.Caller, id string) error {
	r, v, err := s.find(ctx, c, "tasks/cancel", id)
	if err != nil {
		return err
	}
	if _, err := s.cfg.Farm.Cancel(ctx, r.Tenant, v.Record.ID, r.Subject); err != nil {
		return s.rpc(ctx, r, err, failure{id: v.Record.ID})
	}
	return nil
}

// Update takes answers to the input requests. What was answered before, or was
// never asked, is ignored; what is wrong in itself leaves its key open.
func (s store) Update(ctx context.Context, c mcptask.Caller, id string, responses map[string]json.RawMessage) error {
	r, v, err := s.find(ctx, c, "tasks/update", id)
	if err != nil {
		return err
	}
	open := map[string]bool{}
	for _, in := range v.Record.OpenInputs() {
		open[in.Key] = true
	}
	for _, key := range []string{keyForm, keyURL} {
		raw, ok := responses[key]
		if !ok || !open[key] {
			continue
		}
		if err := s.answer(ctx, r, v.Record.ID, key, raw); err != nil {
			return s.rpc(ctx, r, err, failure{})
		}
	}
	return nil
}

// answer applies one answer.
func (s store) answer(ctx context.Context, r auth.Request, id render.ID, key string, raw json.RawMessage) error {
	a := arguments{prefix: "inputResponses." + key + ".", err: new(error)}
	if kindOf(raw) != "object" || json.Unmarshal(raw, &a.raw) != nil {
		return render.InvalidField("inputResponses."+key, "", "An answer must be an object with an action.")
	}
	action := deref(a.str("action"))
	switch {
	case *a.err != nil:
		return *a.err
	case action == "accept" && key == keyForm:
		d, err := formDecision(a)
		if err != nil {
			return err
		}
		d.By, d.Channel = r.Subject, render.ChannelElicitation
		_, err = s.cfg.Farm.Decide(ctx, r.Tenant, id, d)
		switch render.CodeOf(err) {
		case render.CodeApprovalAlreadyRecorded, render.CodeApprovalNotPending:
			return nil // somebody was faster: the key is answered
		case render.CodeApprovalRequiresHuman: // since the form was sent
			_, err = s.cfg.Farm.AnswerInput(ctx, r.Tenant, id, key, action)
		}
		return err
	case action == "accept", action == "decline", action == "cancel":
		_, err := s.cfg.Farm.AnswerInput(ctx, r.Tenant, id, key, action)
		return err
	default:
		return render.InvalidField(a.prefix+"action", Clip(action, 32), "action must be accept, decline or cancel.")
	}
}

// formDecision checks the content of an accepted form against its schema.
func formDecision(a arguments) (render.Decision, error) {
	a.need("content", "an object with approved.")
	form, ok := a.object("content", "approved", "note")
	if !ok {
		return render.Decision{}, *a.err
	}
	form.need("approved", "true renders the video, false ends the render.")
	approved, note := form.boolean("approved"), deref(form.str("note"))
	if err := CheckNote(form.prefix+"note", note); err != nil {
		form.fail(err)
	}
	if *a.err != nil {
		return render.Decision{}, *a.err
	}
	return render.Decision{Approved: *approved, Note: note}, nil
}

// task shows a render as a task to this caller.
func (s *Service) task(ctx context.Context, c mcptask.Caller, v *farm.View) (*mcptask.Task, error) {
	rec := v.Record
	t := &mcptask.Task{
		ID: string(rec.ID), Status: mcptask.StatusWorking, StatusMessage: s.dialect.Text(statusMessage(v)),
		CreatedAt: rec.Created, LastUpdatedAt: rec.Updated, TTL: taskTTL(rec, s.cfg.Now()), PollInterval: pollInterval(v),
	}
	switch rec.State {
	case render.StateAwaitingApproval:
		return s.pausedTask(ctx, c, v, t)
	case render.StateSucceeded:
		res, err := s.rendered(ctx, c, rec)
		if err != nil {
			return nil, err
		}
		t.Status, t.Result = mcptask.StatusCompleted, res
	case render.StateFailed:
		env := s.envelope(ctx, failureOf(rec), failure{record: rec, approvalURL: s.ApprovalURL(rec.ID)})
		if env.Code == render.CodeInternalError {
			t.Status, t.Error = mcptask.StatusFailed, env.rpcError()
			break
		}
		t.Status, t.Result = mcptask.StatusCompleted, env.result()
	case render.StateCancelled:
		t.Status = mcptask.StatusCancelled
		t.Result = s.envelope(ctx, cancelledError(), failure{record: rec}).result()
	case render.StateQueued, render.StateRendering:
		if f := v.Progress.Fraction; f != nil {
			t.Progress = *f
		}
	}
	return t, nil
}

// failureMessage is the status message of a failed task of MCP 2025-11-25: some
// clients show nothing else.
func failureMessage(r *mcp.CallToolResult) string {
	env, ok := r.StructuredContent.(Envelope)
	if !ok {
		return ""
	}
	return fmt.Sprintf("Failed with %s: %s", env.Code, env.text())
}

// immediateResponse is what a host of MCP 2025-11-25 may tell its model while
// the render goes on.
func (s *Service) immediateResponse(t *mcptask.Task) string {
	return s.dialect.Text(fmt.Sprintf("The render %s is accepted and goes on as a task; its result follows when it ends, in 1 to 10 minutes. Do not render again. ", t.ID)) +
		s.dialect.Next(s.pollCall(render.ID(t.ID))).String()
}

// taskTTL leaves a task its retention after its end (24 hours unless its
// submitter asked for less), and at least as much from now while there is none.
func taskTTL(rec *render.Record, now time.Time) time.Duration {
	end := now
	if rec.State.Terminal() {
		end = rec.Ended
	}
	return max(end.Sub(rec.Created), 0) + rec.TaskFor()
}

// pausedTask asks for the decision in the mode that this request declared. A
// key's request is minted once, so that every poll sends the same bytes.
func (s *Service) pausedTask(ctx context.Context, c mcptask.Caller, v *farm.View, t *mcptask.Task) (*mcptask.Task, error) {
	t.Status, t.InputRequests = mcptask.StatusInputRequired, map[string]json.RawMessage{}
	key, params, err := s.elicitation(c.Capabilities, v.Record)
	if err != nil {
		return nil, err
	}
	if key != "" {
		in, found := inputOf(v.Record, key)
		if !found {
			if v, err = s.cfg.Farm.MintInput(ctx, v.Record.Tenant, v.Record.ID, render.InputRequest{Key: key, Params: params}); err != nil {
				return nil, err
			}
			if v.Record.State != render.StateAwaitingApproval {
				return s.task(ctx, c, v) // decided in the meantime
			}
			in, found = inputOf(v.Record, key)
		}
		if found && in.Answered == "" {
			t.InputRequests[key] = fmt.Appendf(nil, `{"method":"elicitation/create","params":%s}`, s.dialect.Text(string(in.Params)))
			t.LastUpdatedAt = v.Record.Updated
			return t, nil
		}
	}
	t.LastUpdatedAt = v.Record.Updated
	t.StatusMessage += " " + s.dialect.Next(s.decisionCall(v.Record)).String()
	return t, nil
}

func inputOf(rec *render.Record, key string) (render.InputRequest, bool) {
	for _, in := range rec.Inputs {
		if in.Key == key {
			return in, true
		}
	}
	return render.InputRequest{}, false
}

// elicitation is the request for a decision: a form where the client shows
// forms and agents may decide, else a page where it opens pages, else none.
func (s *Service) elicitation(caps *mcp.ClientCapabilities, rec *render.Record) (key string, params json.RawMessage, err error) {
	if caps == nil || caps.Elicitation == nil {
		return "", nil, nil
	}
	e := caps.Elicitation
	w := rec.Spec.Watermark
	if w == nil {
		return "", nil, nil
	}
	message := fmt.Sprintf("The watermark preview of %s is ready: %s. The watermark sits at %s with opacity %g. Approve it to render the video. Rejecting ends the render.",
		rec.ID, rec.ID.PreviewURI(), w.Position, w.Opacity)
	var p any
	switch human := s.cfg.HumanApproval(rec.Tenant); {
	case !human && (e.Form != nil || e.URL == nil): // an empty object means forms
		key = keyForm
		p = map[string]any{
			"mode": "form", "message": message + " To reject, submit approved = false.",
			"requestedSchema": json.RawMessage(`{"type":"object","properties":{` +
				`"approved":{"type":"boolean","title":"Approve the watermark","description":"true renders the video, false ends the render."},` +
				`"note":{"type":"string","title":"Note","description":"Kept with the decision.","maxLength":500}},"required":["approved"]}`),
		}
	case e.URL == nil:
		return "", nil, nil
	default:
		key = keyURL
		p = map[string]any{"mode": "url", "message": message + " To reject, submit approved = false on the page.", "url": s.ApprovalURL(rec.ID)}
	}
	if params, err = encode(p); err != nil {
		return "", nil, fmt.Errorf("encode elicitation: %w", err)
	}
	return key, params, nil
}
