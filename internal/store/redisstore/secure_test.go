// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// secured starts a server that requires a client certificate, with a user that has only the given
// rights.
func secured(t *testing.T, a *authority, rights string, args ...string) (server *redistest.Server, addr string) {
	t.Helper()
	a.issue("server", &x509.Certificate{DNSNames: []string{"cache.example"}})
	a.issue("client", &x509.Certificate{})
	addr = freeport.WithBus(t)
	_, port, _ := net.SplitHostPort(addr)
	args = append([]string{"--tls-port", port, "--bind", "127.0.0.1"}, append(tlsArgs(a), args...)...)
	server = redistest.Start(t, args...)
	createUser(t, server.Client(), rights)
	return server, addr
}

func tlsArgs(a *authority) []string {
	return []string{"--tls-cert-file", a.file("server.crt"), "--tls-key-file", a.file("server.key"), "--tls-ca-cert-file",
		a.file("ca.crt"), "--tls-auth-clients", "yes"}
}

// createUser creates user me with the given rights and no others.
func createUser(t *testing.T, client Client, rights string) {
	t.Helper()
	command := []any{"acl", "setuser", "me", "on", ">secret"}
	for _, word := range strings.Fields(rights) {
		command = append(command, word)
	}
	if err := client.Do(context.Background(), command...).Err(); err != nil {
		t.Fatal(err)
	}
}

// optionsOfMe returns the options of user me, with the client certificate.
func optionsOfMe(a *authority, log *eventually.Journal) Options {
	return Options{Username: "me", Password: "secret", CAFile: a.file("ca.crt"), CertFile: a.file("client.crt"),
		KeyFile: a.file("client.key"), ServerName: "cache.example", Timeout: TimeoutMax, Logger: log.Logger()}
}

// TestClusterSecured uses a cluster of one server over TLS with client certificates, as a user with
// the minimum rights.
func TestClusterSecured(t *testing.T) {
	a, log := newAuthority(t), &eventually.Journal{}
	server, addr := secured(t, a, LeastPrivilege+" "+ClusterPrivilege, "--cluster-enabled", "yes", "--tls-cluster", "yes")
	configure(t, server, "cluster", "addslotsrange", 0, slotCount-1)
	waitUntil(t, "the cluster is there", func() bool {
		return strings.Contains(server.Client().ClusterInfo(context.Background()).Val(), "cluster_state:ok")
	})
	options := optionsOfMe(a, log)
	options.URL, options.Mode = "rediss://"+addr, ModeCluster
	s := open(t, options)
	callUntilAnswered(t, s)
	if err := s.Check(context.Background()); err != nil {
		t.Errorf("check: %v", err)
	}
	checkNamed(t, server.Client())
	if text := log.String(); text != "" {
		t.Errorf("the log says:\n%s", text)
	}
}

// checkNamed fails the test unless the connections of the store carry its name.
func checkNamed(t *testing.T, client Client) {
	t.Helper()
	list, err := client.ClientList(context.Background()).Result()
	if err != nil || !strings.Contains(list, "name=penstock ") || strings.Contains(list, "cmd=NULL name=penstock") {
		t.Errorf("no connection is called penstock: %v\n%s", err, list)
	}
}

// TestSentinelSecured uses a server and a sentinel over TLS with client certificates, each with its
// own user and password.
func TestSentinelSecured(t *testing.T) {
	a, log := newAuthority(t), &eventually.Journal{}
	server, addr := secured(t, a, LeastPrivilege+" "+SentinelPrivilege)
	sentinel := securedSentinel(t, a, addr)
	options := optionsOfMe(a, log)
	options.URL, options.Mode, options.Master = "rediss://"+sentinel+"/3", ModeSentinel, "cache"
	options.SentinelUsername, options.SentinelPasswordFile = "watcher", write(t, "other-secret\n")
	s := open(t, options)
	callUntilAnswered(t, s)
	checkNamed(t, server.Client())
	watch := redis.NewClient(&redis.Options{Addr: sentinel, TLSConfig: s.settings.tls, DisableIdentity: true})
	t.Cleanup(func() { _ = watch.Close() })
	waitUntil(t, "the sentinel is listened to", func() bool {
		list, _ := watch.ClientList(context.Background()).Result()
		return strings.Contains(list, "sub=1") && strings.Contains(list, "user=watcher")
	})
	if keys := server.Client().Info(context.Background(), "keyspace").Val(); !strings.Contains(keys, "db3:") {
		t.Errorf("nothing was counted in database 3: %s", keys)
	}
	options.SentinelPasswordFile = write(t, "wrong")
	callUntilFailure(t, open(t, options), "WRONGPASS")
	if text := log.String(); strings.Contains(text, "secret") {
		t.Errorf("the log shows a password:\n%s", text)
	}
}

// securedSentinel starts a sentinel that watches a server, and returns its address.
func securedSentinel(t *testing.T, a *authority, masterView string) string {
	t.Helper()
	dir, addr := t.TempDir(), freeport.Address(t)
	_, port, _ := net.SplitHostPort(addr)
	host, watchedPort, _ := net.SplitHostPort(masterView)
	config := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("port 0\ntls-port %s\nbind 127.0.0.1\ndir %s\ntls-replication yes\ntls-cert-file %s\ntls-key-file %s\n"+
		"tls-ca-cert-file %s\ntls-auth-clients yes\nuser watcher on >other-secret %s\nsentinel monitor cache %s %s 1\n",
		port, dir, a.file("server.crt"), a.file("server.key"), a.file("ca.crt"), WatchPrivilege, host, watchedPort)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	process := exec.Command("redis-server", config, "--sentinel")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	waitUntil(t, "the sentinel listens", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return addr
}
