package farm_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/farm"
)

func TestDialWithoutServers(t *testing.T) {
	t.Parallel()
	good := farm.Endpoints{
		NATSURL:  "nats://secret@127.0.0.1:1",
		RedisURL: "redis://:secret@127.0.0.1:1",
		S3:       blob.Config{Endpoint: "http://127.0.0.1:1", Bucket: "bucket", AccessKey: "key", SecretKey: "secret"},
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := farm.Dial(ctx, good, farm.DialOptions{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error tells a credential: %v", err)
	}
	bad := good
	bad.NATSURL = "nats://127.0.0.1:port"
	if _, err := farm.Dial(t.Context(), bad, farm.DialOptions{}); err == nil {
		t.Error("a malformed URL was taken")
	}
}
