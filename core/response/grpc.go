// SPDX-License-Identifier: Apache-2.0

package response

import (
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/slim"
)

// The gRPC codes of denials. The codes do not depend on the HTTP status that a rule sets.
const (
	grpcPermissionDenied  = 7
	grpcResourceExhausted = 8
	grpcUnavailable       = 14
	grpcUnauthenticated   = 16
)

// GRPCStatus returns the gRPC code and message of a denial. The code is 8 (resource exhausted) for
// limits and penalties, 16 (unauthenticated) for credentials, 7 (permission denied) for forbidden
// requests, 14 (unavailable) if the store did not answer, and 0 for an admitted request. The
// message is percent-encoded for the field grpc-message.
func GRPCStatus(d *core.Decision) (code int, message string) {
	if code = grpcCode(d); code == 0 {
		return 0, ""
	}
	var scratch [128]byte
	return code, percentEncoded(appendDetail(scratch[:0], d))
}

// httpStatuses are the HTTP statuses of the gRPC codes 0 to 16, by the mapping of google.rpc.Code.
// A client can cause four codes at any time, even after its stream has cost a lot: 1 (canceled), 4
// (deadline exceeded, because the request sets grpc-timeout), and 13 (internal) or 2 (unknown, in
// grpc-java), with which servers answer a message that they cannot decode.
var httpStatuses = [...]uint16{200, core.StatusUnread, core.StatusUnread, 400, core.StatusUnread, 404, 409, 403, 429, 400, 409, 400,
	501, core.StatusUnread, 503, 500, 401}

// StatusOfGRPC returns the HTTP status by which count_if and refund_on decide a gRPC response. The
// response itself has the HTTP status 200 even if the call failed. The argument code is the field
// grpc-status. StatusOfGRPC returns [core.StatusUnread] for a code that a client can cause, and for
// a text that is not a code.
func StatusOfGRPC(code string) int {
	n, ok := slim.ParseWhole(code)
	if !ok || n >= int64(len(httpStatuses)) {
		return core.StatusUnread
	}
	return int(httpStatuses[n])
}

// IsGRPC reports whether a response with the content type is gRPC, so that its grpc-status decides.
// Some servers repeat the content type as the client wrote it, and accept other spellings, such as
// application/GRPC. So IsGRPC ignores case, and everything before the slash and after the name.
func IsGRPC(contentType string) bool {
	at := strings.IndexByte(contentType, '/') + 1
	return at > 0 && len(contentType) >= at+len("grpc") && slim.EqualASCII(contentType[at:at+len("grpc")], "grpc")
}

// GRPCContentType returns the content type of the response to a gRPC request. The argument asked is
// the content type of the request. GRPCContentType returns "" if the request is not gRPC.
func GRPCContentType(asked string) string {
	for _, kind := range [...]string{"application/grpc-web-text", "application/grpc-web", "application/grpc"} {
		// The message encoding can follow, as in application/grpc+proto. The type application/grpcx
		// is not a form of gRPC.
		if rest, ok := strings.CutPrefix(asked, kind); ok && (rest == "" || strings.IndexByte("+; ", rest[0]) >= 0) {
			return kind
		}
	}
	return ""
}

func grpcCode(d *core.Decision) int {
	switch d.Outcome {
	case core.OutcomeDenied, core.OutcomePenalized, core.OutcomeOversized:
		return grpcResourceExhausted
	case core.OutcomeUnauthorized:
		return grpcUnauthenticated
	case core.OutcomeBlocked, core.OutcomeMissing:
		return grpcPermissionDenied
	case core.OutcomeDegradedDenied:
		return grpcUnavailable
	default:
		return 0
	}
}

// percentEncoded returns the text as gRPC requires it in a header: unprintable and non-ASCII bytes
// and the percent sign are written as %XX.
func percentEncoded(text []byte) string {
	const hex = "0123456789ABCDEF"
	out := make([]byte, 0, len(text))
	for _, c := range text {
		if c < ' ' || c > '~' || c == '%' {
			out = append(out, '%', hex[c>>4], hex[c&15])
		} else {
			out = append(out, c)
		}
	}
	return string(out)
}
