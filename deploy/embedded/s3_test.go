package embedded_test

import (
	"testing"

	"github.com/vidforge/vidforge/deploy/embedded/embeddedtest"
	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/blob/blobtest"
)

func TestBlobs(t *testing.T) {
	t.Parallel()
	blobtest.Run(t, func(t *testing.T) blob.Config { return embeddedtest.Servers(t).Endpoints.S3 })
}
