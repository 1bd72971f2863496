package render

import (
	"errors"
	"fmt"
	"time"
)

// Code names an error towards clients. The set is closed; Catalogue describes
// every member.
type Code string

// The codes of the contract, section 6.
const (
	CodeInvalidField             Code = "invalid_field"
	CodeSourceNotFound           Code = "source_not_found"
	CodeSourceTooLarge           Code = "source_too_large"
	CodeUnsupportedCodec         Code = "unsupported_codec"
	CodeTextNotRenderable        Code = "text_not_renderable"
	CodeIdempotencyKeyReused     Code = "idempotency_key_reused"
	CodeAssetNotReady            Code = "asset_not_ready"
	CodeRenderQuotaExceeded      Code = "render_quota_exceeded"
	CodeRateLimited              Code = "rate_limited"
	CodeRenderFailed             Code = "render_failed"
	CodeUnavailable              Code = "unavailable"
	CodeWatermarkRejected        Code = "watermark_rejected"
	CodeWatermarkApprovalTimeout Code = "watermark_approval_timeout"
	CodeApprovalAlreadyRecorded  Code = "approval_already_recorded"
	CodeApprovalNotPending       Code = "approval_not_pending"
	CodeApprovalRequiresHuman    Code = "approval_requires_human"
	CodeRenderCancelled          Code = "render_cancelled"
	CodeRenderNotFound           Code = "render_not_found"
	CodeTaskNotFound             Code = "task_not_found"
	CodeTaskExpired              Code = "task_expired"
	CodeResourceNotFound         Code = "resource_not_found"
	CodeMissingClientCapability  Code = "missing_client_capability"
	CodeResourceNotReady         Code = "resource_not_ready"
	CodeInternalError            Code = "internal_error"
	CodeCredentialMissing        Code = "credential_missing"
	CodeCredentialInvalid        Code = "credential_invalid"
	CodeInsufficientScope        Code = "insufficient_scope"
)

// Blame says whose fault an error is. It decides what is tried again, where,
// and who is told.
type Blame string

// Blames.
const (
	// BlameCaller is a request that cannot be served as it is; the caller
	// changes it.
	BlameCaller Blame = "caller"
	// BlameSource is the uploaded media: no retry helps.
	BlameSource Blame = "source"
	// BlameJob is a stage that failed here and may succeed elsewhere.
	BlameJob Blame = "job"
	// BlameWorker is a fault of this worker: another one takes over, and the
	// attempt does not count against the job.
	BlameWorker Blame = "worker"
	// BlameFarm is a store or a service that is down: keep, wait, go on.
	BlameFarm Blame = "farm"
)

// Carrier is where a code travels on the MCP wire.
type Carrier string

// Carriers.
const (
	CarrierTool Carrier = "tool" // CallToolResult with isError
	CarrierRPC  Carrier = "rpc"  // JSON-RPC error
	CarrierHTTP Carrier = "http" // HTTP status with WWW-Authenticate
)

// CatalogueEntry describes a code.
type CatalogueEntry struct {
	Code Code
	// Temporary means that the same request may succeed later.
	Temporary bool
	Carrier   Carrier
	// RPCCode is the JSON-RPC error code where Carrier is CarrierRPC, else 0.
	RPCCode int
	// HTTPStatus is the status on the HTTP API.
	HTTPStatus int
	// Meaning is one sentence for the capability document.
	Meaning string
}

