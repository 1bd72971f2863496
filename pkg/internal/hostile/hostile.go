// Package hostile is for the suites of the stores: what a client may send in
// the place of an id, and a check that no method was left out.
package hostile

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Strings are no ids, though most hold or match one: wildcards of subjects and
// globs, paths that lead out, spaces, nothing, NUL, far too much.
func Strings(id string) []string {
	prefix, random, _ := strings.Cut(id, "_")
	return []string{
		"", "*", ">", "?", "[a-z]*", ".", "..", "/", " ", "\t", "\n", "\x00", "a.b", "a/b", "../x", "{x}", "%2e%2e%2f",
		prefix + "_*", prefix + "_>", prefix + "_" + strings.Repeat("*", len(random)), prefix + "_" + strings.Repeat("?", len(random)),
		id + ".", id + ".*", id + ".>", id + " ", id + "\n", id + "\x00", id + "/x", id + "/../" + id, id + "}", "{" + id,
		" " + id, "*." + id, ">." + id, "../" + id, "./" + id, "/" + id, "\x00" + id,
		strings.ToUpper(id), id + id, strings.Repeat("a", 100_000), id + strings.Repeat(".x", 2_000), "\xff\xfe", "ﬁ" + id,
	}
}

// Complete fails the test unless each method of the interface I is in covered,
// by the words that its entries begin with, or in without, those that take
// nothing a client could have chosen.
func Complete[I any](t testing.TB, covered []string, without ...string) {
	t.Helper()
	known := map[string]bool{}
	for _, name := range slices.Concat(covered, without) {
		method, _, _ := strings.Cut(name, " ")
		known[method] = true
	}
	store := reflect.TypeFor[I]()
	for method := range store.Methods() {
		if !known[method.Name] {
			t.Errorf("%s.%s is not tried with hostile ids", store.Name(), method.Name)
		}
		delete(known, method.Name)
	}
	for name := range known {
		t.Errorf("%s has no method %s", store.Name(), name)
	}
}
