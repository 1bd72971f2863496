// Package blob keeps bytes in S3-compatible storage: sources, previews,
// segments, results. Objects are immutable: a key is written once and never
// overwritten; readers pin the ETag that the writer got.
package blob

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
)

var (
	// ErrNotFound is returned when the key does not exist.
	ErrNotFound = errors.New("blob: not found")
	// ErrExists is returned when a put finds the key taken.
	ErrExists = errors.New("blob: exists already")
	// ErrChanged is returned when the object no longer has the pinned ETag.
	ErrChanged = errors.New("blob: object changed")
	// ErrTooLarge is returned when a body exceeds PutOptions.MaxSize.
	ErrTooLarge = errors.New("blob: too large")
	// ErrMismatch is returned when a body has another length or hash than
	// announced.
	ErrMismatch = errors.New("blob: body differs from what was announced")
	// ErrBody wraps what reading a body said: the sender's failure, not the
	// store's.
	ErrBody = errors.New("blob: body cannot be read")
	// ErrFile wraps what the file of a download said: this machine's failure,
	// not the store's.
	ErrFile = errors.New("blob: file cannot be written")
	// ErrRefused wraps what a store answers as long as the farm's settings are
	// wrong for it, such as its credentials or its bucket. The text names the
	// setting and the way out.
	ErrRefused = errors.New("blob: store refuses")
	// ErrUnavailable wraps failures of the store that may pass.
	ErrUnavailable = errors.New("blob: store unavailable")
)

// PutOptions of an upload.
type PutOptions struct {
	ContentType string
	// Size is the announced length in bytes, -1 when unknown.
	Size int64
	// SHA256 is the announced hash in hex, "" when unknown.
	SHA256 string
	// MaxSize refuses longer bodies, 0 for no limit.
	MaxSize int64
}

// GetOptions of a read.
type GetOptions struct {
	// ETag pins the object; "" reads whatever is there.
	ETag string
	// Offset and Length select a range; Length 0 reads to the end.
	Offset, Length int64
}

// PresignOptions of a presigned URL.
type PresignOptions struct {
	TTL time.Duration
	// Filename is sent by the store as Content-Disposition (GET only).
	Filename string
	// ContentType is sent by the store (GET), or signed as the type that the
	// client must send (PUT).
	ContentType string
	// Size is signed as Content-Length (PUT only).
	Size int64
}

// Info is an object in a listing.
type Info struct {
	Key      string
	Size     int64
	Modified time.Time
}

// Store is the object store. Keys are of valid UTF-8 without control characters,
// at most 1024 bytes, and without empty parts, "." and ".." between slashes:
// blank ones and others exist nowhere (ErrNotFound). All methods may be called at once. Reads and
// writes retry what can pass; a read that breaks off in mid-body is an error,
// never a short success.
type Store interface {
	// Put streams a body under a new key, hashing it on the way, and returns
	// the pinned object only after the store confirmed it. Nothing is kept in
	// memory but one part. ErrExists if the key is taken, ErrTooLarge,
	// ErrMismatch; after any error nothing is visible under the key.
	Put(ctx context.Context, key string, body io.Reader, o PutOptions) (render.Object, error)
	// Get opens an object. The reader fails if fewer bytes come than the
	// object (or range) has.
	Get(ctx context.Context, key string, o GetOptions) (io.ReadCloser, error)
	// Download writes a whole pinned object to a file of that path, which
	// must not exist, and verifies its length and SHA-256.
	Download(ctx context.Context, o render.Object, path string) error
	// Stat returns key, ETag and size (no hash).
	Stat(ctx context.Context, key string) (render.Object, error)
	// Copy copies a pinned object inside the store to a new key. ErrChanged if
	// it is not the pinned one any more.
	Copy(ctx context.Context, from render.Object, to string) (render.Object, error)
	// Delete removes keys; absent ones are no error.
	Delete(ctx context.Context, keys ...string) error
	// List iterates over the objects below a prefix in order of key.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// ListUnfinished iterates over the multipart uploads below a prefix that
	// were begun and not ended, and Abort removes the parts of one; one that is
	// not there is no error.
	ListUnfinished(ctx context.Context, prefix string) iter.Seq2[Unfinished, error]
	Abort(ctx context.Context, u Unfinished) error
	// PresignGet and PresignPut mint URLs at the public endpoint.
	PresignGet(ctx context.Context, o render.Object, p PresignOptions) (url string, expires time.Time, err error)
	PresignPut(ctx context.Context, key string, p PresignOptions) (url string, header http.Header, expires time.Time, err error)
	// Ping asks whether the bucket is there.
	Ping(ctx context.Context) error
}
