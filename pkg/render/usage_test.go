package render_test

import (
	"errors"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
)

func sec(s int) time.Time { return time.Date(2026, 12, 1, 0, 0, s, 0, time.UTC) }

func TestUsageHoldsUpToTheLimit(t *testing.T) {
	t.Parallel()
	u := &render.Usage{Used: 40}
	if err := u.Hold(render.Hold{ID: "a", Amount: 60, At: sec(1)}, 100); err != nil || u.Room(100) != 0 {
		t.Fatalf("all that is left: %v, %+v", err, u)
	}
	if err := u.Hold(render.Hold{ID: "b", Amount: 1, At: sec(1)}, 100); !errors.Is(err, render.ErrOverQuota) || len(u.Holds) != 1 {
		t.Errorf("one more: %v, %+v", err, u)
	}
	// The same again, and another attempt at the same render, cost nothing.
	for _, s := range []int{1, 2, 2} {
		if err := u.Hold(render.Hold{ID: "a", Amount: 60, At: sec(s)}, 100); err != nil || u.Total() != 100 {
			t.Errorf("again: %v, %+v", err, u)
		}
	}
	if len(u.Holds) != 2 {
		t.Errorf("%+v", u.Holds)
	}
	// What the one gives back, the other still holds.
	if !u.Release("a", sec(1)) || u.Release("a", sec(1)) || u.Total() != 100 {
		t.Errorf("released: %+v", u)
	}
	if !u.Release("a", sec(2)) || u.Total() != 40 {
		t.Errorf("released: %+v", u)
	}
}

func TestUsageSettlesOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at     time.Time
		amount int64
		used   int64
	}{
		"a video":           {sec(1), 25, 25},
		"no video":          {sec(1), 0, 0},
		"another's attempt": {sec(9), 25, 0},
	} {
		u := &render.Usage{}
		for _, h := range []render.Hold{{ID: "a", Amount: 30, At: sec(1)}, {ID: "b", Amount: 5, At: sec(1)}, {ID: "a", Amount: 30, At: sec(2)}} {
			if err := u.Hold(h, 100); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 3 {
			if u.Settle("a", c.at, c.amount) != (i == 0) || u.Used != c.used || u.Total() != c.used+5 {
				t.Errorf("%s, time %d: %+v", name, i, u)
			}
		}
		// One that comes late with a hold is not counted either.
		if err := u.Hold(render.Hold{ID: "a", Amount: 30, At: sec(3)}, 100); err != nil {
			t.Fatal(err)
		}
		if u.Settle("a", c.at, c.amount); u.Used != c.used {
			t.Errorf("%s was counted twice: %+v", name, u)
		}
	}
}

func TestWindows(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("east", 5*3600)
	for _, c := range []struct {
		w    render.Window
		t    time.Time
		name string
		end  string
	}{
		{render.WindowMonth, time.Date(2026, 12, 31, 23, 59, 59, 0, time.UTC), "2026-12", "2027-01-01T00:00:00Z"},
		{render.WindowMonth, time.Date(2027, 1, 1, 4, 0, 0, 0, zone), "2026-12", "2027-01-01T00:00:00Z"},
		{render.WindowDay, time.Date(2028, 2, 29, 12, 0, 0, 0, time.UTC), "2028-02-29", "2028-03-01T00:00:00Z"},
	} {
		if got, end := c.w.Name(c.t), c.w.End(c.t).Format(time.RFC3339); got != c.name || end != c.end {
			t.Errorf("%s of %s: %s until %s", c.w, c.t, got, end)
		}
	}
}
