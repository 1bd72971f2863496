package worker_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/vidforge/vidforge/worker"
)

// A worker that is told to end while it starts ends in order.
func TestToldToEndBeforeItBegan(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := worker.Run(ctx, worker.Config{ScratchDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Error(err)
	}
}
