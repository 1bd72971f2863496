// Package tlsfiles makes TLS connections with certificates from files, which
// are read anew for each connection: files that are replaced count from the
// next connection on. It is for the packages that speak to a farm's servers.
package tlsfiles

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
)

// Files are PEM files, each optional.
type Files struct {
	// CA holds the authorities that are trusted, instead of the system's.
	CA string
	// Cert and Key are the client's own certificate and its key.
	Cert, Key string
}

// Config reads the files.
func (f Files) Config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("certificate and key go together")
	}
	if f.CA != "" {
		b, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("read certificate authorities: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("read certificate authorities: %s holds no certificate", f.CA)
		}
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Dial reads the files and makes a TLS connection.
func (f Files) Dial(ctx context.Context, dialer *net.Dialer, network, addr string) (net.Conn, error) {
	c, err := f.Config()
	if err != nil {
		return nil, err
	}
	conn, err := (&tls.Dialer{NetDialer: dialer, Config: c}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	return conn, nil
}
