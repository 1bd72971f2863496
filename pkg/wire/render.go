package wire

import (
	"errors"

	"github.com/vidforge/vidforge/pkg/render"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

// FromRender maps a render record.
func FromRender(r *render.Record) *vidforgev1.RenderRecord {
	return &vidforgev1.RenderRecord{
		Id:                 string(r.ID),
		Tenant:             string(r.Tenant),
		Spec:               fromSpec(r.Spec),
		SpecHash:           r.SpecHash,
		Source:             fromSourceRef(&r.Source),
		Logo:               fromSourceRef(r.Logo),
		State:              fromEnum[vidforgev1.State](r.State),
		Step:               fromEnum[vidforgev1.Step](r.Step),
		Generation:         r.Generation,
		RestartReason:      r.RestartReason,
		CreateTime:         fromTime(r.Created),
		UpdateTime:         fromTime(r.Updated),
		StartTime:          fromTime(r.Started),
		EndTime:            fromTime(r.Ended),
		Preview:            fromPreview(r.Preview),
		Overlay:            fromObjectPointer(r.Overlay),
		Inputs:             each(r.Inputs, fromInput),
		Decision:           fromDecision(r.Decision),
		Plan:               fromPlan(r.Plan),
		Output:             fromOutput(r.Output),
		Failure:            fromFailure(r.Failure),
		CancelledBy:        r.CancelledBy,
		IdempotencyKeyHash: r.IdempotencyKeyHash,
		Slot:               fromInt(r.Slot),
		Trace:              fromTrace(r.Trace),
		TaskRetention:      fromDuration(r.TaskRetention),
	}
}

// ToRender is the reverse of FromRender.
func ToRender(p *vidforgev1.RenderRecord) (*render.Record, error) {
	if p.GetId() == "" {
		return nil, errors.New("wire: render record without id")
	}
	var d decoder
	r := &render.Record{
		ID:                 render.ID(p.GetId()),
		Tenant:             render.Tenant(p.GetTenant()),
		Spec:               d.spec(p.GetSpec()),
		SpecHash:           p.GetSpecHash(),
		Logo:               d.sourceRef(p.GetLogo()),
		State:              toEnum[render.State](&d, "state", p.GetState()),
		Step:               toEnum[render.Step](&d, "step", p.GetStep()),
		Generation:         p.GetGeneration(),
		RestartReason:      p.GetRestartReason(),
		Created:            d.time("create_time", p.GetCreateTime()),
		Updated:            d.time("update_time", p.GetUpdateTime()),
		Started:            d.time("start_time", p.GetStartTime()),
		Ended:              d.time("end_time", p.GetEndTime()),
		Preview:            d.preview(p.GetPreview()),
		Inputs:             each(p.GetInputs(), toInput),
		Decision:           d.decision(p.GetDecision()),
		Plan:               toPlan(p.GetPlan()),
		Output:             d.output(p.GetOutput()),
		Failure:            d.failure(p.GetFailure()),
		CancelledBy:        p.GetCancelledBy(),
		IdempotencyKeyHash: p.GetIdempotencyKeyHash(),
		Slot:               int(p.GetSlot()),
		Trace:              toTrace(p.GetTrace()),
		TaskRetention:      d.duration("task_retention", p.GetTaskRetention()),
	}
	if s := d.sourceRef(p.GetSource()); s != nil {
		r.Source = *s
	}
	if p.GetOverlay() != nil {
		o := toObject(p.GetOverlay())
		r.Overlay = &o
	}
	if d.err != nil {
		return nil, d.err
	}
	return r, nil
}

// FromBinding maps what is stored of a binding; its revision is the store's.
func FromBinding(b render.Binding) *vidforgev1.Binding {
	return &vidforgev1.Binding{TaskId: string(b.Task), SpecHash: b.SpecHash}
}

// ToBinding is the reverse of FromBinding.
func ToBinding(p *vidforgev1.Binding) (render.Binding, error) {
	if p.GetTaskId() == "" {
		return render.Binding{}, errors.New("wire: binding without task")
	}
	return render.Binding{Task: render.ID(p.GetTaskId()), SpecHash: p.GetSpecHash()}, nil
}

func fromObjectPointer(o *render.Object) *vidforgev1.Object {
	if o == nil {
		return nil
	}
	return fromObject(*o)
}

func fromSpec(s render.Spec) *vidforgev1.Spec {
	p := &vidforgev1.Spec{
		SourceAssetId:   string(s.Source),
		Format:          fromEnum[vidforgev1.Format](s.Format),
		Resolution:      fromEnum[vidforgev1.Resolution](s.Resolution),
		Quality:         fromEnum[vidforgev1.Quality](s.Quality),
		RequireApproval: s.RequireApproval,
		Hardware:        fromEnum[vidforgev1.Hardware](s.Hardware),
	}
	if w := s.Watermark; w != nil {
		p.Watermark = &vidforgev1.Watermark{
			Mode:         fromEnum[vidforgev1.WatermarkMode](w.Mode),
			Text:         w.Text,
			ImageAssetId: string(w.Image),
			Position:     fromEnum[vidforgev1.Position](w.Position),
			Opacity:      w.Opacity,
		}
	}
	return p
}

func (d *decoder) spec(p *vidforgev1.Spec) render.Spec {
	s := render.Spec{
		Source:          render.AssetID(p.GetSourceAssetId()),
		Format:          toEnum[render.Format](d, "spec.format", p.GetFormat()),
		Resolution:      toEnum[render.Resolution](d, "spec.resolution", p.GetResolution()),
		Quality:         toEnum[render.Quality](d, "spec.quality", p.GetQuality()),
		RequireApproval: p.GetRequireApproval(),
		Hardware:        toEnum[render.Hardware](d, "spec.hardware", p.GetHardware()),
	}
	if w := p.GetWatermark(); w != nil {
		s.Watermark = &render.Watermark{
			Mode:     toEnum[render.WatermarkMode](d, "spec.watermark.mode", w.GetMode()),
			Text:     w.GetText(),
			Image:    render.AssetID(w.GetImageAssetId()),
			Position: toEnum[render.Position](d, "spec.watermark.position", w.GetPosition()),
			Opacity:  w.GetOpacity(),
		}
	}
	return s
}

func fromPreview(v *render.Preview) *vidforgev1.Preview {
	if v == nil {
		return nil
	}
	return &vidforgev1.Preview{
		Object:    fromObject(v.Object),
		Width:     fromInt(v.Width),
		Height:    fromInt(v.Height),
		ReadyTime: fromTime(v.Ready),
		Deadline:  fromTime(v.Deadline),
	}
}

func (d *decoder) preview(p *vidforgev1.Preview) *render.Preview {
	if p == nil {
		return nil
	}
	return &render.Preview{
		Object:   toObject(p.GetObject()),
		Width:    int(p.GetWidth()),
		Height:   int(p.GetHeight()),
		Ready:    d.time("preview.ready_time", p.GetReadyTime()),
		Deadline: d.time("preview.deadline", p.GetDeadline()),
	}
}

func fromInput(in render.InputRequest) *vidforgev1.InputRequest {
	return &vidforgev1.InputRequest{Key: in.Key, Params: in.Params, Answered: in.Answered}
}

func toInput(p *vidforgev1.InputRequest) render.InputRequest {
	return render.InputRequest{Key: p.GetKey(), Params: p.GetParams(), Answered: p.GetAnswered()}
}

func fromDecision(v *render.Decision) *vidforgev1.Decision {
	if v == nil {
		return nil
	}
	return &vidforgev1.Decision{
		Approved: v.Approved,
		Note:     v.Note,
		By:       v.By,
		Channel:  fromEnum[vidforgev1.Channel](v.Channel),
		Time:     fromTime(v.At),
	}
}

func (d *decoder) decision(p *vidforgev1.Decision) *render.Decision {
	if p == nil {
		return nil
	}
	return &render.Decision{
		Approved: p.GetApproved(),
		Note:     p.GetNote(),
		By:       p.GetBy(),
		Channel:  toEnum[render.Channel](d, "decision.channel", p.GetChannel()),
		At:       d.time("decision.time", p.GetTime()),
	}
}

func fromFailure(f *render.Failure) *vidforgev1.Failure {
	if f == nil {
		return nil
	}
	return &vidforgev1.Failure{
		Code:      string(f.Code),
		Message:   f.Message,
		Temporary: f.Temporary,
		Field:     f.Field,
		Reason:    f.Reason,
		Stage:     fromEnum[vidforgev1.Stage](f.Stage),
		LogTail:   f.LogTail,
	}
}

func (d *decoder) failure(p *vidforgev1.Failure) *render.Failure {
	if p == nil {
		return nil
	}
	return &render.Failure{
		Code:      render.Code(p.GetCode()),
		Message:   p.GetMessage(),
		Temporary: p.GetTemporary(),
		Field:     p.GetField(),
		Reason:    p.GetReason(),
		Stage:     toEnum[render.Stage](d, "failure.stage", p.GetStage()),
		LogTail:   p.GetLogTail(),
	}
}

func fromTrace(t render.TraceContext) *vidforgev1.TraceContext {
	if t == (render.TraceContext{}) {
		return nil
	}
	return &vidforgev1.TraceContext{Traceparent: t.Traceparent, Tracestate: t.Tracestate, Baggage: t.Baggage}
}

func toTrace(p *vidforgev1.TraceContext) render.TraceContext {
	return render.TraceContext{Traceparent: p.GetTraceparent(), Tracestate: p.GetTracestate(), Baggage: p.GetBaggage()}
}
