package farm_test

import (
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/access"
	"github.com/vidforge/vidforge/pkg/farm"
)

// TestWorkersRights: whatever is added to the stores, these never become a
// worker's.
func TestWorkersRights(t *testing.T) {
	t.Parallel()
	const shards = 3
	w, g := farm.NATSRights("P", shards, access.Worker), farm.NATSRights("P", shards, access.Gateway)
	for _, s := range append(append([]string{}, w.Publish...), w.Subscribe...) {
		for _, never := range []string{"CREATE", "UPDATE", "DELETE", "PURGE", "secrets", "idem", "slots", "timer", "leases.>", "leases.name", ".vidforge.work", "$SYS"} {
			if strings.Contains(s, never) {
				t.Errorf("a worker may %s", s)
			}
		}
		if strings.HasPrefix(s, "$KV.") && (strings.Contains(s, "intents") || strings.Contains(s, "assets")) {
			t.Errorf("a worker may write %s", s)
		}
		if !strings.Contains(s, "Pvidforge") {
			t.Errorf("%s reaches beyond the farm", s)
		}
	}
	for _, s := range append(append([]string{}, g.Publish...), g.Subscribe...) {
		if !strings.Contains(s, "Pvidforge") {
			t.Errorf("a gateway's %s reaches beyond the farm", s)
		}
		if strings.Contains(s, "STREAM.DELETE") || strings.Contains(s, "PURGE") {
			t.Errorf("a gateway may %s", s)
		}
	}
	for _, want := range []string{"$KV.Pvidforge_renders_2.>", "$KV.Pvidforge_leases.work.>", "$JS.API.STREAM.MSG.GET.KV_Pvidforge_intents_2"} {
		if !strings.Contains(strings.Join(w.Publish, " "), want) {
			t.Errorf("a worker lacks %s", want)
		}
	}
}
