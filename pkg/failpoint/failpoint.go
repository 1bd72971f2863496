// Package failpoint names the steps at which a process may die in the midst of
// a change: between a compare-and-set, a publish and an acknowledgement, or
// between an object and the record that names it.
//
// In an ordinary build every call is an empty function that the compiler removes.
// Built with the tag failpoint, a program obeys the variable FAILPOINTS, a list
// with commas of point=action or point=action@n, such as
//
//	FAILPOINTS=complete.recorded/segment=kill,submit.bound=stop@2
//
// where n counts the hits of the point from 1 (the default) and * is each of
// them. The actions are kill, stop and term (SIGKILL, SIGSTOP, SIGTERM to
// itself) and panic. Nothing else of a program changes by the tag.
package failpoint

// Point is a step of the farm. Most are hit in several stages or for several
// events; their full name is the point's, a slash, and which.
type Point string

// Points, in the order in which a render meets them.
const (
	// PartStored is after a part of a large upload, before it is an object.
	PartStored Point = "upload.part-stored"
	// UploadStored is after an upload's bytes, before the asset's record.
	UploadStored Point = "upload.stored"
	// UploadRecorded is after an asset's record, before its probe's message.
	UploadRecorded Point = "upload.recorded"
	// UploadPublished is after the message, before the client's answer.
	UploadPublished Point = "upload.published"

	// FinalizeCopied is after a presigned upload was copied to where nobody else
	// writes, before the asset's record says so.
	FinalizeCopied Point = "finalize.copied"
	// FinalizeRecorded is after that record, before the probe's message.
	FinalizeRecorded Point = "finalize.recorded"
	// FinalizePublished is after the message, before what came in is removed.
	FinalizePublished Point = "finalize.published"

	// SubmitBound is after an idempotency key was bound, before its render.
	SubmitBound Point = "submit.bound"
	// SubmitSlotted is after a slot was taken, before the record.
	SubmitSlotted Point = "submit.slotted"
	// SubmitHeld is after render time was set aside, before the record.
	SubmitHeld Point = "submit.held"
	// SubmitStated is after a new render's state, before its submission makes it
	// one.
	SubmitStated Point = "submit.stated"
	// SubmitRecorded is after a render's record, before the key is confirmed.
	SubmitRecorded Point = "submit.recorded"
	// SubmitConfirmed is after that, before the first message.
	SubmitConfirmed Point = "submit.confirmed"
	// SubmitPublished is after the message, before the client's answer.
	SubmitPublished Point = "submit.published"
	// SubmitRefused is after a definite refusal, before the key is unbound.
	SubmitRefused Point = "submit.refused"

	// Enqueued is after one of a step's messages was stored, by stage.
	Enqueued Point = "jobs.enqueued"
	// DispatchMoved is after a message entered its class stream, before it left
	// the backlog.
	DispatchMoved Point = "dispatch.moved"

	// ClaimFetched is after a message was fetched, before its lease, by stage.
	ClaimFetched Point = "claim.fetched"
	// ClaimLeased is after the lease, before the attempt is noted, by stage.
	ClaimLeased Point = "claim.leased"
	// ClaimOpened is after the attempt was noted and the render marked as begun,
	// before any work, by stage.
	ClaimOpened Point = "claim.opened"
	// ClaimDone is after the follow-ups of a work that was found finished were
	// published again, before its message is acknowledged, by stage.
	ClaimDone Point = "claim.done"
	// WorkStored is after an attempt stored an object, by stage.
	WorkStored Point = "work.stored"

	// CompleteRecorded is after a result was recorded, by stage.
	CompleteRecorded Point = "complete.recorded"
	// CompleteSecond is after it turned out that another attempt was first,
	// before this one's objects are removed.
	CompleteSecond Point = "complete.second"
	// CompleteClosed is after the attempt was closed, before the render moves
	// on, by stage.
	CompleteClosed Point = "complete.closed"
	// CompleteAdvanced is after the render moved on and what follows was
	// published, before the acknowledgement, by stage.
	CompleteAdvanced Point = "complete.advanced"
	// CompleteAcked is after the acknowledgement, before the lease is given
	// back, by stage.
	CompleteAcked Point = "complete.acked"

	// AssetChanged is after a probe's facts were written into the asset.
	AssetChanged Point = "asset.changed"
	// RecordChanged is after the compare-and-set of a render's record, before
	// anything that follows from it, by event.
	RecordChanged Point = "record.changed"

	// FailClosed is after a failed attempt was closed, before what follows.
	FailClosed Point = "fail.closed"
	// FailBuried is after the dead letter, before the render fails.
	FailBuried Point = "fail.buried"
	// FailSettled is after a failed render was settled, before the work's
	// message is acknowledged.
	FailSettled Point = "fail.settled"
	// HandbackClosed is after the attempt of a work that goes back was closed.
	HandbackClosed Point = "handback.closed"
	// HandbackReleased is after its lease was given back, before its message.
	HandbackReleased Point = "handback.released"

	// PauseEnded is after the end of a pause was written, before the state that
	// follows from it.
	PauseEnded Point = "pause.ended"
	// PauseTimed is after the timer of a pause was set.
	PauseTimed Point = "pause.timed"
	// TimerAdvanced is after a timer did what it was for, before it is
	// acknowledged.
	TimerAdvanced Point = "timer.advanced"

	// EndBroadcast is after workers were told that a render ended without a
	// video.
	EndBroadcast Point = "end.broadcast"
	// EndRemoved is after a finished render's leftovers were removed.
	EndRemoved Point = "end.removed"
	// EndSettled is after a finished render's time was counted, before its slot is
	// freed.
	EndSettled Point = "end.settled"
	// EndSlotFreed is after a finished render's slot was freed.
	EndSlotFreed Point = "end.slot-freed"

	// ReconcileLeased is after a process became the one that reconciles.
	ReconcileLeased Point = "reconcile.leased"
	// ReconcileAdvanced is after a render was looked after, before its slot is.
	ReconcileAdvanced Point = "reconcile.advanced"

	// SweepTurned is after the ledger's epoch was turned, before the bucket is
	// marked with it.
	SweepTurned Point = "sweep.turned"
	// SweepMarked is after that, before older marks are removed.
	SweepMarked Point = "sweep.marked"

	// DeleteRecorded is after an asset's record was deleted, before its bytes.
	DeleteRecorded Point = "delete.recorded"
)

