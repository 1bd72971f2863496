package e2e

import (
	"testing"

	"github.com/vidforge/vidforge/deploy/embedded/embeddedtest"
	"github.com/vidforge/vidforge/pkg/farm"
)

// newStores opens the four stores on real servers, under names of this test.
func newStores(t *testing.T) farm.Stores {
	t.Helper()
	return embeddedtest.Servers(t).Dial(t).Stores
}
