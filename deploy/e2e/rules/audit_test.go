package rules_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const audit = "docs/contract-audit.md"

// Every rule of the public checklist has one answer, and what the answers name
// is there.
func TestContractAudit(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("testdata/checklist-ids.txt")
	if err != nil {
		t.Fatal(err)
	}
	rules := strings.Fields(string(b))
	if len(rules) != 173 {
		t.Errorf("%d rules, the checklist has 173", len(rules))
	}
	answer := regexp.MustCompile("(?m)^- `([0-9]+\\.[a-z0-9-]+)` (.+)$")
	var answered []string
	for _, m := range answer.FindAllStringSubmatch(string(read(t, audit)), -1) {
		answered = append(answered, m[1])
	}
	if !slices.Equal(answered, rules) {
		for _, id := range rules {
			if n := len(slices.DeleteFunc(slices.Clone(answered), func(a string) bool { return a != id })); n != 1 {
				t.Errorf("%s answers %s %d times", audit, id, n)
			}
		}
		for _, id := range answered {
			if !slices.Contains(rules, id) {
				t.Errorf("%s answers %s, which the checklist does not have", audit, id)
			}
		}
		t.Errorf("%s does not answer the rules once each, in their order", audit)
	}

	tests := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	for _, file := range tracked(t) {
		if strings.HasSuffix(file, "_test.go") {
			for _, m := range declared.FindAllStringSubmatch(string(read(t, file)), -1) {
				tests[m[1]] = true
			}
		}
	}
	named := regexp.MustCompile("`([^`]+)`")
	function := regexp.MustCompile(`^(Test|Fuzz)[A-Z]\w*$`)
	file := regexp.MustCompile(`^(deploy|docs|gateway|helm|pkg|proto|worker)/[\w./-]+$`)
	for _, m := range answer.FindAllStringSubmatch(string(read(t, audit)), -1) {
		for _, n := range named.FindAllStringSubmatch(m[2], -1) {
			switch name := n[1]; {
			case function.MatchString(name) && !tests[name]:
				t.Errorf("%s: there is no %s", m[1], name)
			case file.MatchString(name):
				if _, err := os.Stat(filepath.Join(root, name)); err != nil {
					t.Errorf("%s: there is no %s", m[1], name)
				}
			}
		}
	}
}
