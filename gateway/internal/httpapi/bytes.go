package httpapi

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/filename"
)

// patientWriter lets an answer take as long as it needs while bytes flow, and
// breaks off one whose reader stands still.
type patientWriter struct {
	http.ResponseWriter
	rc    *http.ResponseController
	stall time.Duration
}

func (p *patientWriter) Write(b []byte) (int, error) {
	if err := p.rc.SetWriteDeadline(time.Now().Add(p.stall)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, fmt.Errorf("set write deadline: %w", err)
	}
	return p.ResponseWriter.Write(b) //nolint:wrapcheck // this is the writer
}

// Sizes of the ranges that are asked of the store: small first, because many
// clients look at the head of a file only.
const (
	firstWindow = 1 << 20
	maxWindow   = 32 << 20
)

// seeker reads a stored object as http.ServeContent wants it. It opens the
// store only when bytes are read, in growing windows, so that a small range
// does not start the download of the whole object.
type seeker struct {
	ctx    context.Context //nolint:containedctx // of the one request that it serves
	open   func(ctx context.Context, offset, length int64) (io.ReadCloser, error)
	size   int64
	at     int64 // where the next Read reads
	body   io.ReadCloser
	bodyAt int64 // where body stands
	left   int64 // of the open window
	window int64 // of the next
	failed error
}

func (s *seeker) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += s.at
	case io.SeekEnd:
		offset += s.size
	}
	if offset < 0 {
		return s.at, errors.New("httpapi: seek before the start")
	}
	s.at = offset
	return offset, nil
}

func (s *seeker) Read(b []byte) (int, error) {
	if s.at >= s.size {
		return 0, io.EOF
	}
	if err := s.prepare(); err != nil {
		s.failed = err
		return 0, err
	}
	n, err := s.body.Read(b[:min(int64(len(b)), s.left)])
	s.at += int64(n)
	s.bodyAt = s.at
	s.left -= int64(n)
	switch {
	case s.left == 0:
		err = s.Close()
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	s.failed = err
	return n, err
}

// prepare opens the window that holds the next byte.
func (s *seeker) prepare() error {
	if s.body != nil && s.bodyAt == s.at {
		return nil
	}
	if s.bodyAt != s.at {
		s.window = 0
	}
	if err := s.Close(); err != nil {
		return err
	}
	s.window = max(s.window, firstWindow)
	s.left = min(s.window, s.size-s.at)
	body, err := s.open(s.ctx, s.at, s.left)
	if err != nil {
		return err
	}
	s.body, s.bodyAt, s.window = body, s.at, min(2*s.window, maxWindow)
	return nil
}

// Close ends the open window.
func (s *seeker) Close() error {
	body := s.body
	if body == nil {
		return nil
	}
	s.body = nil
	if err := body.Close(); err != nil {
		return fmt.Errorf("close object: %w", err)
	}
	return nil
}

// serve answers with an object's bytes: HEAD, ranges, If-None-Match, If-Range.
// The ETag is the content's own hash, so it outlives the store.
func (a *API) serve(w http.ResponseWriter, r *http.Request, c *farm.Content, disposition string) (err error) {
	body := &seeker{ctx: r.Context(), open: c.Open, size: c.Object.Size}
	defer func() { err = errors.Join(err, body.Close()) }()
	tag := c.Object.SHA256
	if tag == "" {
		tag = strings.Trim(c.Object.ETag, `"`)
	}
	// Nothing is written before the first bytes are there, so that a store
	// that fails gives an error and not an empty video.
	if r.Method == http.MethodGet && c.Object.Size > 0 && r.Header.Get("Range") == "" && r.Header.Get("If-None-Match") == "" {
		if err := body.prepare(); err != nil {
			return fmt.Errorf("open content: %w", err)
		}
	}
	h := w.Header()
	h.Set("Content-Type", c.MIMEType)
	h.Set("Content-Disposition", filename.Disposition(disposition, c.Name))
	h.Set("ETag", `"`+tag+`"`)
	h.Set("Cache-Control", "private, max-age=3600, immutable")
	h.Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(&patientWriter{w, http.NewResponseController(w), a.cfg.Stall}, r, "", c.Modified, body)
	if body.failed != nil && r.Context().Err() == nil {
		a.cfg.Logger.WarnContext(r.Context(), "serve content", "error", body.failed)
		// The length was promised: cut the connection rather than end it as if
		// that were all.
		panic(http.ErrAbortHandler)
	}
	return nil
}

func isSHA256(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32
}

// mimeType is the body's declared type, without parameters.
func mimeType(r *http.Request) string {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return "application/octet-stream"
	}
	return t
}
