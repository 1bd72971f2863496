package blob

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

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

// Areas are what keys begin with. Rights can be given by them.
const (
	AreaSources  = "sources"
	AreaIncoming = "incoming"
	AreaRenders  = "renders"
	AreaFarm     = "farm"
)

// EpochPrefix is what the marks of the ledger's epoch start with.
const EpochPrefix = AreaFarm + "/epoch/"

// EpochKey is the mark of a turn of the ledger's epoch.
func EpochKey(id string, turn uint64) string { return fmt.Sprintf("%s%s/%020d", EpochPrefix, id, turn) }

// Owner is whom an object belongs to, as far as its key tells: a render or an
// asset.
type Owner struct {
	Area, TenantKey string
	Render          render.ID      // "" for an asset
	Asset           render.AssetID // "" for a render
}

var ownedPattern = regexp.MustCompile(`^(sources|incoming|renders)/([a-z2-7]{26})/([a-z0-9_]+)(/.+)?$`)

// OwnerOf reads a key. ok is false for one that no function of this package
// makes.
func OwnerOf(key string) (o Owner, ok bool) {
	m := ownedPattern.FindStringSubmatch(key)
	if m == nil || (m[4] == "") != (m[1] == AreaIncoming) {
		return Owner{}, false
	}
	o = Owner{Area: m[1], TenantKey: m[2]}
	if o.Asset, ok = render.ParseAssetID(m[3]); !ok && o.Area == AreaRenders {
		o.Render, ok = render.ParseID(m[3])
	}
	return o, ok
}

// maxKey is S3's limit, in bytes.
const maxKey = 1024

// checkKey refuses what leads out of the bucket where something on the way, or
// a store that keeps files, reads the key as a path. Such keys exist nowhere.
func checkKey(key string) error {
	if strings.TrimSpace(key) == "" || len(key) > maxKey || !utf8.ValidString(key) || strings.ContainsFunc(key, unicode.IsControl) {
		return fmt.Errorf("malformed key: %w", ErrNotFound)
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part == "." || part == ".." {
			return fmt.Errorf("malformed key: %w", ErrNotFound)
		}
	}
	return nil
}

// checkPrefix is checkKey for the beginning of keys; "" is that of all.
func checkPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	return checkKey(strings.TrimSuffix(prefix, "/"))
}
