package client

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
)

// Asset is an uploaded file as the server knows it.
type Asset struct {
	URI             string  `json:"asset_uri"`
	Name            string  `json:"name"`
	MIMEType        string  `json:"mime_type"`
	SizeBytes       int64   `json:"size_bytes"`
	SHA256          string  `json:"sha256"`
	Container       string  `json:"container"`
	DurationSeconds float64 `json:"duration_seconds"`
	Renderable      bool    `json:"renderable"`
	Reason          string  `json:"reason"`
	ExpiresAt       string  `json:"expires_at"`
	// Raw is the asset as it arrived.
	Raw json.RawMessage `json:"-"`
}

// Status is a render as GET /v1/renders/{id} shows it. Nil is unknown.
type Status struct {
	RenderID      string          `json:"render_id"`
	State         render.State    `json:"state"`
	Terminal      bool            `json:"terminal"`
	StatusMessage string          `json:"status_message"`
	PollAfterMS   int64           `json:"poll_after_ms"`
	Progress      *float64        `json:"progress"`
	Stage         string          `json:"stage"`
	FramesDone    *int64          `json:"frames_done"`
	FramesTotal   *int64          `json:"frames_total"`
	FPS           *float64        `json:"fps"`
	ETASeconds    *float64        `json:"eta_seconds"`
	ApprovalURL   string          `json:"approval_url"`
	VideoURI      string          `json:"video_uri"`
	DownloadURL   string          `json:"download_url"`
	SizeBytes     int64           `json:"size_bytes"`
	SHA256        string          `json:"sha256"`
	Error         json.RawMessage `json:"error"`
	// Raw is the status as it arrived.
	Raw json.RawMessage `json:"-"`
}

// Err is the error that the render ended with, nil unless it failed or was
// cancelled.
func (s *Status) Err() error {
	switch s.State {
	case render.StateCancelled:
		return render.Errorf(render.CodeRenderCancelled, render.BlameCaller, "The render was cancelled.")
	case render.StateFailed:
		if e := decodeEnvelope(s.Error); e != nil {
			return e
		}
		return render.Errorf(render.CodeRenderFailed, render.BlameFarm, "%s", s.StatusMessage)
	default:
		return nil
	}
}

// PollAfter is how long to wait before the next look.
func (s *Status) PollAfter() time.Duration { return pollWait(s.PollAfterMS) }

// pollWait keeps a wait that a server asked for within reason.
func pollWait(ms int64) time.Duration {
	return min(max(time.Duration(ms)*time.Millisecond, 100*time.Millisecond), time.Minute)
}

// Upload streams a file to the server as a new asset. progress, which may be
// nil, is called with the bytes sent since the last call.
func (c *Client) Upload(ctx context.Context, path string, progress func(n int)) (*Asset, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("upload: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("upload: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("upload: %s is not a regular file", path)
	}
	body := &counting{r: f, sum: sha256.New(), progress: progress}
	u := c.base.JoinPath("v1", "assets")
	u.RawQuery = url.Values{"name": {filepath.Base(path)}}.Encode()
	// NopCloser: the transport would close the file beside our own Close.
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), io.NopCloser(body))
	if err != nil {
		return nil, fmt.Errorf("upload: %w", err)
	}
	req.ContentLength = info.Size()
	if info.Size() == 0 {
		req.Body = http.NoBody // else the length would be unknown
	}
	req.Header.Set("Content-Type", mimeType(path))
	var a Asset
	if a.Raw, err = c.do(req, &a); err != nil {
		return nil, fmt.Errorf("upload %s: %w", filepath.Base(path), err)
	}
	if got := hex.EncodeToString(body.sum.Sum(nil)); a.SHA256 != "" && a.SHA256 != got {
		return nil, fmt.Errorf("upload %s: the server holds other bytes than were sent (SHA-256 %s, not %s)", filepath.Base(path), a.SHA256, got)
	}
	return &a, nil
}

// counting hashes and counts what is read through it.
type counting struct {
	r        io.Reader
	sum      hash.Hash
	progress func(int)
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.sum.Write(p[:n])
	if c.progress != nil && n > 0 {
		c.progress(n)
	}
	return n, err //nolint:wrapcheck // a reader passes io.EOF on
}

// mimeType guesses by the name only; the server looks at the bytes.
func mimeType(path string) string {
	ext := strings.ToLower(filepath.Ext(path))
	switch ext { // what the system's table may lack
	case ".mp4", ".m4v":
		return "video/mp4"
	case ".mov":
		return "video/quicktime"
	case ".mkv":
		return "video/x-matroska"
	case ".webm":
		return "video/webm"
	}
	if t := mime.TypeByExtension(ext); t != "" {
		return t
	}
	return "application/octet-stream"
}

// Assets lists the caller's assets from cursor on, "" for the start. next is
// "" at the end.
func (c *Client) Assets(ctx context.Context, cursor string, limit int) (page []Asset, next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	u := c.base.JoinPath("v1", "assets")
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	if cursor != "" {
		q.Set("cursor", cursor)
	}
	u.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, "", fmt.Errorf("list assets: %w", err)
	}
	var out struct {
		Assets     []json.RawMessage `json:"assets"`
		NextCursor string            `json:"next_cursor"`
	}
	if _, err := c.do(req, &out); err != nil {
		return nil, "", fmt.Errorf("list assets: %w", err)
	}
	for _, raw := range out.Assets {
		a := Asset{Raw: raw}
		if err := json.Unmarshal(raw, &a); err != nil {
			return nil, "", fmt.Errorf("list assets: %w", err)
		}
		page = append(page, a)
	}
	return page, out.NextCursor, nil
}

