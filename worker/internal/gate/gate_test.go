package gate

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var (
			log     bytes.Buffer
			back    bool
			checks  []time.Duration
			changes []bool
			start   = time.Now()
			wg      sync.WaitGroup
		)
		g := New(Config{
			Name: "object store", Logger: slog.New(slog.NewTextHandler(&log, nil)), Most: 8 * time.Second,
			Changed: func(closed bool) { changes = append(changes, closed) },
			Check: func(context.Context) error {
				checks = append(checks, time.Since(start))
				if !back {
					return errors.New("still away")
				}
				return nil
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() { g.Run(ctx) })
		g.Wait(ctx) // open
		for range 3 {
			g.Close(errors.New("away")) // each slot finds it
		}
		if err := g.Err(); err == nil || !strings.Contains(err.Error(), "away") {
			t.Errorf("closed: %v", err)
		}
		passed := make(chan time.Duration)
		go func() { g.Wait(ctx); passed <- time.Since(start) }()
		time.Sleep(25 * time.Second)
		select {
		case <-passed:
			t.Fatal("a closed gate let somebody through")
		default:
		}
		back = true
		if at := <-passed; at > 40*time.Second {
			t.Errorf("opened after %s", at)
		}
		if g.Err() != nil {
			t.Error(g.Err())
		}
		// Three failures came together: the first check waits for 1, 2, 4 s.
		for i, at := range checks[1:] {
			if gap := at - checks[i]; gap != 8*time.Second {
				t.Errorf("check %d after %s", i+1, gap)
			}
		}
		if n := strings.Count(log.String(), "worker pauses"); n != 1 || !strings.Contains(log.String(), "worker goes on") || len(changes) != 2 {
			t.Errorf("told %d times, changed %v:\n%s", n, changes, log.String())
		}

		// A row of failures goes on until something passes.
		g.Close(errors.New("away again"))
		synctest.Wait()
		if g.delay() != 8*time.Second {
			t.Errorf("the next check in %s", g.delay())
		}
		g.Wait(ctx)
		g.Passed()
		g.Close(errors.New("away again"))
		if g.delay() != time.Second {
			t.Errorf("the next check in %s after something passed", g.delay())
		}
		cancel()
		g.Wait(ctx) // not for ever
		wg.Wait()
	})
}