// Names lists the full name of every point.
func Names() []string {
	all := []string{"probe", "preview", "plan", "segment", "audio", "assemble"}
	made := []string{"preview", "plan", "segment", "audio", "assemble"} // the stages that store an object
	var names []string
	for _, p := range []struct {
		Point
		of []string
	}{
		{PartStored, nil},
		{UploadStored, nil},
		{UploadRecorded, nil},
		{UploadPublished, nil},
		{FinalizeCopied, nil},
		{FinalizeRecorded, nil},
		{FinalizePublished, nil},
		{SubmitBound, nil},
		{SubmitSlotted, nil},
		{SubmitHeld, nil},
		{SubmitStated, nil},
		{SubmitRecorded, nil},
		{SubmitConfirmed, nil},
		{SubmitPublished, nil},
		{SubmitRefused, nil},
		{Enqueued, all},
		{DispatchMoved, nil},
		{ClaimFetched, all},
		{ClaimLeased, all},
		{ClaimOpened, all},
		{ClaimDone, all},
		{WorkStored, made},
		{CompleteRecorded, all},
		{CompleteSecond, nil},
		{CompleteClosed, all},
		{CompleteAdvanced, all},
		{CompleteAcked, all},
		{AssetChanged, nil},
		{RecordChanged, []string{
			"claimed", "preview ready", "input minted", "input answered", "decided", "approval timed out",
			"planned", "encoded", "assembled", "failed", "cancelled",
		}},
		{FailClosed, nil},
		{FailBuried, nil},
		{FailSettled, nil},
		{HandbackClosed, nil},
		{HandbackReleased, nil},
		{PauseEnded, nil},
		{PauseTimed, nil},
		{TimerAdvanced, nil},
		{EndBroadcast, nil},
		{EndRemoved, nil},
		{EndSettled, nil},
		{EndSlotFreed, nil},
		{ReconcileLeased, nil},
		{ReconcileAdvanced, nil},
		{SweepTurned, nil},
		{SweepMarked, nil},
		{DeleteRecorded, nil},
	} {
		if p.of == nil {
			names = append(names, string(p.Point))
		}
		for _, which := range p.of {
			names = append(names, string(p.Point)+"/"+which)
		}
	}
	return names
}
