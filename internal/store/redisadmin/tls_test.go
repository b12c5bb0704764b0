// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// certificate writes a certificate for 127.0.0.1 and its key to files. The certificate is
// self-signed.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	pair := server.TLS.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// TestOverTLS: a server is reached over TLS, also by the doctor's commands, and each mistake has
// its own message.
func TestOverTLS(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	start := func(clients string) (addr string) {
		addr = freeport.Address(t)
		_, port, _ := net.SplitHostPort(addr)
		redistest.Start(t, "--tls-port", port, "--bind", "127.0.0.1", "--tls-cert-file", cert, "--tls-key-file", key,
			"--tls-ca-cert-file", cert, "--tls-auth-clients", clients, "--maxmemory-policy", "allkeys-lru")
		return addr
	}
	addr := start("no")
	good := redisstore.Options{URL: "rediss://" + addr, CAFile: cert, CertFile: cert, KeyFile: key}
	found, ok := examined(t, Options{Redis: good, Timeout: patience})
	if ok || found["eviction"].Level != LevelWrong || found["script"].Level != LevelOK {
		t.Errorf("eviction %+v, script %+v", found["eviction"], found["script"])
	}
	runCommands(t, found["eviction"])
	if _, ok := examined(t, Options{Redis: good, Timeout: patience}); !ok {
		t.Error("what it says to do does not help")
	}
	for want, o := range map[string]redisstore.Options{
		"add --redis-ca FILE":                {URL: good.URL, CertFile: cert, KeyFile: key},
		"whether it wants TLS (then write":   {URL: "redis://" + addr},
		"whether it wants another client ce": {URL: "rediss://" + start("yes"), CAFile: cert},
		"cannot be found":                    {URL: "redis://no-such-host.invalid"},
		"add --redis-ca FILE, or --redis-se": {URL: good.URL, CAFile: cert, CertFile: cert, KeyFile: key, ServerName: "elsewhere.example"},
	} {
		d, err := Connect(context.Background(), Options{Redis: o})
		if err == nil {
			_ = d.Close()
			t.Errorf("no error: want %q", want)
			continue
		}
		contains(t, err.Error(), want)
	}
}
