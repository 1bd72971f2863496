package mcptask

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestWire compares what goes over the wire with files to be read by a person.
func TestWire(t *testing.T) {
	t.Parallel()
	h := newHandler(t, testOptions(newFakeStore(allTasks()...)))
	url := serve(t, h)
	task := func(method, id string) *http.Request {
		params := `"taskId":"` + id + `",`
		if method == methodUpdate {
			params += `"inputResponses":{"a":{"action":"accept"}},`
		}
		return modernRequest(url, method, id, params, metaDeclared)
	}
	listen := func(notifications, meta string) *http.Request {
		return modernRequest(url, methodListen, "", `"notifications":`+notifications+`,`, meta)
	}
	call := func(args, meta string) *http.Request {
		return modernRequest(url, methodCall, "render", `"name":"render","arguments":`+args+`,`, meta)
	}
	named := func(name string) *http.Request {
		return modernRequest(url, methodGet, name, `"taskId":"task_working",`, metaDeclared)
	}
	legacy := func(body string) *http.Request {
		return rawRequest(url, map[string]string{versionHeader: Version20251125}, body)
	}
	version := func(header, meta string) *http.Request {
		return rawRequest(url, map[string]string{versionHeader: header, methodHeader: "tools/list"},
			`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"`+meta+`","io.modelcontextprotocol/clientCapabilities":{}}}}`)
	}
	for name, r := range map[string]*http.Request{
		"discover":                 modernRequest(url, methodDiscover, "", "", metaPlain),
		"tools_list":               modernRequest(url, "tools/list", "", "", metaPlain),
		"call_task":                call(`{}`, metaDeclared),
		"call_task_param_ignored":  modernRequest(url, methodCall, "render", `"name":"render","task":{"ttl":5},`, metaDeclared),
		"call_plain":               call(`{}`, metaPlain),
		"call_tool_error":          call(`{"fail":"tool"}`, metaDeclared),
		"call_internal_error":      call(`{"fail":"hard"}`, metaDeclared),
		"call_tasks_required":      call(`{"need":"tasks"}`, metaPlain),
		"call_panic":               call(`{"bug":"panic"}`, metaDeclared),
		"call_undeclared_task_bug": call(`{"bug":true}`, metaPlain),

		"get_working":        task(methodGet, "task_working"),
		"get_bare":           task(methodGet, "task_bare"),
		"get_input_required": task(methodGet, "task_asking"),
		"get_input_nothing":  task(methodGet, "task_waiting"),
		"get_completed":      task(methodGet, "task_done"),
		"get_completed_err":  task(methodGet, "task_refused"),
		"get_failed":         task(methodGet, "task_failed"),
		"get_cancelled":      task(methodGet, "task_cancelled"),
		"get_inconsistent":   task(methodGet, "task_inconsistent"),
		"get_unknown":        task(methodGet, "task_nobody"),
		"get_expired":        task(methodGet, "task_expired"),
		"get_broken":         task(methodGet, "task_broken"),
		"get_undeclared":     modernRequest(url, methodGet, "task_working", `"taskId":"task_working",`, metaPlain),
		"get_id_is_number":   modernRequest(url, methodGet, "5", `"taskId":5,`, metaDeclared),

		"update_ack":           task(methodUpdate, "task_asking"),
		"update_unknown":       task(methodUpdate, "task_nobody"),
		"update_undeclared":    modernRequest(url, methodUpdate, "task_asking", `"taskId":"task_asking","inputResponses":{},`, metaPlain),
		"update_no_responses":  modernRequest(url, methodUpdate, "task_asking", `"taskId":"task_asking",`, metaDeclared),
		"cancel_ack":           task(methodCancel, "task_working"),
		"cancel_finished":      task(methodCancel, "task_done"),
		"cancel_unknown":       task(methodCancel, "task_nobody"),
		"removed_tasks_list":   modernRequest(url, "tasks/list", "", "", metaDeclared),
		"removed_tasks_result": modernRequest(url, "tasks/result", "task_done", `"taskId":"task_done",`, metaDeclared),

		"name_missing":      named(""),
		"name_wrong":        named("task_done"),
		"name_base64":       named("=?base64?dGFza193b3JraW5n?="),
		"name_bad_base64":   named("=?base64?!?="),
		"name_not_ascii":    named("t\u00e4sk"),
		"name_base64_tool":  modernRequest(url, methodCall, "=?base64?d2hvYW1p?=", `"name":"whoami",`, metaDeclared),
		"name_wrong_update": modernRequest(url, methodUpdate, "task_done", `"taskId":"task_asking","inputResponses":{},`, metaDeclared),
		"method_mismatch": rawRequest(url, map[string]string{versionHeader: Version20260728, methodHeader: methodGet, nameHeader: "task_working"},
			`{"jsonrpc":"2.0","id":1,"method":"tasks/cancel","params":{"taskId":"task_working",`+metaDeclared+`}}`),
		"method_missing": rawRequest(url, map[string]string{versionHeader: Version20260728, nameHeader: "task_working"},
			`{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"task_working",`+metaDeclared+`}}`),

		"version_unknown":     version("1999-01-01", "1999-01-01"),
		"version_future":      version("2099-01-01", "2099-01-01"),
		"version_old_in_meta": version(Version20250618, Version20250618),
		"version_mismatch":    version(Version20250618, Version20260728),
		"version_no_header":   version("", Version20260728),

		"malformed":  rawRequest(url, map[string]string{versionHeader: Version20260728, methodHeader: methodGet, nameHeader: "x"}, `{"jsonrpc"`),
		"two_values": rawRequest(url, map[string]string{versionHeader: Version20260728, methodHeader: methodGet, nameHeader: "x"}, `{"jsonrpc":"2.0","id":1,"method":"tasks/get"} {}`),
		"too_large":  task(methodGet, strings.Repeat("x", 9<<10)),
		"not_json":   rawRequest(url, map[string]string{versionHeader: Version20260728, methodHeader: methodGet, nameHeader: "task_working", "Content-Type": "text/plain"}, `{}`),
		"not_a_stream": rawRequest(url, map[string]string{versionHeader: Version20260728, methodHeader: methodGet, nameHeader: "task_working", "Accept": "application/json"},
			`{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"task_working",`+metaDeclared+`}}`),

		"listen":             listen(`{"taskIds":["task_done","task_nobody","task_done","task_expired"]}`, metaDeclared),
		"listen_nothing":     listen(`{"taskIds":[]}`, metaDeclared),
		"listen_undeclared":  listen(`{"taskIds":["task_done"]}`, metaPlain),
		"listen_store_error": listen(`{"taskIds":["task_broken"]}`, metaDeclared),
		"listen_no_filter":   modernRequest(url, methodListen, "", "", metaDeclared),

		"legacy_initialize":     rawRequest(url, nil, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`),
		"legacy_initialize_old": rawRequest(url, nil, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`),
		"legacy_no_session":     legacy(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body, err := r.GetBody()
			if err != nil {
				t.Fatal(err)
			}
			sent := make([]byte, r.ContentLength)
			if _, err := body.Read(sent); err != nil {
				t.Fatal(err)
			}
			if len(sent) > 2000 {
				sent = fmt.Appendf(nil, "(%d bytes)", len(sent))
			}
			got := do(t, r)
			var b strings.Builder
			for _, k := range []string{versionHeader, methodHeader, nameHeader} {
				if v := r.Header.Get(k); v != "" && len(v) < 200 {
					fmt.Fprintf(&b, "%s: %s\n", k, v)
				}
			}
			fmt.Fprintf(&b, "%s\n\n%d %s\n%s", sent, got.status, got.header.Get("Content-Type"), strings.TrimRight(got.body, "\n"))
			golden(t, filepath.Join("testdata", "wire", name+".txt"), b.String()+"\n")
		})
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s:\n got %s\nwant %s", path, got, want)
	}
}
