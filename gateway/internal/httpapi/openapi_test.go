package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestOpenAPIDescribesTheRoutes holds the document against the table of routes,
// in both directions.
func TestOpenAPIDescribesTheRoutes(t *testing.T) {
	t.Parallel()
	var doc struct {
		OpenAPI string `json:"openapi"`
		Paths   map[string]map[string]struct {
			OperationID string `json:"operationId"`
			Description string `json:"description"`
			Parameters  []struct {
				Name, In string
			} `json:"parameters"`
			Responses map[string]any `json:"responses"`
		} `json:"paths"`
		Components struct {
			Schemas   map[string]any `json:"schemas"`
			Responses map[string]any `json:"responses"`
		} `json:"components"`
	}
	if err := json.Unmarshal(openAPI, &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Fatalf("openapi %q", doc.OpenAPI)
	}
	described := map[string]bool{}
	ids := map[string]bool{}
	for path, ops := range doc.Paths {
		for method, op := range ops {
			described[strings.ToUpper(method)+" "+path] = true
			if op.OperationID == "" || ids[op.OperationID] {
				t.Errorf("%s %s: operationId %q", method, path, op.OperationID)
			}
			ids[op.OperationID] = true
			for name := range pathParameters(path) {
				if !slices.ContainsFunc(op.Parameters, func(p struct{ Name, In string }) bool { return p.Name == name && p.In == "path" }) {
					t.Errorf("%s %s: parameter %s is not described", method, path, name)
				}
			}
			if len(op.Responses) == 0 {
				t.Errorf("%s %s: no responses", method, path)
			}
		}
	}
	served := map[string]bool{"GET /v1/openapi.json": true}
	for _, r := range routes() {
		served[r.method+" "+r.path] = true
		op := doc.Paths[r.path][strings.ToLower(r.method)]
		if want := strings.Join(r.scopes, " or "); !strings.Contains(op.Description, want+".") {
			t.Errorf("%s %s: description %q does not name %q", r.method, r.path, op.Description, want)
		}
		for _, status := range []string{"401", "403"} {
			if op.Responses[status] == nil {
				t.Errorf("%s %s: %s is not described", r.method, r.path, status)
			}
		}
	}
	if !maps.Equal(described, served) {
		t.Errorf("described %v\nserved %v", slices.Sorted(maps.Keys(described)), slices.Sorted(maps.Keys(served)))
	}
	// Every reference resolves.
	for _, ref := range refs(openAPI) {
		kind, name, _ := strings.Cut(strings.TrimPrefix(ref, "#/components/"), "/")
		known := map[string]map[string]any{"schemas": doc.Components.Schemas, "responses": doc.Components.Responses}
		if known[kind][name] == nil {
			t.Errorf("dangling reference %s", ref)
		}
	}
}

func pathParameters(path string) map[string]bool {
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`\{([^}]*)\}`).FindAllStringSubmatch(path, -1) {
		names[m[1]] = true
	}
	return names
}

func refs(doc []byte) []string {
	var found []string
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if r, ok := v["$ref"]; ok {
				found = append(found, fmt.Sprint(r))
			}
			for _, x := range v {
				walk(x)
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		}
	}
	var v any
	if json.Unmarshal(doc, &v) == nil {
		walk(v)
	}
	return found
}
