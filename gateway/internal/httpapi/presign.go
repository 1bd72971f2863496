package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

const (
	finalizeVerb = ":finalize"
	// maxAnnouncement bounds the body of a presign request.
	maxAnnouncement = 8 << 10
)

// presigned is the answer to a presign request. The URL is a credential, so
// nobody may keep the answer.
type presigned struct {
	AssetURI  string            `json:"asset_uri"`
	UploadURL string            `json:"upload_url"`
	Headers   map[string]string `json:"headers"`
	ExpiresAt string            `json:"expires_at"`
}

func (a *API) presign(w http.ResponseWriter, r *http.Request) error {
	req, _ := auth.RequestFrom(r.Context())
	in, err := readAnnouncement(http.MaxBytesReader(w, r.Body, maxAnnouncement))
	if err != nil {
		return err
	}
	p, err := a.cfg.Farm.PresignUpload(r.Context(), req.Tenant, in)
	if err != nil {
		return fmt.Errorf("presign: %w", err)
	}
	out := presigned{p.Asset.ID.URI(), p.URL, map[string]string{}, p.Expires.UTC().Format(time.RFC3339)}
	for name := range p.Header {
		out.Headers[name] = p.Header.Get(name)
	}
	return a.json(w, http.StatusOK, out)
}

// readAnnouncement reads the body member by member, so that each fault names
// its field.
func readAnnouncement(body io.Reader) (a farm.Announcement, err error) {
	var members map[string]json.RawMessage
	b, err := io.ReadAll(body)
	if err != nil || json.Unmarshal(b, &members) != nil {
		return a, render.InvalidField("body", "", "The body must be a JSON object with name, size_bytes and mime_type.").WithCause(err)
	}
	size, present := members["size_bytes"]
	if !present {
		return a, render.InvalidField("size_bytes", "", "size_bytes is required: the file's length in bytes.")
	}
	for name, raw := range members {
		var err error
		switch name {
		case "name":
			err = json.Unmarshal(raw, &a.Name)
		case "mime_type":
			err = json.Unmarshal(raw, &a.MIMEType)
		case "size_bytes":
			if err = json.Unmarshal(size, &a.Size); err != nil || string(size) == "null" {
				return a, render.InvalidField(name, "", "size_bytes must be the file's length in bytes, a whole number of at least 1.")
			}
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			field := name
			if len(field) > 64 {
				field = "body"
			}
			return a, render.InvalidField(field, "", "The body holds name and mime_type as strings, size_bytes as a number, and nothing else.")
		}
	}
	return a, nil
}

func (a *API) finalize(w http.ResponseWriter, r *http.Request) error {
	id, ok := strings.CutSuffix(r.PathValue("asset_id"), finalizeVerb)
	if !ok {
		return render.Errorf(render.CodeResourceNotFound, render.BlameCaller, "There is nothing to post to at this path; see /v1/openapi.json.")
	}
	r.SetPathValue("asset_id", id)
	req, assetID, err := assetOf(r)
	if err != nil {
		return err
	}
	rec, first, err := a.cfg.Farm.FinalizeUpload(r.Context(), req.Tenant, assetID, telemetry.TraceOf(r.Context()))
	if err != nil {
		return fmt.Errorf("finalize: %w", err)
	}
	w.Header().Set("Location", a.cfg.BasePath+"/v1/assets/"+string(rec.ID))
	status := http.StatusOK
	if first {
		status = http.StatusCreated
	}
	return a.json(w, status, showAsset(rec))
}
