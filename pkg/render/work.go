package render

import (
	"cmp"
	"time"
)

// Outcome is how an attempt ended.
type Outcome string

// Outcomes. An attempt that is never closed becomes lost when the next one
// opens.
const (
	OutcomeOpen     Outcome = "open"
	OutcomeDone     Outcome = "done"
	OutcomeFailed   Outcome = "failed"
	OutcomeHandback Outcome = "handback"
	OutcomeLost     Outcome = "lost"
)

// Attempt is one try at a work.
type Attempt struct {
	ID      string
	Worker  string
	Opened  time.Time
	Outcome Outcome
	Reason  string
}

// History is every attempt at one work, oldest first.
type History struct{ Attempts []Attempt }

// Workers counts the distinct workers whose attempts ended with the outcome.
func (h History) Workers(o Outcome) int {
	seen := map[string]bool{}
	for _, a := range h.Attempts {
		if a.Outcome == o {
			seen[a.Worker] = true
		}
	}
	return len(seen)
}

// Count counts the attempts that ended with the outcome.
func (h History) Count(o Outcome) int {
	n := 0
	for _, a := range h.Attempts {
		if a.Outcome == o {
			n++
		}
	}
	return n
}

// Binding is what an idempotency key is bound to.
type Binding struct {
	Task     ID
	SpecHash string
	// Revision is the binding's own, for Unbind. It is the store's and not
	// part of what is stored.
	Revision uint64
}

// Message is a piece of work on its way to a worker.
type Message struct {
	Work Work
	// Class is the queue; "" leaves it to the work's stage.
	Class Class
	// Trace is the W3C context of whoever caused the work.
	Trace TraceContext
	// Enqueued is set by the queue.
	Enqueued time.Time
}

// InClass is the queue of the message.
func (m Message) InClass() Class { return cmp.Or(m.Class, m.Work.Stage.Class()) }

// Timer is a hint that something is due. Timers may fire late, twice, or not
// at all when their stream was lost; reconciliation finds what is overdue.
type Timer struct {
	Tenant Tenant
	Task   ID
	// Name tells timers of one task apart: [a-z0-9-]+.
	Name string
	At   time.Time
}

// DeadLetter is a work that was given up, for an operator to look at.
type DeadLetter struct {
	Work    Work
	Reason  string
	Failure *Failure
	At      time.Time
}

// Sample is how far one piece of work is. Unknown numbers are nil, never
// guessed.
type Sample struct {
	Work    Work
	Attempt int // counted from 1
	Worker  string
	// FramesDone of FramesTotal in this work.
	FramesDone, FramesTotal *int64
	// FPS is output frames per second, smoothed; Speed is media seconds per
	// wall second.
	FPS, Speed *float64
	// Done marks finished work.
	Done bool
	// LogTail is the encoder's last lines, cleaned for clients.
	LogTail []string
	At      time.Time
}

// Worker is one registered worker process.
type Worker struct {
	ID       string
	Version  string
	Classes  []Class
	Slots    int // works that it takes at once
	Busy     int // works that it does now
	Encoders []string
	// Devices is the number of graphics devices that work, each with a slot.
	Devices int
	Started time.Time
	Seen    time.Time
}
