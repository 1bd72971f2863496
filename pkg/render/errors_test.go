package render_test

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
)

func TestCatalogue(t *testing.T) {
	t.Parallel()
	type entry struct {
		code      string
		temporary bool
		carrier   render.Carrier
		rpc, http int
	}
	const tool, rpc, viaHTTP = render.CarrierTool, render.CarrierRPC, render.CarrierHTTP
	want := []entry{
		{"invalid_field", false, tool, 0, 400},
		{"source_not_found", false, tool, 0, 404},
		{"source_too_large", false, tool, 0, 413},
		{"unsupported_codec", false, tool, 0, 422},
		{"text_not_renderable", false, tool, 0, 422},
		{"idempotency_key_reused", false, tool, 0, 409},
		{"asset_not_ready", true, tool, 0, 503},
		{"render_quota_exceeded", true, tool, 0, 429},
		{"rate_limited", true, tool, 0, 429},
		{"render_failed", true, tool, 0, 503},
		{"unavailable", true, tool, 0, 503},
		{"watermark_rejected", false, tool, 0, 409},
		{"watermark_approval_timeout", false, tool, 0, 409},
		{"approval_already_recorded", false, tool, 0, 409},
		{"approval_not_pending", false, tool, 0, 409},
		{"approval_requires_human", false, tool, 0, 403},
		{"render_cancelled", false, tool, 0, 409},
		{"render_not_found", false, tool, 0, 404},
		{"task_not_found", false, rpc, -32602, 404},
		{"task_expired", false, rpc, -32602, 410},
		{"resource_not_found", false, rpc, -32602, 404},
		{"missing_client_capability", false, rpc, -32021, 400},
		{"resource_not_ready", true, rpc, -32602, 409},
		{"internal_error", true, rpc, -32603, 500},
		{"credential_missing", false, viaHTTP, 0, 401},
		{"credential_invalid", false, viaHTTP, 0, 401},
		{"insufficient_scope", false, viaHTTP, 0, 403},
	}
	var got []entry
	var codes []string
	for _, e := range render.Catalogue() {
		got = append(got, entry{string(e.Code), e.Temporary, e.Carrier, e.RPCCode, e.HTTPStatus})
		codes = append(codes, string(e.Code))
		if e.Meaning == "" || !strings.HasSuffix(e.Meaning, ".") {
			t.Errorf("%s: meaning %q is no sentence", e.Code, e.Meaning)
		}
		if render.Describe(e.Code) != e {
			t.Errorf("Describe(%s) is another entry", e.Code)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if declared := constants(t, "Code"); !slices.Equal(declared, codes) {
		t.Errorf("declared are %v, described %v", declared, codes)
	}
	if got := render.Describe("no such code"); got.Code != render.CodeInternalError {
		t.Errorf("an unknown code is described as %s", got.Code)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	e := render.InvalidField("quality", "ultra%d", "100% wrong")
	if e.Message != "100% wrong" || e.Details.Field != "quality" || e.Details.Value != "ultra%d" || e.Blame != render.BlameCaller || e.Temporary {
		t.Errorf("InvalidField: %+v %+v", e, e.Details)
	}
	caused := e.WithCause(io.ErrUnexpectedEOF)
	if e.Cause != nil {
		t.Error("WithCause changed its receiver")
	}
	if got, want := caused.Error(), "invalid_field: 100% wrong: unexpected EOF"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	wrapped := fmt.Errorf("submit: %w", caused)
	for what, ok := range map[string]bool{
		"its cause":         errors.Is(wrapped, io.ErrUnexpectedEOF),
		"its code":          errors.Is(wrapped, &render.Error{Code: render.CodeInvalidField}),
		"CodeOf":            render.CodeOf(wrapped) == render.CodeInvalidField,
		"AsError":           render.AsError(wrapped) == caused,
		"no other code":     !errors.Is(wrapped, &render.Error{Code: render.CodeUnavailable}),
		"CodeOf of another": render.CodeOf(io.EOF) == "",
	} {
		if !ok {
			t.Errorf("a wrapped error does not show %s", what)
		}
	}
	alien := render.AsError(io.EOF)
	if alien.Code != render.CodeInternalError || !alien.Temporary || alien.Blame != render.BlameFarm || !errors.Is(alien, io.EOF) {
		t.Errorf("AsError(io.EOF) = %+v", alien)
	}
	if strings.Contains(alien.Message, "EOF") {
		t.Errorf("the client's message %q shows the cause", alien.Message)
	}
}

func TestFailureError(t *testing.T) {
	t.Parallel()
	f := render.Failure{Code: render.CodeTextNotRenderable, Message: "50% of it", Temporary: true, Field: "watermark.text", Reason: "no glyph"}
	e := f.Error()
	if e.Code != f.Code || e.Message != f.Message || !e.Temporary || e.Details.Field != f.Field || e.Details.Reason != f.Reason {
		t.Errorf("got %+v %+v", e, e.Details)
	}
	if e := (&render.Failure{Code: render.CodeRenderFailed}).Error(); e.Details != nil {
		t.Errorf("details %+v out of nothing", e.Details)
	}
}

func TestHistory(t *testing.T) {
	t.Parallel()
	h := render.History{Attempts: []render.Attempt{
		{Worker: "a", Outcome: render.OutcomeLost}, {Worker: "a", Outcome: render.OutcomeLost}, {Worker: "b", Outcome: render.OutcomeLost},
		{Worker: "c", Outcome: render.OutcomeFailed}, {Worker: "a", Outcome: render.OutcomeOpen},
	}}
	for o, want := range map[render.Outcome][2]int{
		render.OutcomeLost: {3, 2}, render.OutcomeFailed: {1, 1}, render.OutcomeOpen: {1, 1}, render.OutcomeDone: {0, 0}, render.OutcomeHandback: {0, 0},
	} {
		if got := [2]int{h.Count(o), h.Workers(o)}; got != want {
			t.Errorf("%s: count and workers %v, want %v", o, got, want)
		}
	}
}
