// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of what a rule says of responses.
const (
	statusesMax        = 64        // entries of count_if and refund_on: each is compared with every response
	jsonPathBytesMax   = 256       // the path of a cost in a body
	jsonPathPartsMax   = 16        // no API nests its usage deeper
	retryAfterMax      = 366 * Day // of a year's quota
	retryJitterMax     = Day       // more would be another limit
	messageBytesMax    = 1024      // it also goes into a header field of gRPC
	bodyBytesMax       = 64 << 10  // it is sent with every refusal
	fieldsMax          = 32        // header fields of a response
	fieldValueBytesMax = 4096
	contentTypeMax     = 256 // bytes
)

// after checks what a rule that counts says of responses: cost_after, count_if, refund_on, response, retry_after,
// retry_jitter.
func (v *verifier) after(at string, r *Rule) {
	v.costAfter(at+".cost_after", r)
	v.statuses(at+".count_if", r.CountIf)
	v.statuses(at+".refund_on", r.RefundOn)
	v.overlap(at, r)
	v.retry(at+".retry_after", r.RetryAfter, retryAfterMax)
	v.retry(at+".retry_jitter", r.RetryJitter, retryJitterMax)
	if r.Action != ActionLogOnly {
		v.response(at+".response", r.Response)
	}
}

func (v *verifier) costAfter(at string, r *Rule) {
	c := r.CostAfter
	if c == nil {
		return
	}
	switch {
	case c.Header != "" && c.JSON != "":
		v.problem(at, "", "says both header and json", "leave one of them out")
	case c.Header != "":
		v.header(at+".header", c.Header)
	case c.JSON != "":
		v.jsonPath(at+".json", c.JSON)
	default:
		v.problem(at, "", "says neither header nor json", "write where the response says its cost")
	}
	if len(r.Cost) > 0 {
		v.problem(at, "", "stands beside cost, and would replace it",
			"leave cost out: estimate is what is charged before the response says more")
	}
	v.cost(at+".estimate", r, c.Estimate, nil)
	for _, bound := range []struct {
		name string
		n    int64
	}{{"default", c.Default}, {"max", c.Max}, {"unread", c.Unread}} {
		if bound.n < 0 || bound.n > CountMax {
			v.problem(at+"."+bound.name, strconv.FormatInt(bound.n, 10), "is out of bounds",
				fmt.Sprintf("write 1 to %d, or leave it out", CountMax))
		}
	}
	if c.Max > 0 && max(c.Estimate, c.Default, c.Unread) > c.Max {
		v.problem(at+".max", strconv.FormatInt(c.Max, 10), "is less than the estimate, the default or unread",
			"raise it: what is more than it is taken for a mistake")
	}
}

// jsonPath checks a path such as usage.total_tokens.
func (v *verifier) jsonPath(at, path string) {
	parts := strings.Split(path, ".")
	switch {
	case len(path) > jsonPathBytesMax:
		v.problem(at, path[:NameBytesMax]+"…", fmt.Sprintf("has %d bytes", len(path)),
			fmt.Sprintf("write at most %d", jsonPathBytesMax))
	case len(parts) > jsonPathPartsMax:
		v.problem(at, path, fmt.Sprintf("has %d parts", len(parts)), fmt.Sprintf("write at most %d", jsonPathPartsMax))
	case slices.Contains(parts, "") || parts[0] == "$" || !utf8.ValidString(path) ||
		strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }):
		v.problem(at, path, "is not a path in JSON",
			"write the names of members with dots between them, such as usage.total_tokens")
	}
}

func (v *verifier) statuses(at string, list []Statuses) {
	if len(list) > statusesMax {
		v.problem(at+".status", strconv.Itoa(len(list)), fmt.Sprintf("are more than %d", statusesMax), "write classes, such as 4xx")
		return
	}
	for i, s := range list {
		if s.From < 100 || s.To > 599 || s.From > s.To {
			v.problem(fmt.Sprintf("%s.status[%d]", at, i), fmt.Sprintf("%d-%d", s.From, s.To), "is no status and no class",
				"write one such as 401, or a class such as 5xx")
		}
	}
}

// overlap checks that count_if and refund_on together still let something count, and that each has an effect. A request
// counts if count_if names its status and refund_on does not, so the latter only matters where the former holds.
func (v *verifier) overlap(at string, r *Rule) {
	if len(r.RefundOn) == 0 {
		return
	}
	counted, both := 0, 0
	for status := 100; status <= 599; status++ {
		if len(r.CountIf) > 0 && !covers(r.CountIf, status) {
			continue
		}
		counted++
		if covers(r.RefundOn, status) {
			both++
		}
	}
	switch both {
	case counted:
		v.problem(at+".refund_on", "", "gives back everything: no request would count", "leave something out")
	case 0:
		v.problem(at+".refund_on", "", "has no effect: none of its statuses is in count_if, and no other counts",
			"leave it out")
	}
}

