package render

import (
	"errors"
	"slices"
	"time"
)

// Usage is what a tenant has used of one quota, in the quota's unit:
// milliseconds of video in one window of time, or bytes that are stored. Its
// methods change it in place.
//
// What is under way is set aside by a hold, under the id of its render or asset
// and a time that tells attempts at the same id apart; those of the same time
// share their hold. Only the hold whose
// time is that of the record is ever counted, and it is removed as it is: so a
// render is counted once, whoever settles it and however often.
type Usage struct {
	Tenant Tenant
	// Used for good.
	Used int64
	// Holds for what is under way.
	Holds []Hold
	// Relief is when something that is used is given back by itself; zero when
	// that is not known.
	Relief time.Time
}

// Hold is what is set aside for one render or asset.
type Hold struct {
	ID string
	// Amount is negative for what was given back.
	Amount int64
	At     time.Time
}

// ErrOverQuota is returned by Usage.Hold when the amount is not there.
var ErrOverQuota = errors.New("render: the quota is used up")

// Total is what is used and held, never less than zero.
func (u *Usage) Total() int64 {
	n := u.Used
	for _, h := range u.Holds {
		n += h.Amount
	}
	return max(0, n)
}

// Room is what is left below the limit, never less than zero.
func (u *Usage) Room(limit int64) int64 { return max(0, limit-u.Total()) }

// Hold sets an amount aside, or returns ErrOverQuota and changes nothing. What
// has a hold already needs no second amount: two gateways may submit the same
// render at once.
func (u *Usage) Hold(h Hold, limit int64) error {
	for _, there := range u.Holds {
		if there.ID != h.ID {
			continue
		}
		if there.At.Equal(h.At) {
			return nil
		}
		h.Amount = 0
	}
	if h.Amount > u.Room(limit) {
		return ErrOverQuota
	}
	u.Holds = append(u.Holds, h)
	return nil
}

// Release drops the hold of that id and time. It reports whether there was one.
// The amount of a dropped hold goes over to another of the same id.
func (u *Usage) Release(id string, at time.Time) bool {
	i := slices.IndexFunc(u.Holds, func(h Hold) bool { return h.ID == id && h.At.Equal(at) })
	if i < 0 {
		return false
	}
	amount := u.Holds[i].Amount
	u.Holds = slices.Delete(u.Holds, i, i+1)
	if j := slices.IndexFunc(u.Holds, func(h Hold) bool { return h.ID == id }); j >= 0 {
		u.Holds[j].Amount += amount
	}
	return true
}

// Settle drops every hold of the id, and counts amount as used if one of them
// has that time. It reports whether anything was dropped.
func (u *Usage) Settle(id string, at time.Time, amount int64) bool {
	kept := u.Holds[:0:0]
	counted := false
	for _, h := range u.Holds {
		if h.ID != id {
			kept = append(kept, h)
			continue
		}
		counted = counted || h.At.Equal(at)
	}
	if len(kept) == len(u.Holds) {
		return false
	}
	if counted {
		u.Used += amount
	}
	u.Holds = kept
	return true
}

// Window is the time after which a quota of render minutes begins anew, in UTC.
type Window string

// Windows.
const (
	WindowDay   Window = "day"
	WindowMonth Window = "month"
)

// Name names the window that a time lies in: 2026-12 or 2026-12-31.
func (w Window) Name(t time.Time) string {
	if w == WindowDay {
		return t.UTC().Format("2006-01-02")
	}
	return t.UTC().Format("2006-01")
}

// End is when the window that a time lies in is over.
func (w Window) End(t time.Time) time.Time {
	y, m, d := t.UTC().Date()
	if w == WindowDay {
		return time.Date(y, m, d+1, 0, 0, 0, 0, time.UTC)
	}
	return time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC)
}
