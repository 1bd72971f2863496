package wire

import (
	"errors"

	"github.com/vidforge/vidforge/pkg/render"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

// FromMessage maps a stage message.
func FromMessage(m render.Message) *vidforgev1.StageMessage {
	return &vidforgev1.StageMessage{Work: fromWork(m.Work), Class: fromEnum[vidforgev1.Class](m.Class), Trace: fromTrace(m.Trace), EnqueueTime: fromTime(m.Enqueued)}
}

// ToMessage is the reverse of FromMessage.
func ToMessage(p *vidforgev1.StageMessage) (render.Message, error) {
	var d decoder
	m := render.Message{Work: d.work(p.GetWork()), Class: toEnum[render.Class](&d, "class", p.GetClass()), Trace: toTrace(p.GetTrace()), Enqueued: d.time("enqueue_time", p.GetEnqueueTime())}
	if d.err != nil {
		return render.Message{}, d.err
	}
	return m, nil
}

// FromResult maps a stage's result.
func FromResult(r *render.StageResult) *vidforgev1.StageResult {
	return &vidforgev1.StageResult{
		Work:       fromWork(r.Work),
		AttemptId:  r.Attempt,
		Worker:     r.Worker,
		FinishTime: fromTime(r.Finished),
		Object:     fromObject(r.Object),
		Overlay:    fromObject(r.Overlay),
		Width:      fromInt(r.Width),
		Height:     fromInt(r.Height),
		Frames:     r.Frames,
		Plan:       fromPlan(r.Plan),
		Output:     fromOutput(r.Output),
		Facts:      fromFacts(r.Facts),
		LogTail:    r.LogTail,
		Elapsed:    fromDuration(r.Elapsed),
		Cpu:        fromDuration(r.CPU),
	}
}

// ToResult is the reverse of FromResult.
func ToResult(p *vidforgev1.StageResult) (*render.StageResult, error) {
	var d decoder
	r := &render.StageResult{
		Work:     d.work(p.GetWork()),
		Attempt:  p.GetAttemptId(),
		Worker:   p.GetWorker(),
		Finished: d.time("finish_time", p.GetFinishTime()),
		Object:   toObject(p.GetObject()),
		Overlay:  toObject(p.GetOverlay()),
		Width:    int(p.GetWidth()),
		Height:   int(p.GetHeight()),
		Frames:   p.GetFrames(),
		Plan:     toPlan(p.GetPlan()),
		Output:   d.output(p.GetOutput()),
		Facts:    d.facts(p.GetFacts()),
		LogTail:  p.GetLogTail(),
		Elapsed:  d.duration("elapsed", p.GetElapsed()),
		CPU:      d.duration("cpu", p.GetCpu()),
	}
	if d.err != nil {
		return nil, d.err
	}
	return r, nil
}

// FromHistory maps a work's attempts.
func FromHistory(h render.History) *vidforgev1.AttemptHistory {
	return &vidforgev1.AttemptHistory{Attempts: each(h.Attempts, func(a render.Attempt) *vidforgev1.Attempt {
		return &vidforgev1.Attempt{
			Id:       a.ID,
			Worker:   a.Worker,
			OpenTime: fromTime(a.Opened),
			Outcome:  fromEnum[vidforgev1.Outcome](a.Outcome),
			Reason:   a.Reason,
		}
	})}
}

// ToHistory is the reverse of FromHistory.
func ToHistory(p *vidforgev1.AttemptHistory) (render.History, error) {
	var d decoder
	h := render.History{Attempts: each(p.GetAttempts(), func(a *vidforgev1.Attempt) render.Attempt {
		return render.Attempt{
			ID:      a.GetId(),
			Worker:  a.GetWorker(),
			Opened:  d.time("open_time", a.GetOpenTime()),
			Outcome: toEnum[render.Outcome](&d, "outcome", a.GetOutcome()),
			Reason:  a.GetReason(),
		}
	})}
	if d.err != nil {
		return render.History{}, d.err
	}
	return h, nil
}

// FromTimer maps a timer.
func FromTimer(t render.Timer) *vidforgev1.Timer {
	return &vidforgev1.Timer{Tenant: string(t.Tenant), TaskId: string(t.Task), Name: t.Name, DueTime: fromTime(t.At)}
}

// ToTimer is the reverse of FromTimer.
func ToTimer(p *vidforgev1.Timer) (render.Timer, error) {
	if p.GetTaskId() == "" {
		return render.Timer{}, errors.New("wire: timer without task")
	}
	var d decoder
	t := render.Timer{
		Tenant: render.Tenant(p.GetTenant()),
		Task:   render.ID(p.GetTaskId()),
		Name:   p.GetName(),
		At:     d.time("due_time", p.GetDueTime()),
	}
	return t, d.err
}

// FromDeadLetter maps a dead letter.
func FromDeadLetter(l render.DeadLetter) *vidforgev1.DeadLetter {
	return &vidforgev1.DeadLetter{Work: fromWork(l.Work), Reason: l.Reason, Failure: fromFailure(l.Failure), Time: fromTime(l.At)}
}

// ToDeadLetter is the reverse of FromDeadLetter.
func ToDeadLetter(p *vidforgev1.DeadLetter) (render.DeadLetter, error) {
	var d decoder
	l := render.DeadLetter{
		Work:    d.work(p.GetWork()),
		Reason:  p.GetReason(),
		Failure: d.failure(p.GetFailure()),
		At:      d.time("time", p.GetTime()),
	}
	if d.err != nil {
		return render.DeadLetter{}, d.err
	}
	return l, nil
}

// FromSample maps a progress sample.
func FromSample(s render.Sample) *vidforgev1.ProgressSample {
	return &vidforgev1.ProgressSample{
		Work:        fromWork(s.Work),
		Attempt:     fromInt(s.Attempt),
		Worker:      s.Worker,
		FramesDone:  s.FramesDone,
		FramesTotal: s.FramesTotal,
		Fps:         s.FPS,
		Speed:       s.Speed,
		Done:        s.Done,
		LogTail:     s.LogTail,
		Time:        fromTime(s.At),
	}
}

// ToSample is the reverse of FromSample.
func ToSample(p *vidforgev1.ProgressSample) (render.Sample, error) {
	var d decoder
	s := render.Sample{
		Work:    d.work(p.GetWork()),
		Attempt: int(p.GetAttempt()),
		Worker:  p.GetWorker(),
		Done:    p.GetDone(),
		LogTail: p.GetLogTail(),
		At:      d.time("time", p.GetTime()),
	}
	if p != nil { // pointers, because absence counts
		s.FramesDone, s.FramesTotal, s.FPS, s.Speed = p.FramesDone, p.FramesTotal, p.Fps, p.Speed
	}
	if d.err != nil {
		return render.Sample{}, d.err
	}
	return s, nil
}

// FromWorker maps a worker's registration.
func FromWorker(w render.Worker) *vidforgev1.Worker {
	return &vidforgev1.Worker{
		Id:        w.ID,
		Version:   w.Version,
		Classes:   each(w.Classes, fromEnum[vidforgev1.Class, render.Class]),
		Slots:     fromInt(w.Slots),
		Busy:      fromInt(w.Busy),
		Encoders:  w.Encoders,
		Devices:   fromInt(w.Devices),
		StartTime: fromTime(w.Started),
		SeenTime:  fromTime(w.Seen),
	}
}

// ToWorker is the reverse of FromWorker.
func ToWorker(p *vidforgev1.Worker) (render.Worker, error) {
	if p.GetId() == "" {
		return render.Worker{}, errors.New("wire: worker without id")
	}
	var d decoder
	w := render.Worker{
		ID:      p.GetId(),
		Version: p.GetVersion(),
		Classes: each(p.GetClasses(), func(c vidforgev1.Class) render.Class {
			return toEnum[render.Class](&d, "classes", c)
		}),
		Slots:    int(p.GetSlots()),
		Busy:     int(p.GetBusy()),
		Encoders: p.GetEncoders(),
		Devices:  int(p.GetDevices()),
		Started:  d.time("start_time", p.GetStartTime()),
		Seen:     d.time("seen_time", p.GetSeenTime()),
	}
	if d.err != nil {
		return render.Worker{}, d.err
	}
	return w, nil
}

func fromWork(w render.Work) *vidforgev1.Work {
	return &vidforgev1.Work{
		Tenant:     string(w.Tenant),
		TaskId:     string(w.Task),
		AssetId:    string(w.Asset),
		Generation: w.Generation,
		Stage:      fromEnum[vidforgev1.Stage](w.Stage),
		Index:      fromInt(w.Index),
	}
}

func (d *decoder) work(p *vidforgev1.Work) render.Work {
	return render.Work{
		Tenant:     render.Tenant(p.GetTenant()),
		Task:       render.ID(p.GetTaskId()),
		Asset:      render.AssetID(p.GetAssetId()),
		Generation: p.GetGeneration(),
		Stage:      toEnum[render.Stage](d, "work.stage", p.GetStage()),
		Index:      int(p.GetIndex()),
	}
}

func fromPlan(v *render.Plan) *vidforgev1.Plan {
	if v == nil {
		return nil
	}
	return &vidforgev1.Plan{
		Generation: v.Generation,
		Width:      fromInt(v.Width),
		Height:     fromInt(v.Height),
		FrameRate:  fromRational(v.FrameRate),
		Frames:     v.Frames,
		StartTicks: v.StartTicks,
		Start:      fromRational(v.Start),
		Segments: each(v.Segments, func(s render.Segment) *vidforgev1.Segment {
			p := &vidforgev1.Segment{FromFrame: s.From, ToFrame: s.To}
			if s.Seek >= 0 {
				p.SeekSeconds = &s.Seek
			}
			return p
		}),
		HasAudio:   v.HasAudio,
		VideoCodec: v.VideoCodec,
		AudioCodec: v.AudioCodec,
		Encoder:    v.Encoder,
		Decoder:    v.Decoder,
	}
}

func toPlan(p *vidforgev1.Plan) *render.Plan {
	if p == nil {
		return nil
	}
	return &render.Plan{
		Generation: p.GetGeneration(),
		Width:      int(p.GetWidth()),
		Height:     int(p.GetHeight()),
		FrameRate:  toRational(p.GetFrameRate()),
		Frames:     p.GetFrames(),
		StartTicks: p.GetStartTicks(),
		Start:      toRational(p.GetStart()),
		Segments: each(p.GetSegments(), func(s *vidforgev1.Segment) render.Segment {
			seek := -1.0
			if s.SeekSeconds != nil {
				seek = s.GetSeekSeconds()
			}
			return render.Segment{From: s.GetFromFrame(), To: s.GetToFrame(), Seek: seek}
		}),
		HasAudio:   p.GetHasAudio(),
		VideoCodec: p.GetVideoCodec(),
		AudioCodec: p.GetAudioCodec(),
		Encoder:    p.GetEncoder(),
		Decoder:    p.GetDecoder(),
	}
}

func fromOutput(o *render.Output) *vidforgev1.Output {
	if o == nil {
		return nil
	}
	return &vidforgev1.Output{
		Object:           fromObject(o.Object),
		Duration:         fromDuration(o.Duration),
		Width:            fromInt(o.Width),
		Height:           fromInt(o.Height),
		Frames:           o.Frames,
		VideoCodec:       o.VideoCodec,
		AudioCodec:       o.AudioCodec,
		WatermarkApplied: o.WatermarkApplied,
		Encoder:          o.Encoder,
		FallbackReason:   o.FallbackReason,
		SegmentsTotal:    fromInt(o.SegmentsTotal),
		SegmentsReused:   fromInt(o.SegmentsReused),
	}
}

func (d *decoder) output(p *vidforgev1.Output) *render.Output {
	if p == nil {
		return nil
	}
	return &render.Output{
		Object:           toObject(p.GetObject()),
		Duration:         d.duration("output.duration", p.GetDuration()),
		Width:            int(p.GetWidth()),
		Height:           int(p.GetHeight()),
		Frames:           p.GetFrames(),
		VideoCodec:       p.GetVideoCodec(),
		AudioCodec:       p.GetAudioCodec(),
		WatermarkApplied: p.GetWatermarkApplied(),
		Encoder:          p.GetEncoder(),
		FallbackReason:   p.GetFallbackReason(),
		SegmentsTotal:    int(p.GetSegmentsTotal()),
		SegmentsReused:   int(p.GetSegmentsReused()),
	}
}
