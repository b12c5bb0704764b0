// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net/http"
	"strings"
)

// opensTunnel reports whether a request is a CONNECT that opens no WebSocket. The reverse proxy
// sends the body of such a request as it is. If the body has no length, as over HTTP/2, a server
// such as Go's reads further requests from it. Such requests are neither counted nor matched by
// rules.
func opensTunnel(r *http.Request) bool { return r.Method == http.MethodConnect && !opensWebSocket(r) }

// keepHTTP removes the header field Upgrade if it asks the upstream for another version of HTTP, or
// for TLS. If the upstream agreed, the reverse proxy would pass on all later bytes of the client,
// and the requests in them would not be counted. A server may ignore the field (RFC 9110, section
// 7.8), so the client must expect an answer without an upgrade. Requests for other upgrades, such
// as WebSocket, keep the field.
func keepHTTP(r *http.Request) {
	for _, line := range r.Header["Upgrade"] {
		if namesHTTP(line) {
			delete(r.Header, "Upgrade")
			delete(r.Header, "Http2-Settings")
			return
		}
	}
}

// namesHTTP reports whether a list of protocols in the field Upgrade contains TLS or a version of
// HTTP.
func namesHTTP(list string) bool {
	for protocol := range strings.SplitSeq(list, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(protocol), "/")
		name, _, _ = strings.Cut(name, "-") // the number of a draft, as in h2c-17
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "h2c", "h2", "h3", "http", "tls":
			return true
		}
	}
	return false
}
