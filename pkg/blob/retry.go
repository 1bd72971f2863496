package blob

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
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
	var last error
	var page bool // instead of an answer
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		ctx, w := watch(ctx, silence)
		defer w.stop()
		last, page = w.explain(f(ctx, w)), w.page.Load()
		switch asked := w.retryAfter(); {
		case last == nil:
			return struct{}{}, nil
		case !passing(last):
			return struct{}{}, backoff.Permanent(last)
		case asked > 0:
			return struct{}{}, &backoff.RetryAfterError{Duration: min(asked, s.cfg.Timeout)}
		}
		return struct{}{}, last
	}, backoff.WithBackOff(s.waits()), backoff.WithMaxTries(uint(s.cfg.Attempts)), backoff.WithMaxElapsedTime(0))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("given up: %w", context.Cause(ctx))
	default:
		return s.classify(last, page)
	}
}

// waits are the times between tries: doubled from try to try up to twenty times
// the first, each changed at random by up to half.
func (s *S3) waits() *backoff.ExponentialBackOff {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = s.cfg.Backoff
	wait.Multiplier = 2
	wait.MaxInterval = 20 * s.cfg.Backoff
	return wait
}

// classify puts the package's own errors on what a store answered. page says
// that the answer was a web page: it comes from something else than a store, and
// tells nothing about the object.
func (s *S3) classify(err error, page bool) error {
	if passing(err) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	answer, ok := errors.AsType[minio.ErrorResponse](err)
	if ok && !page {
		switch answer.StatusCode {
		case http.StatusNotFound:
			switch answer.Code {
			case minio.NoSuchKey, minio.NoSuchUpload, "NoSuchVersion":
				return fmt.Errorf("%w: %w", ErrNotFound, err)
			}
		case http.StatusPreconditionFailed:
			return fmt.Errorf("%w: %w", errPrecondition, err)
		case http.StatusRequestedRangeNotSatisfiable:
			return fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)
		}
	}
	if advice := s.refusal(err); advice != "" {
		return fmt.Errorf("%w: %s: %w", ErrRefused, advice, err)
	}
	return err
}

// refusal tells what to do about an answer that will stay the same until
// somebody changes the farm's settings or the store's; "" for other answers.
// The codes are those of Amazon S3's "Error responses" and of stores that have
// their own words for the same.
func (s *S3) refusal(err error) string {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Sprintf("the certificate of %s is not trusted; check the setting s3-endpoint and the certificate authorities of this machine", s.cfg.Endpoint)
	}
	answer, ok := errors.AsType[minio.ErrorResponse](err)
	if !ok {
		return ""
	}
	switch answer.Code {
	case "InvalidAccessKeyId", "InvalidAccessKeyID", "XAdminUserNotFound":
		return "the store does not know the access key; check the setting s3-access-key"
	case "SignatureDoesNotMatch":
		return "the secret key is wrong, or something on the way changes the requests' host or path; check the settings s3-secret-key and s3-endpoint"
	case "ExpiredToken", "InvalidToken", "TokenRefreshRequired":
		return "the session token is not valid any more; renew the credentials"
	case "RequestTimeTooSkewed":
		return "the clocks of this machine and of the store differ too much; set this machine's clock"
	case "AuthorizationHeaderMalformed", "InvalidRegion", "IllegalLocationConstraintException", "PermanentRedirect", "TemporaryRedirect":
		return fmt.Sprintf("bucket %s is in another region or at another address; check the settings s3-region (%s) and s3-endpoint", s.cfg.Bucket, s.cfg.Region)
	case minio.NoSuchBucket, "InvalidBucketName":
		return fmt.Sprintf("there is no bucket %s; make it, or check the settings s3-bucket, s3-endpoint and s3-path-style", s.cfg.Bucket)
	}
	switch answer.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Sprintf("the access key may not do this in bucket %s; check its policy and the settings s3-access-key, s3-secret-key and s3-bucket", s.cfg.Bucket)
	case http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return fmt.Sprintf("the store sends requests elsewhere; check the settings s3-endpoint and s3-region (%s)", s.cfg.Region)
	}
	return "the store does not do what it is asked; check that an S3 store is at the setting s3-endpoint"
}

// passing reports whether the same request may succeed later.
func passing(err error) bool {
	if answer, ok := errors.AsType[minio.ErrorResponse](err); ok {
		switch answer.StatusCode {
		case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
			return false
		case http.StatusRequestTimeout, http.StatusTooManyRequests, statusClientClosed:
			return true
		}
		switch answer.Code {
		case "RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable", // also inside an answer of status 200
			"ConditionalRequestConflict", "OperationAborted", // another write of the key is under way
			"BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "IncompleteBody": // the body suffered on its way
			return true
		}
		return answer.StatusCode >= http.StatusInternalServerError
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return false
	}
	for _, final := range []error{ErrNotFound, ErrExists, ErrChanged, ErrTooLarge, ErrMismatch, ErrBody, ErrRefused} {
		if errors.Is(err, final) {
			return false
		}
	}
	return true // the connection
}

// statusClientClosed is what proxies before a store say when the connection
// broke.
const statusClientClosed = 499

// hints is a transport that notes what the client's errors do not tell.
type hints struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (h hints) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := h.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err //nolint:wrapcheck // the transport's own
	}
	if w, ok := r.Context().Value(watchdogKey{}).(*watchdog); ok {
		w.hint.Store(int64(parseRetryAfter(resp.Header.Get("Retry-After"))))
		w.page.Store(resp.StatusCode >= http.StatusBadRequest && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html"))
	}
	return resp, nil
}

// parseRetryAfter reads the header as RFC 9110, section 10.2.3, defines it; 0
// when there is nothing to wait for.
func parseRetryAfter(value string) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return max(0, time.Until(at))
}

// watchdog ends a try in which the store is silent. It counts only while the
// store is expected to do something.
type watchdog struct {
	cancel  context.CancelFunc
	timer   *time.Timer
	silence time.Duration
	fired   atomic.Bool
	// What hints noted: the wait that was asked for, and whether a web page
	// came instead of an answer.
	hint atomic.Int64
	page atomic.Bool
}

type watchdogKey struct{}

// watch begins a try, which ends with the returned context.
func watch(ctx context.Context, silence time.Duration) (context.Context, *watchdog) {
	ctx, cancel := context.WithCancel(ctx)
	w := &watchdog{cancel: cancel, silence: silence}
	ctx = context.WithValue(ctx, watchdogKey{}, w)
	w.timer = time.AfterFunc(silence, func() {
		w.fired.Store(true)
		cancel()
	})
	return ctx, w
}

// touch tells that the store did something, or is expected to from now on.
func (w *watchdog) touch() { w.timer.Reset(w.silence) }

// retryAfter is how long the store asked to be left alone, 0 for not.
func (w *watchdog) retryAfter() time.Duration { return time.Duration(w.hint.Load()) }

// learn takes over what another watchdog's try brought.
func (w *watchdog) learn(from *watchdog) {
	w.hint.Store(from.hint.Load())
	w.page.Store(from.page.Load())
}

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
