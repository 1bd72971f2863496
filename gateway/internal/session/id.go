package session

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"regexp"
)

// A sealed id is the name of the home, the home's own id of the session, and a
// MAC over both and over whom they were given to, all in base32.
var idPattern = regexp.MustCompile(`^[A-Z2-7]{53,200}$`)

const (
	// nameLength is that of rand.Text: 130 bits.
	nameLength = 26
	// macBytes of HMAC-SHA-256 are kept: 128 bits, which are guessed online.
	macBytes  = 16
	macLength = 26
)

// sealedTo is for whom an id is good.
type sealedTo struct{ endpoint, principal string }

// sealer makes and opens ids.
type sealer struct{ key []byte }

// keys derives what gateways of a farm share from its secret.
func keys(secret []byte) (sealer, farmKey, error) {
	mac, err := hkdf.Key(sha256.New, secret, nil, "vidforge session id", sha256.Size)
	if err != nil {
		return sealer{}, farmKey{}, fmt.Errorf("session: derive the key of ids: %w", err)
	}
	key, err := newFarmKey(secret)
	return sealer{mac}, key, err
}

func (s sealer) mac(to sealedTo, body string) string {
	m := hmac.New(sha256.New, s.key)
	for _, part := range []string{to.endpoint, to.principal, body} {
		// Lengths keep the parts apart. A hash never fails.
		_, _ = m.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		_, _ = m.Write([]byte(part))
	}
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(m.Sum(nil)[:macBytes])
}

func (s sealer) seal(to sealedTo, home replica, inner string) string {
	body := string(home) + inner
	return body + s.mac(to, body)
}

// open takes an id apart. ok is false for any that was not sealed with this key
// to this holder.
func (s sealer) open(to sealedTo, id string) (home replica, inner string, ok bool) {
	if !idPattern.MatchString(id) {
		return "", "", false
	}
	body, mac := id[:len(id)-macLength], id[len(id)-macLength:]
	if !hmac.Equal([]byte(mac), []byte(s.mac(to, body))) {
		return "", "", false
	}
	return replica(body[:nameLength]), body[nameLength:], true
}
