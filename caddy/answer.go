// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"io"
	"net/http"
	"strconv"

	"github.com/penstock/penstock/core"
)

// answer is what a refused client is sent.
type answer struct {
	status      int
	contentType string
	body        []byte
	fields      []core.Field // what the rule adds
	challenge   string       // WWW-Authenticate; "" for none

	grpcType    string // the content type of an answer to a gRPC request; "" for any other request
	grpcCode    int
	grpcMessage string
}

// answerTo returns what the client is sent beside the rate limit fields. The body belongs to the scratch.
func (s *scratch) answerTo(r *http.Request, d *core.Decision, challenge string) answer {
	s.body = s.plan.AppendProblem(s.body[:0], d)
	a := answer{status: d.Status, contentType: d.ContentType(), body: s.body, challenge: challenge}
	if d.Response != nil {
		a.fields = d.Response.Headers
	}
	if asked := r.Header["Content-Type"]; len(asked) > 0 {
		if a.grpcType = core.GRPCContentType(asked[0]); a.grpcType != "" {
			a.grpcCode, a.grpcMessage = core.GRPCStatus(d)
		}
	}
	return a
}

// refuseTarget answers a request whose target is of no form that is served. Error routes are not asked: they would serve it.
func refuseTarget(w http.ResponseWriter) {
	invalidTargets.Inc()
	w.Header()["Content-Type"] = []string{"application/problem+json"}
	w.WriteHeader(http.StatusBadRequest)
	_, _ = io.WriteString(w, core.BadTarget)
}

// guessedLengthMax is up to which length the server finds out by itself how long a body is.
const guessedLengthMax = 2048

// write sends the answer. A gRPC client gets it in gRPC's own form. That a client does not wait for its refusal is no error
// of this server, which would log it as one: it is a thing to be had by the thousand.
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
	header["Content-Type"] = []string{a.contentType} // of its own: the handler header may replace what is in it
	// The server adds the Content-Length. Said here it would outlive the body when a handler around us, such as intercept,
	// puts another in its place. Of a long body that nobody is sent it does not know it.
	if r.Method == http.MethodHead && len(a.body) > guessedLengthMax {
		header["Content-Length"] = []string{strconv.Itoa(len(a.body))}
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body)
}

// writeGRPC sends a response of trailers only: HTTP says 200, and the header block, which ends the stream, says what gRPC
// is to know.
func (a *answer) writeGRPC(w http.ResponseWriter) {
	header := w.Header()
	header["Content-Type"] = []string{a.grpcType}
	header["Grpc-Status"] = []string{strconv.Itoa(a.grpcCode)}
	header["Grpc-Message"] = []string{a.grpcMessage}
	w.WriteHeader(http.StatusOK)
}
