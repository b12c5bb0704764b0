// SPDX-License-Identifier: Apache-2.0

package console

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"math/big"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/test/certtest"
	"github.com/penstock/penstock/internal/test/freeport"
)

// certify writes a certificate with the given serial number, and its key, as PEM files.
func certify(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	certtest.SelfSigned(t, certFile, keyFile, &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{"localhost"}})
}

// servedSerial returns the serial number of the certificate that an address serves.
func servedSerial(t *testing.T, address string) int64 {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

// TestARenewedCertificateIsServed tests that a claim reads the files of its certificate anew, and
// is served with the new certificate. The files have the same names as in the previous claim.
func TestARenewedCertificateIsServed(t *testing.T) {
	c := newConsole(t, slog.New(slog.DiscardHandler))
	folder := t.TempDir()
	s := &Settings{Listen: freeport.Address(t), Cert: filepath.Join(folder, "cert.pem"), Key: filepath.Join(folder, "key.pem")}
	certify(t, s.Cert, s.Key, 1)
	defer c.mustClaim(t, s, "first")()
	if n := servedSerial(t, s.Listen); n != 1 {
		t.Errorf("certificate %d is served, want 1", n)
	}
	certify(t, s.Cert, s.Key, 2)
	release := c.mustClaim(t, s, "second")
	if n := servedSerial(t, s.Listen); n != 2 {
		t.Errorf("after the certificate was renewed, certificate %d is served, want 2", n)
	}
	release()
	if n := servedSerial(t, s.Listen); n != 1 {
		t.Errorf("after the second claim has ended, certificate %d is served, want 1", n)
	}
}
