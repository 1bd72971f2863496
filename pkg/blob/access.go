package blob

import "github.com/vidforge/vidforge/pkg/access"

// Access is what a role needs of the bucket.
//
// A worker writes what attempts make and reads what they need; it deletes
// nothing, since finished videos lie below the same prefix, and puts nothing
// where uploads are. It may list the bucket: without that right S3 answers to
// a question for an absent object as to a forbidden one.
func Access(bucket string, role access.Role) []access.Statement {
	objects := func(area string) string { return "arn:aws:s3:::" + bucket + "/" + area }
	whole := "arn:aws:s3:::" + bucket
	if role == access.Worker {
		return []access.Statement{
			{Action: []string{"s3:ListBucket"}, Resource: []string{whole}},
			{Action: []string{"s3:GetObject"}, Resource: []string{objects(AreaSources + "/*"), objects(AreaRenders + "/*")}},
			{Action: []string{"s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"}, Resource: []string{objects(AreaRenders + "/*")}},
		}
	}
	return []access.Statement{
		{Action: []string{"s3:ListBucket", "s3:ListBucketMultipartUploads"}, Resource: []string{whole}},
		{
			Action:   []string{"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"},
			Resource: []string{objects("*")},
		},
	}
}
