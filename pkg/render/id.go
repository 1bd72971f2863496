package render

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"regexp"
	"strings"
)

// ID is the one handle of a render: task id and render id in one. It is
// "task_" and 26 lower-case base32 characters, that is 130 random bits.
type ID string

// AssetID is the id of an uploaded asset: "a_" and 26 characters of [a-z0-9].
type AssetID string

// Tenant is the name of a tenant as configured or as claimed by a token. It is
// never used in a subject, key or path as it is: see Tenant.Key.
type Tenant string

// LocalTenant owns everything on a farm that runs without authentication.
const LocalTenant Tenant = "local"

var (
	idPattern    = regexp.MustCompile(`^task_[a-z2-7]{26}$`)
	assetPattern = regexp.MustCompile(`^a_[a-z0-9]{26}$`)
)

// randomToken returns 26 lower-case base32 characters, 130 bits from the
// operating system's random source. rand.Text promises at least that many and
// may give more one day.
func randomToken() string { return strings.ToLower(rand.Text()[:26]) }

// NewID mints a render id.
func NewID() ID { return ID("task_" + randomToken()) }

// NewAssetID mints an asset id.
func NewAssetID() AssetID { return AssetID("a_" + randomToken()) }

// NewAttemptID mints the random part of an object key, so that two attempts
// at the same work never write the same key.
func NewAttemptID() string { return randomToken() }

// ParseID accepts exactly the ids that NewID mints. Everything that enters a
// subject, a key or a path went through here: JetStream's last_by_subj obeys
// wildcards, so an id with `*` or `>` would read another tenant's record.
func ParseID(s string) (ID, bool) {
	if !idPattern.MatchString(s) {
		return "", false
	}
	return ID(s), true
}

// ParseAssetID accepts exactly the ids that NewAssetID mints.
func ParseAssetID(s string) (AssetID, bool) {
	if !assetPattern.MatchString(s) {
		return "", false
	}
	return AssetID(s), true
}

// Key is the tenant's name in subjects, keys and paths: 26 lower-case base32
// characters of its SHA-256. A tenant's name is a claim of a token and may
// hold any character.
func (t Tenant) Key() string {
	sum := sha256.Sum256([]byte(t))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:26]
}

const (
	assetURIPrefix  = "vidforge://assets/"
	videoURIPrefix  = "vidforge://videos/"
	renderURIPrefix = "vidforge://renders/"
)

// URI is the asset's resource URI, vidforge://assets/a_….
func (a AssetID) URI() string { return assetURIPrefix + string(a) }

// ParseAssetURI takes the asset id out of a vidforge://assets/… URI.
func ParseAssetURI(uri string) (AssetID, bool) {
	rest, ok := strings.CutPrefix(uri, assetURIPrefix)
	if !ok {
		return "", false
	}
	return ParseAssetID(rest)
}

// VideoURI is the resource URI of the finished video.
func (id ID) VideoURI(f Format) string {
	return videoURIPrefix + string(id) + "/final." + string(f)
}

// PreviewURI is the resource URI of the watermark preview.
func (id ID) PreviewURI() string { return renderURIPrefix + string(id) + "/watermark-preview.png" }

// LogURI is the resource URI of the render's encoder log.
func (id ID) LogURI() string { return renderURIPrefix + string(id) + "/log" }
