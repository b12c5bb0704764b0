// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core"
)

// answer is what a refused client is sent.
type answer struct {
	status    int
	body      []byte         // the problem document
	response  *core.Response // what the rule says instead; nil if it says nothing
	challenge string         // WWW-Authenticate; "" for none
}

var (
	problemContentType = []string{"application/problem+json"}
	jsonContentType    = []string{"application/json"}
	textContentType    = []string{"text/plain; charset=utf-8"}
)

// guessedLengthMax is up to which length the server finds out by itself how long a body is.
const guessedLengthMax = 2048

// write sends the answer. A gRPC client gets it in gRPC's own form.
func (a *answer) write(w http.ResponseWriter, r *http.Request) error {
	header := w.Header()
	if a.challenge != "" {
		header["Www-Authenticate"] = []string{a.challenge}
	}
	if a.response != nil {
		for _, field := range a.response.Headers {
			header[textproto.CanonicalMIMEHeaderKey(field.Name)] = []string{field.Value}
		}
	}
	if kind := grpcKind(r); kind != "" {
		a.writeGRPC(w, kind)
		return nil
	}
	body := a.body
	header["Content-Type"] = problemContentType
	if a.response != nil && a.response.Body != "" {
		body = []byte(a.response.Body)
		header["Content-Type"] = a.contentType()
	} else if a.response != nil && a.response.ContentType != "" {
		header["Content-Type"] = a.contentType()
	}
	// The server adds the Content-Length. Said here it would outlive the body when a handler around us, such as intercept,
	// puts another in its place. Of a long body that nobody is sent it does not know it.
	if r.Method == http.MethodHead && len(body) > guessedLengthMax {
		header["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	w.WriteHeader(a.status)
	_, err := w.Write(body)
	return err
}

// contentType is that of the rule's body: what the rule says, or what the body looks like.
func (a *answer) contentType() []string {
	text := strings.TrimLeft(a.response.Body, " \t\r\n")
	switch {
	case a.response.ContentType != "":
		return []string{a.response.ContentType}
	case strings.HasPrefix(text, "{"), strings.HasPrefix(text, "["):
		return jsonContentType
	default:
		return textContentType
	}
}

// grpcKind is the content type of an answer to a gRPC request, "" for any other request.
func grpcKind(r *http.Request) string {
	asked := r.Header.Get("Content-Type")
	for _, kind := range [...]string{"application/grpc-web-text", "application/grpc-web", "application/grpc"} {
		// The message encoding may follow: application/grpc+proto. application/grpcx is something else.
		if rest, ok := strings.CutPrefix(asked, kind); ok && (rest == "" || rest[0] == '+' || rest[0] == ';' || rest[0] == ' ') {
			return kind
		}
	}
	return ""
}

// The status codes of gRPC for what is refused here, as gRPC maps HTTP's; but 429 is RESOURCE_EXHAUSTED, which clients
// know to come from a limit, where the mapping says UNAVAILABLE.
const (
	grpcPermissionDenied  = "7"
	grpcResourceExhausted = "8"
	grpcUnavailable       = "14"
	grpcUnauthenticated   = "16"
)

// writeGRPC sends the refusal as a response of trailers only: HTTP says 200, and the header block, which ends the stream,
// says what gRPC is to know.
func (a *answer) writeGRPC(w http.ResponseWriter, kind string) {
	code, message := grpcResourceExhausted, "rate limit exceeded"
	switch a.status {
	case http.StatusUnauthorized:
		code, message = grpcUnauthenticated, "credential refused"
	case http.StatusForbidden:
		code, message = grpcPermissionDenied, "not allowed"
	case http.StatusServiceUnavailable:
		code, message = grpcUnavailable, "service unavailable"
	}
	if a.response != nil {
		// A rule's own response is to requests over its limit, whatever status it gives them.
		code = grpcResourceExhausted
		if a.response.Message != "" {
			message = a.response.Message
		}
	}
	header := w.Header()
	header["Content-Type"] = []string{kind}
	header["Grpc-Status"] = []string{code}
	header["Grpc-Message"] = []string{grpcMessage(message)}
	w.WriteHeader(http.StatusOK)
}

// grpcMessage encodes a message as the header Grpc-Message has it: what is not printable ASCII, and the percent sign, as
// percent and two digits.
func grpcMessage(text string) string {
	const digits = "0123456789ABCDEF"
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if c := text[i]; c >= ' ' && c <= '~' && c != '%' {
			out.WriteByte(c)
		} else {
			out.Write([]byte{'%', digits[c>>4], digits[c&15]})
		}
	}
	return out.String()
}
