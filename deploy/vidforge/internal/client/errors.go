package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/vidforge/vidforge/pkg/render"
)

// ErrUnreachable is wrapped by every error that says that no answer of a
// vidforge server arrived: nobody listens, the connection broke, or something
// in between answered instead. The request may or may not have been served.
var ErrUnreachable = errors.New("the server is not reachable")

// envelope is the farm's error as it travels: in structuredContent of a tool
// error, in the body of an HTTP error, and with the other spelling of code and
// message in error.data of a JSON-RPC error.
type envelope struct {
	Code         render.Code     `json:"code"`
	Message      string          `json:"message"`
	MachineCode  render.Code     `json:"machine_code"`
	HumanMessage string          `json:"human_message"`
	Temporary    bool            `json:"temporary"`
	RetryAfterMS *int64          `json:"retry_after_ms"`
	Details      *render.Details `json:"details"`
}

// decodeEnvelope reads an envelope; nil when b holds none.
func decodeEnvelope(b []byte) *render.Error {
	var e envelope
	_ = json.Unmarshal(b, &e) // what is none leaves the code empty
	if e.MachineCode != "" {
		e.Code, e.Message = e.MachineCode, e.HumanMessage
	}
	if e.Code == "" {
		return nil
	}
	out := render.Errorf(e.Code, render.BlameFarm, "%s", e.Message)
	out.Temporary, out.Details = e.Temporary, e.Details
	if e.RetryAfterMS != nil {
		out.RetryAfter = time.Duration(*e.RetryAfterMS) * time.Millisecond
	}
	return out
}

// classify turns an error of the SDK's client into the farm's own where the
// answer held one.
func classify(doing string, err error) error {
	if err == nil {
		return nil
	}
	if rpc, ok := errors.AsType[*jsonrpc.Error](err); ok {
		if e := decodeEnvelope(rpc.Data); e != nil {
			return fmt.Errorf("%s: %w", doing, e)
		}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// httpError makes the error of an HTTP answer that is not a success.
func httpError(status int, body []byte) error {
	if e := decodeEnvelope(body); e != nil {
		return e
	}
	switch status {
	case http.StatusUnauthorized:
		return render.Errorf(render.CodeCredentialInvalid, render.BlameCaller, "The server asks for a valid API key.")
	case http.StatusForbidden:
		return render.Errorf(render.CodeInsufficientScope, render.BlameCaller, "The API key does not allow this.")
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return fmt.Errorf("%w: HTTP %d %s", ErrUnreachable, status, http.StatusText(status))
	default:
		return fmt.Errorf("the server answered HTTP %d %s", status, http.StatusText(status))
	}
}

// Temporary reports whether the same request may succeed later: the server
// cannot be reached, or says so itself.
func Temporary(err error) bool {
	if e, ok := errors.AsType[*render.Error](err); ok {
		return e.Temporary
	}
	return errors.Is(err, ErrUnreachable)
}