// retry checks a span that clients are told. They are told whole seconds.
func (v *verifier) retry(at string, span, most Micros) {
	if span != 0 && (span < Second || span > most) {
		v.problem(at, span.String(), "is out of bounds", "write 1s to "+most.String())
	}
}

func (v *verifier) response(at string, r *Response) {
	if r == nil {
		return
	}
	if r.Status != 0 && (r.Status < 400 || r.Status > 599) {
		v.problem(at+".status", strconv.Itoa(r.Status), "is no status of an error", "write 400 to 599; left out it is 429")
	}
	if len(r.Message) > messageBytesMax {
		v.problem(at+".message", "", fmt.Sprintf("has %d bytes", len(r.Message)),
			fmt.Sprintf("write at most %d", messageBytesMax))
	}
	if !utf8.ValidString(r.Message) {
		v.problem(at+".message", "", "is not UTF-8", "save the file as UTF-8")
	}
	v.body(at, r)
	v.fields(at+".headers", r.Headers)
	if r.Status == 0 && r.Message+r.Body+r.ContentType == "" && len(r.Headers) == 0 {
		v.problem(at, "", "is empty", "leave it out")
	}
}

// body checks a body with its content type. A body that says it is JSON is: clients that cannot read it cannot say why.
func (v *verifier) body(at string, r *Response) {
	kind, _, _ := strings.Cut(r.ContentType, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	isJSON := kind == contentJSON || strings.HasSuffix(kind, "+json")
	switch {
	case len(r.Body) > bodyBytesMax:
		v.problem(at+".body", "", fmt.Sprintf("has %d bytes", len(r.Body)), fmt.Sprintf("write at most %d", bodyBytesMax))
	case r.Body != "" && r.Message != "":
		v.problem(at+".message", r.Message, "has no effect beside body, which replaces the document it would stand in",
			"leave one of them out")
	case r.Body != "" && isJSON && !validJSON(r.Body):
		v.problem(at+".body", "", fmt.Sprintf("is not JSON nested at most %d deep, which its content type says", jsonDepthMax),
			"mend it, or write another content_type")
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
	return ok && a != "" && b != "" && !strings.ContainsFunc(a, notToken) && !strings.ContainsFunc(b, notToken)
}

// fields checks header fields of a response.
func (v *verifier) fields(at string, fields []Field) {
	if len(fields) > fieldsMax {
		v.problem(at, strconv.Itoa(len(fields)), fmt.Sprintf("are more than %d", fieldsMax), "leave some out")
		return
	}
	seen := map[string]bool{}
	for i, f := range fields {
		place := at + "." + f.Name
		if f.Name == "" || len(f.Name) > headerNameBytesMax || strings.ContainsFunc(f.Name, notToken) {
			v.problem(fmt.Sprintf("%s[%d]", at, i), "", "is not the name of a header", "write one such as X-Plan")
			continue
		}
		name := canonicalHeader(f.Name)
		if remedy := reservedField(name); remedy != "" {
			v.problem(place, f.Name, "is not for a policy to set", remedy)
		}
		if seen[name] {
			v.problem(place, f.Name, "is there twice", "put the values into one, with commas")
		}
		seen[name] = true
		if why := fieldFlaw(f.Value, fieldValueBytesMax); why != "" {
			v.problem(place, "", why, "leave it out")
		}
	}
}

// fieldFlaw says why the text cannot be the value of a header field, "" if it can. A line break would begin another field.
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

// reservedField says what to do instead of setting a header field that is ours or the connection's, "" if it is free.
func reservedField(name string) (remedy string) {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authentication-Info", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Content-Length", "Content-Encoding", "Content-Range":
		return "leave it out: it says how the message is sent"
	case "Content-Type":
		return "write content_type"
	case "Retry-After":
		return "write retry_after beside response"
	case "Grpc-Status", "Grpc-Message":
		return "leave it out: gRPC clients get it from the refusal"
	}
	if strings.HasPrefix(name, "X-Ratelimit-") || name == "Ratelimit" || strings.HasPrefix(name, "Ratelimit-") {
		return "leave it out: it tells of the limit; headers: none turns it off"
	}
	return ""
}
