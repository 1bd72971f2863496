//go:build !failpoint

package failpoint

// Hit is where a process may be told to die.
func Hit(Point) {}

// HitFor is Hit for one stage or event.
func HitFor(Point, string) {}
