package farm

import "github.com/vidforge/vidforge/pkg/blob"

// Endpoints are where the four stores of a farm are reached.
type Endpoints struct {
	// NATSURL is one URL or several with commas between them. Credentials may
	// be part of a URL.
	NATSURL string
	// RedisURL is redis://[user:password@]host:port[/db], or rediss:// for TLS.
	RedisURL string
	// S3 is the object store.
	S3 blob.Config
}
