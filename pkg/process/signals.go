package process

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Interrupted returns a context that ends at the first interrupt or SIGTERM.
// The second one ends the process at once, as it does where nobody handles it,
// however closely it follows. stop gives the signals back.
func Interrupted(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	// Both are taken by one goroutine: to give the signals back when the first
	// has come would lose a second that comes meanwhile.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-signals:
			cancel()
		case <-quit:
			return
		}
		select {
		case s := <-signals:
			end(s)
		case <-quit:
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		close(quit)
		wg.Wait()
		cancel()
	}
}

// end ends this process by the signal.
func end(s os.Signal) {
	signal.Reset(s)
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Signal(s)
	}
	if err != nil {
		os.Exit(exitFailed)
	}
	select {} // until it arrives
}
