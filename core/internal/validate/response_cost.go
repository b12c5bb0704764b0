// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
)

// Bounds of the fields that concern responses.
const (
	// entries of count_if and refund_on; each is compared with every response
	statusesMax        = 64
	jsonPathBytesMax   = 256      // the path of a cost in a JSON body
	jsonPathPartsMax   = 16       // known APIs nest their usage data less deeply
	messageBytesMax    = 1024     // gRPC carries the message in a header field
	bodyBytesMax       = 64 << 10 // every denial sends the body
	fieldsMax          = 32       // header fields of a response
	fieldValueBytesMax = 4096
	contentTypeMax     = 256 // bytes
)

// checkAfter checks the response fields of a rule that counts: cost_after, count_if, refund_on,
// response, retry_after and retry_jitter.
func (v *Verifier) checkAfter(at string, r *policy.Rule) {
	v.costAfter(at+".cost_after", r)
	v.statuses(at+".count_if", r.CountIf)
	v.statuses(at+".refund_on", r.RefundOn)
	v.checkOverlap(at, r)
	v.checkRetry(at+".retry_after", r.RetryAfter, policy.RetryAfterMax)
	v.checkRetry(at+".retry_jitter", r.RetryJitter, policy.RetryJitterMax)
	if r.Action != policy.ActionLogOnly {
		v.response(at+".response", r.Response)
	}
}

func (v *Verifier) costAfter(at string, r *policy.Rule) {
	c := r.CostAfter
	if c == nil {
		return
	}
	switch {
	case c.Header != "" && c.JSON != "":
		v.problem(at, "", "has both header and json", "leave one of them out")
	case c.Header != "":
		v.header(at+".header", c.Header)
	case c.JSON != "":
		v.jsonPath(at+".json", c.JSON)
	default:
		v.problem(at, "", "has neither header nor json", "write where the response states its cost")
	}
	if len(r.Cost) > 0 {
		v.problem(at, "", "conflicts with cost",
			"leave cost out: estimate is charged until the response states its cost")
	}
	v.checkCost(at+".estimate", r, c.Estimate, nil)
	for _, bound := range []struct {
		name string
		n    int64
	}{{"default", c.Default}, {"max", c.Max}, {"unread", c.Unread}} {
		if bound.n < 0 || bound.n > counter.CountMax {
			v.problem(at+"."+bound.name, strconv.FormatInt(bound.n, 10), "is out of bounds",
				fmt.Sprintf("write 1 to %d, or leave it out", counter.CountMax))
		}
	}
	if c.Max > 0 && max(c.Estimate, c.Default, c.Unread) > c.Max {
		v.problem(at+".max", strconv.FormatInt(c.Max, 10), "is less than the estimate, the default or unread",
			"raise it: a larger cost counts as an error")
	}
}

// jsonPath checks a path such as usage.total_tokens.
func (v *Verifier) jsonPath(at, path string) {
	parts := strings.Split(path, ".")
	switch {
	case len(path) > jsonPathBytesMax:
		v.problem(at, path[:policy.NameBytesMax]+"…", fmt.Sprintf("has %d bytes", len(path)),
			fmt.Sprintf("write at most %d", jsonPathBytesMax))
	case len(parts) > jsonPathPartsMax:
		v.problem(at, path, fmt.Sprintf("has %d parts", len(parts)), fmt.Sprintf("write at most %d", jsonPathPartsMax))
	case slices.Contains(parts, "") || parts[0] == "$" || !utf8.ValidString(path) ||
		strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }):
		v.problem(at, path, "is not a path in JSON",
			"write the names of members with dots between them, such as usage.total_tokens")
	}
}

func (v *Verifier) statuses(at string, list []policy.Statuses) {
	if len(list) > statusesMax {
		v.problem(at+".status", strconv.Itoa(len(list)), fmt.Sprintf("are more than %d", statusesMax), "write classes, such as 4xx")
		return
	}
	for i, s := range list {
		if s.From < 100 || s.To > 599 || s.From > s.To {
			v.problem(fmt.Sprintf("%s.status[%d]", at, i), fmt.Sprintf("%d-%d", s.From, s.To), "is neither a status nor a class",
				"write one such as 401, or a class such as 5xx")
		}
	}
}

// checkOverlap checks a rule with refund_on, and perhaps count_if. A request counts if count_if
// lists its status and refund_on does not. Some status must count, and refund_on must list some
// status that would count without it.
func (v *Verifier) checkOverlap(at string, r *policy.Rule) {
	if len(r.RefundOn) == 0 {
		return
	}
	counted, both := 0, 0
	for status := 100; status <= 599; status++ {
		if len(r.CountIf) > 0 && !policy.Covers(r.CountIf, status) {
			continue
		}
		counted++
		if policy.Covers(r.RefundOn, status) {
			both++
		}
	}
	switch both {
	case counted:
		v.problem(at+".refund_on", "", "refunds every status: no request would count", "leave something out")
	case 0:
		v.problem(at+".refund_on", "", "has no effect: none of its statuses is in count_if, and no other counts",
			"leave it out")
	}
}

// checkRetry checks a span that is sent to clients in whole seconds.
func (v *Verifier) checkRetry(at string, span, most counter.Micros) {
	if span != 0 && (span < counter.Second || span > most) {
		v.problem(at, span.String(), "is out of bounds", "write 1s to "+most.String())
	}
}

