// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

// The answer of each upstream contains words that say how it has read the request. The words
// path-admin and path-blocked mean that it took the path to be below /admin/ or /blocked/. The word
// host-admin means that it took the host to be admin.example.

// goSays is the handler of an upstream in Go.
func goSays(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintln(w, "go", wordsOf(r.Host, r.URL.Path, r.URL.Opaque, r.RequestURI))
}

// wordsOf returns these words for a request with the given host and paths. Each of the paths is one
// reading of the target.
func wordsOf(host string, paths ...string) string {
	words := ""
	for _, path := range paths {
		if u, err := url.Parse(path); err == nil && u.Host != "" && u.Scheme != "" {
			host, path = u.Host, u.Path
		}
		for _, word := range []string{"admin", "blocked"} {
			if strings.HasPrefix(path, "/"+word+"/") {
				words += " path-" + word
			}
		}
	}
	if name, _, _ := strings.Cut(host, ":"); strings.EqualFold(strings.TrimSuffix(name, "."), "admin.example") {
		words += " host-admin"
	}
	return words
}

// nodeProgram is an upstream in Node. It parses targets in the ways that are common in Node
// programs.
const nodeProgram = `
const url = require('url')
const server = require('http').createServer((request, response) => {
  const paths = [request.url.split('?')[0]], hosts = [(request.headers.host || '').split(':')[0]]
  for (const read of [t => new URL(t, 'http://' + (request.headers.host || 'h')), t => url.parse(t)]) {
    try {
      const u = read(request.url)
      paths.push(u.pathname || '')
      if (request.url.includes('://')) hosts.push(u.hostname || '')
      paths.push(decodeURIComponent(u.pathname || ''))
    } catch {}
  }
  try { hosts.push(new URL('http://' + request.headers.host).hostname) } catch {}
  let words = 'node'
  for (const word of ['admin', 'blocked'])
    if (paths.some(p => p.startsWith('/' + word + '/'))) words += ' path-' + word
  if (hosts.some(h => h.toLowerCase().replace(/\.$/, '') == 'admin.example')) words += ' host-admin'
  response.end(words + ' of ' + JSON.stringify([request.method, request.url, request.headers.host]) + '\n')
})
server.listen(+process.env.PORT, '127.0.0.1')
`

// startNode runs a Node program until the test ends, and returns the address at which it listens.
func startNode(t testing.TB, program string) (address string) {
	t.Helper()
	path, err := exec.LookPath("node")
	if err != nil {
		t.Fatalf("this test needs Node: run make setup: %v", err)
	}
	address = freeport.Address(t)
	command := exec.Command(path, "-e", program)
	command.Env = append(os.Environ(), "PORT="+portOf(address))
	awaitServer(t, startServer(t, command), address)
	return address
}

// awaitServer waits until the process listens.
func awaitServer(t testing.TB, s *server, address string) {
	t.Helper()
	eventually.Until(t, 20*time.Second, "a server listens at "+address, func() bool {
		s.mustRun()
		connection, err := net.Dial("tcp", address)
		if err == nil {
			connection.Close()
		}
		return err == nil
	})
}

const nginxConfiguration = `
daemon off; master_process off; pid FOLDER/pid; error_log stderr crit;
events { worker_connections 512; }
http {
  access_log off; default_type text/plain;
  client_body_temp_path FOLDER/body; proxy_temp_path FOLDER/proxy; fastcgi_temp_path FOLDER/fastcgi;
  uwsgi_temp_path FOLDER/uwsgi; scgi_temp_path FOLDER/scgi;
  server {
    listen ADDRESS default_server; server_name _;
    location /admin/ { return 200 "nginx path-admin\n"; }
    location /blocked/ { return 200 "nginx path-blocked\n"; }
    location / { return 200 "nginx\n"; }
  }
  server {
    listen ADDRESS; server_name admin.example;
    location /admin/ { return 200 "nginx host-admin path-admin\n"; }
    location / { return 200 "nginx host-admin\n"; }
  }
}
`

// startNginx runs nginx until the test ends. In the configuration, ADDRESS stands for the address
// at which nginx listens, and FOLDER for a temporary folder.
func startNginx(t testing.TB, configuration string) (address string) {
	t.Helper()
	path, err := exec.LookPath("nginx")
	if err != nil {
		path = "/usr/sbin/nginx" // this folder is not in every user's search path
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("this test needs nginx: run make setup: %v", err)
	}
	folder := t.TempDir()
	address = freeport.Address(t)
	file := filepath.Join(folder, "nginx.conf")
	text := strings.NewReplacer("FOLDER", folder, "ADDRESS", address).Replace(configuration)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	awaitServer(t, startServer(t, exec.Command(path, "-p", folder, "-c", file, "-e", "stderr")), address)
	return address
}