// DeleteAsset deletes an asset.
func (c *Client) DeleteAsset(ctx context.Context, id render.AssetID) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, c.base.JoinPath("v1", "assets", string(id)).String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("delete asset: %w", err)
	}
	if _, err := c.do(req, nil); err != nil {
		return fmt.Errorf("delete asset %s: %w", id, err)
	}
	return nil
}

// RenderStatus returns a render as it is now.
func (c *Client) RenderStatus(ctx context.Context, id render.ID) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.JoinPath("v1", "renders", string(id)).String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("get render: %w", err)
	}
	var s Status
	if s.Raw, err = c.do(req, &s); err != nil {
		return nil, fmt.Errorf("get render %s: %w", id, err)
	}
	return &s, nil
}

// Ready asks the operators' address of a gateway whether the farm can work.
func Ready(ctx context.Context, opsURL string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, opsURL+"/readyz", http.NoBody)
	if err != nil {
		return fmt.Errorf("ask for readiness: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask for readiness: %w", err)
	}
	body, err := readAnswer(resp)
	if err != nil {
		return fmt.Errorf("ask for readiness: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready: %s", strings.TrimSpace(string(body)))
	}
	return nil
}

// do sends a request and decodes the JSON answer into out, nil to ignore it.
func (c *Client) do(req *http.Request, out any) (raw json.RawMessage, err error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, unwrapURL(req.Context(), err)
	}
	body, err := readAnswer(resp)
	if err != nil {
		return nil, fmt.Errorf("%w: read the answer: %w", ErrUnreachable, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, httpError(resp.StatusCode, body)
	}
	if out == nil {
		return nil, nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return body, nil
}

// unwrapURL takes off the URL that net/http puts around an error: it is known,
// or it is presigned and secret.
func unwrapURL(ctx context.Context, err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnreachable) && !errors.Is(context.Cause(ctx), context.Canceled) {
		return fmt.Errorf("%w: no answer in time", ErrUnreachable)
	}
	return err
}

// most tries of a download that breaks off without a byte of progress.
const downloadTries = 5

// Download writes the bytes of a finished video to w and checks their size and
// SHA-256. A connection that breaks is resumed. progress, which may be nil, is
// called with the bytes received since the last call.
func (c *Client) Download(ctx context.Context, v *Video, w io.Writer, progress func(n int)) error {
	own := c.base.JoinPath("v1", "renders", v.RenderID, "video").String()
	from := cmp.Or(v.DownloadURL, own)
	d := &download{w: w, sum: sha256.New(), progress: progress}
	wait := 500 * time.Millisecond
	for failures := 0; d.done < v.SizeBytes; {
		before := d.done
		err := c.downloadFrom(ctx, from, d)
		switch {
		case err == nil && d.done >= v.SizeBytes:
		case err != nil && ctx.Err() == nil && !Temporary(err) && from != own:
			from = own // a presigned URL expires, or leads where we cannot go
		case err != nil && (ctx.Err() != nil || !Temporary(err)):
			return fmt.Errorf("download: %w", err)
		default:
			if d.done > before {
				failures, wait = 0, 500*time.Millisecond
			}
			if failures++; failures >= downloadTries {
				return fmt.Errorf("download: %w after %d of %d bytes: %w", ErrUnreachable, d.done, v.SizeBytes, err)
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("download: %w", ctx.Err())
			case <-time.After(wait):
			}
			wait *= 2
		}
	}
	if d.done != v.SizeBytes {
		return fmt.Errorf("download: %d bytes arrived, not %d", d.done, v.SizeBytes)
	}
	if got := hex.EncodeToString(d.sum.Sum(nil)); got != v.SHA256 {
		return fmt.Errorf("download: SHA-256 is %s, not %s", got, v.SHA256)
	}
	return nil
}

// download is what arrived so far.
type download struct {
	w        io.Writer
	sum      hash.Hash
	done     int64
	progress func(int)
}

func (d *download) Write(p []byte) (int, error) {
	n, err := d.w.Write(p)
	d.sum.Write(p[:n])
	d.done += int64(n)
	if d.progress != nil && n > 0 {
		d.progress(n)
	}
	return n, err //nolint:wrapcheck // wrapped by the caller
}

// downloadFrom asks for the bytes that are missing and takes what comes.
func (c *Client) downloadFrom(ctx context.Context, from string, d *download) (err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, http.NoBody)
	if err != nil {
		return errors.New("the server named a URL that is none")
	}
	want := http.StatusOK
	if d.done > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(d.done, 10)+"-")
		want = http.StatusPartialContent
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return unwrapURL(ctx, err)
	}
	if resp.StatusCode != want {
		body, rerr := readAnswer(resp)
		if rerr != nil {
			return fmt.Errorf("%w: %w", ErrUnreachable, rerr)
		}
		return httpError(resp.StatusCode, body)
	}
	defer func() { _ = resp.Body.Close() }() // the copy tells what matters
	buf := make([]byte, 256<<10)
	for {
		n, rerr := resp.Body.Read(buf)
		if _, werr := d.Write(buf[:n]); werr != nil {
			return fmt.Errorf("write: %w", werr)
		}
		switch {
		case errors.Is(rerr, io.EOF):
			return nil
		case rerr != nil && ctx.Err() != nil:
			return fmt.Errorf("read: %w", ctx.Err())
		case rerr != nil:
			return fmt.Errorf("%w: %w", ErrUnreachable, rerr)
		}
	}
}