func (v *Verifier) response(at string, r *policy.Response) {
	if r == nil {
		return
	}
	if r.Status != 0 && (r.Status < 400 || r.Status > 599) {
		v.problem(at+".status", strconv.Itoa(r.Status), "is not an error status", "write 400 to 599; left out it is 429")
	}
	if len(r.Message) > messageBytesMax {
		v.problem(at+".message", "", fmt.Sprintf("has %d bytes", len(r.Message)),
			fmt.Sprintf("write at most %d", messageBytesMax))
	}
	if !utf8.ValidString(r.Message) {
		v.problem(at+".message", "", "is not UTF-8", "save the file as UTF-8")
	}
	v.checkBody(at, r)
	v.checkFields(at+".headers", r.Headers)
	if r.Status == 0 && r.Message+r.Body+r.ContentType == "" && len(r.Headers) == 0 {
		v.problem(at, "", "is empty", "leave it out")
	}
}

// checkBody checks a body and its content type. A body with a JSON content type must be valid JSON,
// because otherwise the error would only be noticed by clients.
func (v *Verifier) checkBody(at string, r *policy.Response) {
	kind, _, _ := strings.Cut(r.ContentType, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	isJSON := kind == policy.ContentJSON || strings.HasSuffix(kind, "+json")
	switch {
	case len(r.Body) > bodyBytesMax:
		v.problem(at+".body", "", fmt.Sprintf("has %d bytes", len(r.Body)), fmt.Sprintf("write at most %d", bodyBytesMax))
	case r.Body != "" && r.Message != "":
		v.problem(at+".message", r.Message, "has no effect beside body, which replaces the document that contains the message",
			"leave one of them out")
	case r.Body != "" && isJSON && !ValidJSON(r.Body):
		v.problem(at+".body", "", fmt.Sprintf("is not JSON nested at most %d levels deep, as its content type requires", JSONDepthMax),
			"correct it, or write another content_type")
	case r.Body == "" && r.ContentType != "" && !isJSON:
		v.problem(at+".content_type", r.ContentType, "is not that of the problem document, which is JSON",
			"add a body, or leave it out")
	}
	if why := fieldFlaw(r.ContentType, contentTypeMax); why != "" {
		v.problem(at+".content_type", "", why, `write one such as "application/json"`)
	} else if r.ContentType != "" && !isMediaType(kind) {
		v.problem(at+".content_type", r.ContentType, "is not a content type", `write one such as "application/json"`)
	}
}

func isMediaType(kind string) bool {
	a, b, ok := strings.Cut(kind, "/")
	return ok && a != "" && b != "" && !strings.ContainsFunc(a, match.NotToken) && !strings.ContainsFunc(b, match.NotToken)
}

// checkFields checks the header fields of a response.
func (v *Verifier) checkFields(at string, fields []policy.Field) {
	if len(fields) > fieldsMax {
		v.problem(at, strconv.Itoa(len(fields)), fmt.Sprintf("are more than %d", fieldsMax), "leave some out")
		return
	}
	seen := map[string]bool{}
	for i, f := range fields {
		place := at + "." + f.Name
		if f.Name == "" || len(f.Name) > match.HeaderNameBytesMax || strings.ContainsFunc(f.Name, match.NotToken) {
			v.problem(fmt.Sprintf("%s[%d]", at, i), "", "is not the name of a header", "write one such as X-Plan")
			continue
		}
		name := match.CanonicalHeader(f.Name)
		if remedy := reservedField(name); remedy != "" {
			v.problem(place, f.Name, "cannot be set by a policy", remedy)
		}
		if seen[name] {
			v.problem(place, f.Name, "is listed twice", "put the values into one, with commas")
		}
		seen[name] = true
		if why := fieldFlaw(f.Value, fieldValueBytesMax); why != "" {
			v.problem(place, "", why, "leave it out")
		}
	}
}

// fieldFlaw returns the reason why the text is not a valid header field value, or "". A line break
// is not valid, because it would begin another field.
func fieldFlaw(value string, bytesMax int) string {
	switch {
	case len(value) > bytesMax:
		return fmt.Sprintf("has %d bytes, more than %d", len(value), bytesMax)
	case strings.Trim(value, " \t") != value:
		return "starts or ends with a space, which does not arrive"
	}
	for i := 0; i < len(value); i++ {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return "holds a control character, which could begin another header field"
		}
	}
	return ""
}

// reservedField returns a remedy for a policy that sets a header field which only Penstock or the
// connection may set. reservedField returns "" for any other field.
func reservedField(name string) (remedy string) {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authentication-Info", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Content-Length", "Content-Encoding", "Content-Range":
		return "leave it out: it controls how the message is sent"
	case "Content-Type":
		return "write content_type"
	case "Retry-After":
		return "write retry_after beside response"
	case "Grpc-Status", "Grpc-Message":
		return "leave it out: gRPC clients get it with the denial"
	}
	if strings.HasPrefix(name, "X-Ratelimit-") || name == "Ratelimit" || strings.HasPrefix(name, "Ratelimit-") {
		return "leave it out: Penstock sets it; headers: none turns it off"
	}
	return ""
}
