package render_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// inspectSource walks the package's own source, so that tests notice what was
// added to it.
func inspectSource(t *testing.T, visit func(ast.Node)) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			visit(n)
			return true
		})
	}
}

// eventTypes are the types that implement render.Event.
func eventTypes(t *testing.T) []string {
	t.Helper()
	var names []string
	inspectSource(t, func(n ast.Node) {
		if f, ok := n.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == "event" {
			if id, ok := f.Recv.List[0].Type.(*ast.Ident); ok {
				names = append(names, id.Name)
			}
		}
	})
	if len(names) == 0 {
		t.Fatal("found no event type")
	}
	return names
}

// constants are the string constants of a type, in order.
func constants(t *testing.T, typ string) []string {
	t.Helper()
	var values []string
	inspectSource(t, func(n ast.Node) {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return
		}
		id, isType := spec.Type.(*ast.Ident)
		lit, isLit := spec.Values[0].(*ast.BasicLit)
		if !isType || !isLit || id.Name != typ {
			return
		}
		s, err := strconv.Unquote(lit.Value)
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, s)
	})
	if len(values) == 0 {
		t.Fatalf("found no constant of type %s", typ)
	}
	return values
}