// Catalogue returns every code with its meaning, in the order of the contract.
func Catalogue() []CatalogueEntry {
	return []CatalogueEntry{
		{CodeInvalidField, false, CarrierTool, 0, 400, "An argument is missing, misspelt, out of range or contradicts another; details.field names it."},
		{CodeSourceNotFound, false, CarrierTool, 0, 404, "The asset does not exist or belongs to somebody else."},
		{CodeSourceTooLarge, false, CarrierTool, 0, 413, "The asset exceeds a limit of this farm; details.reason says which."},
		{CodeUnsupportedCodec, false, CarrierTool, 0, 422, "The asset cannot be decoded into a picture."},
		{CodeTextNotRenderable, false, CarrierTool, 0, 422, "The farm's fonts have no glyph for a character of watermark.text."},
		{CodeIdempotencyKeyReused, false, CarrierTool, 0, 409, "The idempotency_key is bound to a render with other arguments."},
		{CodeAssetNotReady, true, CarrierTool, 0, 503, "The upload is not finalised or not probed yet."},
		{CodeRenderQuotaExceeded, true, CarrierTool, 0, 429, "A quota of this tenant is used up, such as its concurrent renders or its render minutes; details.limit says which."},
		{CodeRateLimited, true, CarrierTool, 0, 429, "Too many requests in a short time."},
		{CodeRenderFailed, true, CarrierTool, 0, 503, "The farm could not finish the render; the same request may succeed."},
		{CodeUnavailable, true, CarrierTool, 0, 503, "A part of the farm is not reachable right now."},
		{CodeWatermarkRejected, false, CarrierTool, 0, 409, "The watermark preview was rejected, which ended the render."},
		{CodeWatermarkApprovalTimeout, false, CarrierTool, 0, 409, "Nobody decided on the watermark preview in time, which ended the render."},
		{CodeApprovalAlreadyRecorded, false, CarrierTool, 0, 409, "The opposite decision was recorded before."},
		{CodeApprovalNotPending, false, CarrierTool, 0, 409, "The render does not wait for an approval."},
		{CodeApprovalRequiresHuman, false, CarrierTool, 0, 403, "By this tenant's policy a person decides on the approval page."},
		{CodeRenderCancelled, false, CarrierTool, 0, 409, "The render was cancelled."},
		{CodeRenderNotFound, false, CarrierTool, 0, 404, "The render does not exist, is past its retention, or belongs to somebody else."},
		{CodeTaskNotFound, false, CarrierRPC, -32602, 404, "The task does not exist or belongs to somebody else."},
		{CodeTaskExpired, false, CarrierRPC, -32602, 410, "The task's time is over; the render is still readable by the status tool."},
		{CodeResourceNotFound, false, CarrierRPC, -32602, 404, "The resource does not exist or belongs to somebody else."},
		{CodeMissingClientCapability, false, CarrierRPC, -32021, 400, "The request did not declare the client capability that the method needs."},
		{CodeResourceNotReady, true, CarrierRPC, -32602, 409, "The resource will exist later in the render."},
		{CodeInternalError, true, CarrierRPC, -32603, 500, "A fault of the farm."},
		{CodeCredentialMissing, false, CarrierHTTP, 0, 401, "No credential was sent."},
		{CodeCredentialInvalid, false, CarrierHTTP, 0, 401, "The credential is unknown, revoked or expired."},
		{CodeInsufficientScope, false, CarrierHTTP, 0, 403, "The credential lacks a scope; details.required_scopes names it."},
	}
}

// Describe returns the catalogue's entry of a code, and the entry of
// internal_error for a code that it does not hold.
func Describe(c Code) CatalogueEntry {
	var internal CatalogueEntry
	for _, e := range Catalogue() {
		if e.Code == c {
			return e
		}
		if e.Code == CodeInternalError {
			internal = e
		}
	}
	return internal
}

// Details says what exactly was wrong. It never holds a value that a caller
// did not send itself.
type Details struct {
	// Field is the argument's path, such as "watermark.text"; Fields is set
	// instead when several together are wrong.
	Field  string   `json:"field,omitempty"`
	Fields []string `json:"fields,omitempty"`
	// Value is the caller's own handle or misplaced enum value, else empty.
	Value string `json:"value,omitempty"`
	// Reason is one sentence.
	Reason string `json:"reason,omitempty"`
	// Extra holds further members of the envelope's details object.
	Extra map[string]any `json:"-"`
}

// Error is the one classified error: what reaches a client or decides a retry.
type Error struct {
	Code    Code
	Message string
	// Temporary follows the catalogue unless a cause says otherwise.
	Temporary bool
	Blame     Blame
	// RetryAfter is how long to wait; zero leaves it to the carrier.
	RetryAfter time.Duration
	Details    *Details
	// Cause is for logs and retries, never for clients.
	Cause error
}

func (e *Error) Error() string {
	s := string(e.Code) + ": " + e.Message
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether target is an *Error of the same code, so that
// errors.Is(err, &Error{Code: c}) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Errorf makes an Error with the catalogue's classification.
func Errorf(c Code, blame Blame, format string, args ...any) *Error {
	return &Error{Code: c, Blame: blame, Temporary: Describe(c).Temporary, Message: fmt.Sprintf(format, args...)}
}

// InvalidField is the error of a wrong argument. message names the way out.
func InvalidField(field, value, message string) *Error {
	e := Errorf(CodeInvalidField, BlameCaller, "%s", message)
	e.Details = &Details{Field: field, Value: value, Reason: message}
	return e
}

// WithCause returns a copy that carries err for logs.
func (e *Error) WithCause(err error) *Error {
	c := *e
	c.Cause = err
	return &c
}

// AsError classifies any error: an *Error stays what it is, everything else
// is an internal error of the farm that carries err as its cause.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return Errorf(CodeInternalError, BlameFarm, "An internal error occurred; the request may be sent again.").WithCause(err)
}

// CodeOf returns the code of a classified error and "" for any other.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}
