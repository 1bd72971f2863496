package blob

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/minio/minio-go/v7"
)

var (
	// errPrecondition is a refused If-Match or If-None-Match.
	errPrecondition = errors.New("precondition failed")
	// errSilent is the end of a try in which the store said nothing for too
	// long.
	errSilent = errors.New("the store was silent for too long")
)

// do calls f until it succeeds, fails for good or was tried often enough. Each
// try gets a watchdog over silence. What may pass but did not is returned as
// ErrUnavailable.
func (s *S3) do(ctx context.Context, silence time.Duration, f func(context.Context, *watchdog) error) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = s.cfg.Backoff
	wait.MaxInterval = 20 * s.cfg.Backoff
	var last error
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		ctx, w := watch(ctx, silence)
		defer w.stop()
		last = w.explain(f(ctx, w))
		if last != nil && !passing(last) {
			return struct{}{}, backoff.Permanent(last)
		}
		return struct{}{}, last
	}, backoff.WithBackOff(wait), backoff.WithMaxTries(uint(s.cfg.Attempts)), backoff.WithMaxElapsedTime(0))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("given up: %w", context.Cause(ctx))
	default:
		return classify(last)
	}
}

// classify puts the package's own errors on what a store answered.
func classify(err error) error {
	if passing(err) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	answer, ok := errors.AsType[minio.ErrorResponse](err)
	if !ok {
		return err
	}
	switch {
	case answer.Code == minio.NoSuchBucket: // not an absent object: a wrong or lost store
		return err
	case answer.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case answer.StatusCode == http.StatusPreconditionFailed:
		return fmt.Errorf("%w: %w", errPrecondition, err)
	case answer.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)
	}
	return err
}

// passing reports whether the same request may succeed later.
func passing(err error) bool {
	if answer, ok := errors.AsType[minio.ErrorResponse](err); ok {
		switch answer.StatusCode {
		case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError,
			http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
		switch answer.Code {
		case "RequestTimeout", "SlowDown", "InternalError", // also inside an answer of status 200
			"ConditionalRequestConflict", "OperationAborted": // another write of the key is under way
			return true
		}
		return false
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return false
	}
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrExists), errors.Is(err, ErrChanged),
		errors.Is(err, ErrTooLarge), errors.Is(err, ErrMismatch):
		return false
	}
	return true // the connection
}

// watchdog ends a try in which the store is silent. It counts only while the
// store is expected to do something.
type watchdog struct {
	cancel  context.CancelFunc
	timer   *time.Timer
	silence time.Duration
	fired   atomic.Bool
}

// watch begins a try, which ends with the returned context.
func watch(ctx context.Context, silence time.Duration) (context.Context, *watchdog) {
	ctx, cancel := context.WithCancel(ctx)
	w := &watchdog{cancel: cancel, silence: silence}
	w.timer = time.AfterFunc(silence, func() {
		w.fired.Store(true)
		cancel()
	})
	return ctx, w
}

// touch tells that the store did something, or is expected to from now on.
func (w *watchdog) touch() { w.timer.Reset(w.silence) }

// pause tells that nothing is expected of the store.
func (w *watchdog) pause() { w.timer.Stop() }

// stop ends the try and everything that still runs in it.
func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel()
}

// explain replaces the error that the watchdog caused by what it saw.
func (w *watchdog) explain(err error) error {
	if err != nil && w.fired.Load() {
		return errSilent
	}
	return err
}
