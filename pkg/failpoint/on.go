//go:build failpoint

package failpoint

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Hit is where a process may be told to die.
func Hit(p Point) { hit(string(p)) }

// HitFor is Hit for one stage or event.
func HitFor(p Point, which string) { hit(string(p) + "/" + which) }

// armed is this process's own, by its environment: a point can be reached from
// everywhere.
var armed = sync.OnceValue(func() *arms {
	a := &arms{known: Names(), hits: map[string]int{}}
	if err := a.parse(os.Getenv("FAILPOINTS")); err != nil {
		panic("failpoint: " + err.Error())
	}
	return a
})

func hit(name string) {
	a := armed()
	if !slices.Contains(a.known, name) {
		panic("failpoint: " + name + " is not listed in Names")
	}
	if act := a.hit(name); act != nil {
		// One at a time: of two stops at once, the signal that continues the
		// process would take back the second.
		a.acting.Lock()
		defer a.acting.Unlock()
		fmt.Fprintln(os.Stderr, "failpoint:", name)
		act()
	}
}

type arms struct {
	known []string
	list  []arm
	mu    sync.Mutex
	hits  map[string]int

	acting sync.Mutex
}

// arm does something at the nth hit of a point, at each when n is 0.
type arm struct {
	name string
	n    int
	act  func()
}

func (a *arms) hit(name string) func() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hits[name]++
	for _, arm := range a.list {
		if arm.name == name && (arm.n == 0 || arm.n == a.hits[name]) {
			return arm.act
		}
	}
	return nil
}

func (a *arms) parse(list string) error {
	for item := range strings.SplitSeq(list, ",") {
		if item == "" {
			continue
		}
		name, action, _ := strings.Cut(item, "=")
		action, count, counted := strings.Cut(action, "@")
		one := arm{name: name, n: 1}
		if counted && count == "*" {
			one.n = 0
		} else if counted {
			n, err := strconv.Atoi(count)
			if err != nil || n < 1 {
				return fmt.Errorf("%q: the count must be a number from 1, or *", item)
			}
			one.n = n
		}
		switch action {
		case "kill":
			one.act = func() { signal(syscall.SIGKILL) }
		case "stop":
			one.act = func() { signal(syscall.SIGSTOP) }
		case "term":
			one.act = func() { signal(syscall.SIGTERM) }
		case "panic":
			one.act = func() { panic("failpoint: " + name) }
		default:
			return fmt.Errorf("%q: unknown action", item)
		}
		if !slices.Contains(a.known, name) {
			return fmt.Errorf("%q: unknown point", item)
		}
		a.list = append(a.list, one)
	}
	return nil
}

// signal goes to this very thread, so that it has its effect before the call
// returns: one to the process may reach another thread first.
func signal(s syscall.Signal) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := syscall.Tgkill(os.Getpid(), syscall.Gettid(), s); err != nil {
		panic("failpoint: " + err.Error())
	}
}
