// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"io"
	"net/http"
	"strconv"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/response"
)

// answer is the response to a denied request.
type answer struct {
	status      int
	contentType string
	body        []byte
	fields      []policy.Field // extra fields from the rule
	challenge   string         // the WWW-Authenticate field; "" for none

	grpcType    string // the content type of a gRPC response; "" for other requests
	grpcCode    int
	grpcMessage string
}

// responseTo builds the response except for the rate limit fields. The body is stored in s, and the
// next call overwrites it.
func (s *scratchSpace) responseTo(r *http.Request, d *core.Decision) answer {
	s.body = response.AppendProblem(s.body[:0], &s.plan, d)
	a := answer{status: d.Status, contentType: response.ContentType(d), body: s.body, challenge: response.Challenge(d)}
	if d.Response != nil {
		a.fields = d.Response.Headers
	}
	if asked := r.Header["Content-Type"]; len(asked) > 0 {
		if a.grpcType = response.GRPCContentType(asked[0]); a.grpcType != "" {
			a.grpcCode, a.grpcMessage = response.GRPCStatus(d)
		}
	}
	return a
}

// rejectsRequest answers a request that the rules cannot decide. It reports whether it has answered
// the request.
func (h *Handler) rejectsRequest(w http.ResponseWriter, r *http.Request, a *attributes) bool {
	switch {
	case !a.servesTarget(), opensTunnel(r):
		rejectTarget(w)
	case len(h.policies) > 0 && isEarly(r):
		rejectEarly(w)
	default:
		return false
	}
	return true
}

// rejectTarget answers a request whose target has an unsupported form. rejectTarget bypasses error
// routes because they would serve the target.
func rejectTarget(w http.ResponseWriter) {
	invalidTargets.Inc()
	w.Header()["Content-Type"] = []string{"application/problem+json"}
	w.WriteHeader(http.StatusBadRequest)
	_, _ = io.WriteString(w, response.InvalidTarget)
}

// isEarly reports whether a request came before the TLS handshake was complete (0-RTT over HTTP/3).
// The address of such a request is not verified, and the request may be a copy of an earlier one.
// So the request may have been sent by someone other than the client that is counted.
func isEarly(r *http.Request) bool { return r.TLS != nil && !r.TLS.HandshakeComplete }

// earlyData is the response to a request in early data. Browsers send such a request again after
// the handshake (RFC 8470).
const earlyData = `{"type":"about:blank","title":"Too Early","status":425,` +
	`"detail":"The request came before the TLS handshake was complete. Send it again."}`

// rejectEarly answers a request in early data. rejectEarly bypasses error routes, which could serve
// the request.
func rejectEarly(w http.ResponseWriter) {
	earlyRequests.Inc()
	w.Header()["Content-Type"] = []string{"application/problem+json"}
	w.WriteHeader(http.StatusTooEarly)
	_, _ = io.WriteString(w, earlyData)
}

// guessedLengthMax is the length of the longest body whose Content-Length the server computes
// itself.
const guessedLengthMax = 2048

// answer.write sends the response. A gRPC client gets a gRPC status. A failed write is not
// returned as an error, because the server would log it and clients can cause thousands of them.
func (a *answer) write(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	if a.challenge != "" {
		header["Www-Authenticate"] = []string{a.challenge}
	}
	for i := range a.fields {
		header[a.fields[i].Name] = []string{a.fields[i].Value}
	}
	if a.grpcType != "" {
		a.writeGRPC(w)
		return
	}
	header["Content-Type"] = []string{a.contentType} // a new slice, because handlers may replace its elements
	// The server adds Content-Length. A Content-Length that is set here would be wrong after an
	// outer handler, such as intercept, replaces the body. For HEAD, the server cannot compute the
	// length of a long body, because the body is not sent.
	if r.Method == http.MethodHead && len(a.body) > guessedLengthMax {
		header["Content-Length"] = []string{strconv.Itoa(len(a.body))}
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body)
}

// writeGRPC sends a trailers-only response. The HTTP status is 200, and a single header block
// carries the gRPC status and ends the stream.
func (a *answer) writeGRPC(w http.ResponseWriter) {
	header := w.Header()
	header["Content-Type"] = []string{a.grpcType}
	header["Grpc-Status"] = []string{strconv.Itoa(a.grpcCode)}
	header["Grpc-Message"] = []string{a.grpcMessage}
	w.WriteHeader(http.StatusOK)
}
