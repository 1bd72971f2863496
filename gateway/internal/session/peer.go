package session

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"time"
)

const (
	// dialTimeout and handshakeTimeout bound how long a home may take to pick
	// up.
	dialTimeout      = 3 * time.Second
	handshakeTimeout = 5 * time.Second
	// pingAfter a silence of a connection, and pingTimeout for the answer: so
	// long a home that stands still is believed to be there.
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// idleTimeout closes connections that nobody used.
	idleTimeout = 2 * time.Minute
	// streamWindow is what one stream may hold of bytes that its client does
	// not read.
	streamWindow = 256 << 10
)

// farmKey is a key pair that every gateway of a farm derives for itself: who
// holds it is one.
type farmKey struct {
	private ed25519.PrivateKey
	cert    tls.Certificate
}

func newFarmKey(secret []byte) (farmKey, error) {
	seed, err := hkdf.Key(sha256.New, secret, nil, "vidforge gateway to gateway", ed25519.SeedSize)
	if err != nil {
		return farmKey{}, fmt.Errorf("session: derive the key of gateways: %w", err)
	}
	private := ed25519.NewKeyFromSeed(seed)
	// Only the key counts, so the certificate says nothing else.
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return farmKey{}, fmt.Errorf("session: make the gateways' certificate: %w", err)
	}
	return farmKey{private, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}}, nil
}

var errStranger = errors.New("session: the other side is no gateway of this farm")

// tls is the configuration of both sides.
func (k farmKey) tls() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{k.cert},
		// Both sides prove that they hold the farm's key, which is all there
		// is to know: names and authorities do not matter.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection does it
		ClientAuth:         tls.RequireAnyClientCert,
		ServerName:         "vidforge-gateway",
		VerifyConnection: func(c tls.ConnectionState) error {
			if len(c.PeerCertificates) != 1 {
				return errStranger
			}
			pub, ok := c.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
			own, _ := k.private.Public().(ed25519.PublicKey)
			if !ok || !bytes.Equal(pub, own) {
				return errStranger
			}
			return nil
		},
	}
}

func onlyHTTP2() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP2(true)
	return p
}

// transport reaches other gateways. HTTP/2 because its pings notice a home that
// stands still under a stream that may be silent for long; a full connection
// is followed by another.
func (k farmKey) transport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSClientConfig:     k.tls(),
		TLSHandshakeTimeout: handshakeTimeout,
		IdleConnTimeout:     idleTimeout,
		DisableCompression:  true,
		Protocols:           onlyHTTP2(),
		HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout, MaxReceiveBufferPerStream: streamWindow},
	}
}

type peerKey struct{}

// fromPeer reports whether another gateway handed the request over.
func fromPeer(ctx context.Context) bool {
	peer, _ := ctx.Value(peerKey{}).(bool)
	return peer
}

// HandedOver reports whether another gateway handed the request over, and so has
// counted it already.
func HandedOver(ctx context.Context) bool { return fromPeer(ctx) }

// Peers prepares a server for what other gateways hand over: requests of this
// gateway's sessions, and nothing else. Serve it with ServeTLS and no files.
func (s *Sessions) Peers(srv *http.Server) {
	next := srv.Handler
	srv.TLSConfig, srv.Protocols = s.key.tls(), onlyHTTP2()
	srv.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.endpoints[r.URL.Path] || r.Header.Get(sessionHeader) == "" || !relayed(r.Method) {
			unknown(w)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), peerKey{}, true)))
	})
}
