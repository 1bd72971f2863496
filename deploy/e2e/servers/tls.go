package servers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// CA is a certificate authority that a test trusts.
type CA struct {
	// File holds the CA's certificate in PEM.
	File string

	dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	issued []string // names
}

// TLS lets a server speak TLS only, with a certificate of the CA for 127.0.0.1
// and localhost.
type TLS struct {
	CA *CA
	// ClientCerts refuses clients without a certificate of the CA.
	ClientCerts bool
}

// NewCA makes a certificate authority.
func NewCA(t testing.TB) *CA {
	t.Helper()
	dir := t.TempDir()
	ca := &CA{File: filepath.Join(dir, "ca.pem"), dir: dir}
	ca.Renew(t)
	return ca
}

// Renew replaces the CA by another in the same file, and everything that it
// issued likewise: a server trusts it, and shows its own, from its next start
// on.
func (ca *CA) Renew(t testing.TB) {
	t.Helper()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "test authority"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, key := sign(t, template, template, nil)
	var err error
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	ca.key = key
	writePEM(t, ca.File, "CERTIFICATE", der)
	issued := ca.issued
	ca.issued = nil
	for _, name := range issued {
		ca.Issue(t, name)
	}
}

// Issue makes a certificate with its key, for a client of that name or a server
// on 127.0.0.1, in files <name>.pem and <name>.key. Another one of the same name
// replaces the files.
func (ca *CA) Issue(t testing.TB, name string) (certFile, keyFile string) {
	t.Helper()
	der, key := sign(t, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, ca.cert, ca.key)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(ca.dir, name+".pem"), filepath.Join(ca.dir, name+".key")
	writePEM(t, certFile, "CERTIFICATE", der)
	writePEM(t, keyFile, "PRIVATE KEY", pkcs8)
	ca.issued = append(ca.issued, name)
	return certFile, keyFile
}

// Config is a client's side of TLS with servers of the CA as it now is, with a
// certificate of its own.
func (ca *CA) Config(t testing.TB) *tls.Config {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	pair, err := tls.LoadX509KeyPair(ca.Issue(t, "test"))
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}

// sign makes a certificate by the template for a new key, signed by parent's
// key, or by the new one if that is nil.
func sign(t testing.TB, template, parent *x509.Certificate, signer *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if signer == nil {
		signer = key
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		t.Fatal(err)
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := replaceFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})); err != nil {
		t.Fatal(err)
	}
}
