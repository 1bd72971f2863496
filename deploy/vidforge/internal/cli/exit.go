package cli

import (
	"context"
	"errors"

	"github.com/vidforge/vidforge/deploy/vidforge/internal/client"
	"github.com/vidforge/vidforge/deploy/vidforge/internal/local"
	"github.com/vidforge/vidforge/pkg/render"
)

// Exit codes of every command. They are part of the interface.
const (
	ExitOK          = 0
	ExitError       = 1  // any other error; doctor: something needed is missing
	ExitUsage       = 2  // wrong flags or arguments, here or in the farm's eyes
	ExitRejected    = 3  // the watermark was rejected
	ExitCancelled   = 4  // the render was cancelled, also by Ctrl-C
	ExitFailed      = 5  // the render failed, or the source cannot be rendered
	ExitUnreachable = 6  // the server cannot be reached
	ExitUnapproved  = 7  // an approval is needed and nobody gave it
	ExitInUse       = 8  // another process uses the data directory
	ExitDenied      = 9  // the API key is missing, invalid or lacks a scope
	ExitNotFound    = 10 // no such render or asset
)

// exitCodes is the section of the help texts.
const exitCodes = `Exit codes:
   0  done
   1  any other error; doctor: something needed is missing
   2  wrong flags or arguments
   3  the watermark was rejected
   4  the render was cancelled, also by Ctrl-C
   5  the render failed, or the source cannot be rendered
   6  the server cannot be reached
   7  an approval is needed and nobody gave it
   8  another process uses the data directory
   9  the API key is missing, invalid or lacks a scope
  10  no such render or asset`

// usageError is a wrong call of the command.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// errUnapproved says that nobody can be asked.
var errUnapproved = errors.New("a watermark needs an approval and nobody can be asked, as the input is no terminal: " +
	"pass --approve to approve it unseen, or --no-approval to render without a preview")

// errMissing says that doctor found something wrong, which it has printed.
var errMissing = errors.New("something that is needed is missing")

// ExitCode maps the outcome of a command to its exit code.
func ExitCode(err error) int {
	var (
		usage usageError
		inUse *local.InUseError
		farm  *render.Error
	)
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &inUse):
		return ExitInUse
	case errors.Is(err, errUnapproved):
		return ExitUnapproved
	case errors.As(err, &usage):
		return ExitUsage
	case errors.As(err, &farm):
		return exitCodeOf(farm.Code)
	case errors.Is(err, context.Canceled):
		return ExitCancelled
	case errors.Is(err, client.ErrUnreachable):
		return ExitUnreachable
	default:
		return ExitError
	}
}

func exitCodeOf(c render.Code) int {
	switch c {
	case render.CodeInvalidField, render.CodeTextNotRenderable, render.CodeIdempotencyKeyReused:
		return ExitUsage
	case render.CodeWatermarkRejected:
		return ExitRejected
	case render.CodeRenderCancelled:
		return ExitCancelled
	case render.CodeRenderFailed, render.CodeUnsupportedCodec, render.CodeSourceTooLarge:
		return ExitFailed
	case render.CodeUnavailable:
		return ExitUnreachable
	case render.CodeWatermarkApprovalTimeout, render.CodeApprovalRequiresHuman:
		return ExitUnapproved
	case render.CodeCredentialMissing, render.CodeCredentialInvalid, render.CodeInsufficientScope:
		return ExitDenied
	case render.CodeSourceNotFound, render.CodeRenderNotFound, render.CodeTaskNotFound, render.CodeTaskExpired, render.CodeResourceNotFound:
		return ExitNotFound
	default:
		return ExitError
	}
}
