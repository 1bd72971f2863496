package auth

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
)

// sealer puts what a browser keeps for the gateway under lock: AES-256-GCM with
// a random nonce. The key is the farm's, so that any gateway opens what another
// one sealed.
type sealer struct{ aead cipher.AEAD }

var errSeal = errors.New("auth: this was not sealed here")

func newSealer(secret []byte) (sealer, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, "vidforge sign-in cookies", 32)
	if err != nil {
		return sealer{}, fmt.Errorf("derive key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return sealer{}, fmt.Errorf("make cipher: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return sealer{}, fmt.Errorf("make cipher: %w", err)
	}
	return sealer{aead}, nil
}

// seal encodes v for the use that purpose names; for another it does not open.
func (s sealer) seal(purpose string, v any) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encode cookie: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, b, []byte(purpose))), nil //nolint:gosec // the nonce is random: see newSealer
}

func (s sealer) open(purpose, sealed string, v any) error {
	b, err := base64.RawURLEncoding.DecodeString(sealed)
	if err == nil {
		b, err = s.aead.Open(nil, nil, b, []byte(purpose))
	}
	if err != nil || json.Unmarshal(b, v) != nil {
		return errSeal
	}
	return nil
}
