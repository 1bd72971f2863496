package programs

import (
	"fmt"

	"github.com/vidforge/vidforge/pkg/farm"
)

// Endpoints are the variables that tell a program where the stores are.
func Endpoints(e farm.Endpoints) []string {
	return []string{
		"VIDFORGE_NATS_URL=" + e.NATSURL,
		"VIDFORGE_REDIS_URL=" + e.RedisURL,
		"VIDFORGE_PREFIX=" + e.Prefix,
		"VIDFORGE_S3_ENDPOINT=" + e.S3.Endpoint,
		"VIDFORGE_S3_REGION=" + e.S3.Region,
		"VIDFORGE_S3_BUCKET=" + e.S3.Bucket,
		"VIDFORGE_S3_ACCESS_KEY=" + e.S3.AccessKey,
		"VIDFORGE_S3_SECRET_KEY=" + e.S3.SecretKey,
		fmt.Sprintf("VIDFORGE_S3_PATH_STYLE=%t", e.S3.PathStyle),
		fmt.Sprintf("VIDFORGE_S3_CREATE_BUCKET=%t", e.S3.CreateBucket),
	}
}
