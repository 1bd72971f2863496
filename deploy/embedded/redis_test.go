package embedded_test

import (
	"testing"

	"github.com/vidforge/vidforge/deploy/embedded"
	"github.com/vidforge/vidforge/pkg/progress/progresstest"
)

func TestProgress(t *testing.T) {
	t.Parallel()
	progresstest.Run(t, func(t *testing.T) string {
		s, err := embedded.StartRedis(t.Context(), embedded.RedisOptions{Password: "secret"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Shutdown)
		return s.URL()
	})
}
