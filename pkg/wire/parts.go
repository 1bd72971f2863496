package wire

import vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"

// A render record is stored in three parts that different programs may write;
// render.Join puts them together again. Each part is a RenderRecord with its
// share of the fields, so that unknown ones are kept in whichever part they
// came in. Every part has the id, the tenant and the times that it needs.

// SubmissionOf takes from a record what only its submission says.
func SubmissionOf(p *vidforgev1.RenderRecord) *vidforgev1.RenderRecord {
	return &vidforgev1.RenderRecord{
		Id: p.GetId(), Tenant: p.GetTenant(), CreateTime: p.GetCreateTime(),
		Spec: p.GetSpec(), SpecHash: p.GetSpecHash(), Source: p.GetSource(), Logo: p.GetLogo(),
		IdempotencyKeyHash: p.GetIdempotencyKeyHash(), Slot: p.GetSlot(), Trace: p.GetTrace(),
		TaskRetention: p.GetTaskRetention(),
	}
}

// ApprovalOf takes from a record what only gateways say about its pause. ended
// adds how the pause ended: that is what the record became by it.
func ApprovalOf(p *vidforgev1.RenderRecord, ended bool) *vidforgev1.RenderRecord {
	a := &vidforgev1.RenderRecord{
		Id: p.GetId(), Tenant: p.GetTenant(), UpdateTime: p.GetUpdateTime(),
		Inputs: p.GetInputs(), Decision: p.GetDecision(),
	}
	if ended {
		a.State, a.EndTime, a.Failure, a.CancelledBy = p.GetState(), p.GetEndTime(), p.GetFailure(), p.GetCancelledBy()
	}
	return a
}

// StateOf takes from a record the rest, which workers move on.
func StateOf(p *vidforgev1.RenderRecord) *vidforgev1.RenderRecord {
	return &vidforgev1.RenderRecord{
		Id: p.GetId(), Tenant: p.GetTenant(), UpdateTime: p.GetUpdateTime(),
		State: p.GetState(), Step: p.GetStep(), Generation: p.GetGeneration(), RestartReason: p.GetRestartReason(),
		StartTime: p.GetStartTime(), EndTime: p.GetEndTime(),
		Preview: p.GetPreview(), Overlay: p.GetOverlay(), Plan: p.GetPlan(), Output: p.GetOutput(),
		Failure: p.GetFailure(), CancelledBy: p.GetCancelledBy(),
	}
}
