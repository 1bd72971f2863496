package blob

import (
	"fmt"

	"github.com/vidforge/vidforge/pkg/render"
)

// SourceKey is where an uploaded asset lives. The attempt makes it unique.
func SourceKey(t render.Tenant, a render.AssetID, attempt string) string {
	return fmt.Sprintf("sources/%s/%s/%s", t.Key(), a, attempt)
}

// IncomingKey is where a presigned upload lands before it is finalised.
func IncomingKey(t render.Tenant, a render.AssetID) string {
	return fmt.Sprintf("incoming/%s/%s", t.Key(), a)
}

// WorkKey is where an attempt at a work stores what it made. name says what:
// preview.png, overlay.png, video.mp4, audio.m4a, final.mp4.
func WorkKey(w render.Work, attempt, name string) string {
	return fmt.Sprintf("renders/%s/%s/g%d/%s-%d/%s/%s", w.Tenant.Key(), w.Owner(), w.Generation, w.Stage, w.Index, attempt, name)
}

// RenderPrefix is what every object of a render's stages starts with.
func RenderPrefix(t render.Tenant, id render.ID) string {
	return fmt.Sprintf("renders/%s/%s/", t.Key(), id)
}
