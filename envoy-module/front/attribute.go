// SPDX-License-Identifier: Apache-2.0

package front

import (
	"slices"
	"strings"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
)

// The kinds of attributes. Envoy has a separate callback for each kind.
const (
	attributeText = iota
	attributeNumber
	attributeBool
)

// attributes holds the attributes of Envoy that the module reads, with their numbers in Envoy's
// interface.
var attributes = map[string]struct {
	ID   uint32
	Kind int
}{
	"request.path": {0, attributeText}, "request.url_path": {1, attributeText}, "request.host": {2, attributeText},
	"request.scheme": {3, attributeText}, "request.method": {4, attributeText}, "request.referer": {6, attributeText},
	"request.useragent": {7, attributeText}, "request.id": {9, attributeText}, "request.protocol": {10, attributeText},
	"request.query": {11, attributeText}, "source.address": {24, attributeText}, "source.port": {25, attributeNumber},
	"destination.address": {26, attributeText}, "destination.port": {27, attributeNumber}, "connection.id": {28, attributeNumber},
	"connection.mtls": {29, attributeBool}, "connection.requested_server_name": {30, attributeText},
	"connection.tls_version": {31, attributeText}, "connection.subject_local_certificate": {32, attributeText},
	"connection.subject_peer_certificate": {33, attributeText}, "connection.dns_san_local_certificate": {34, attributeText},
	"connection.dns_san_peer_certificate": {35, attributeText}, "connection.uri_san_local_certificate": {36, attributeText},
	"connection.uri_san_peer_certificate": {37, attributeText}, "connection.sha256_peer_certificate_digest": {38, attributeText},
}

// AttributeID returns the number of an attribute in Envoy's interface, and whether its value is a
// number or a boolean. The result ok is false for an attribute that the module does not read.
func AttributeID(name string) (id uint32, isNumber, isBool, ok bool) {
	a, ok := attributes[name]
	return a.ID, a.Kind == attributeNumber, a.Kind == attributeBool, ok
}

// foreign is the prefix of attributes that only Caddy has. In Envoy, such an attribute has no
// value, so the next one in a list of sources is tried.
const foreign = "http."

// checkAttributes rejects attributes that the module does not read, or that this version of Envoy
// does not provide.
func (p *Process) checkAttributes(names []string, d *policyfile.Document) error {
	var found policy.Problems
	for _, name := range names {
		_, known := attributes[name]
		switch {
		case known && name == p.lacks:
			found = append(found, policy.Problem{Path: "attr:" + name, Value: name, Why: "is an attribute that this version of Envoy does not give to modules",
				Remedy: "use Envoy 1.39 or later, or another attribute"})
		case !known && !strings.HasPrefix(name, foreign):
			found = append(found, policy.Problem{Path: "attr:" + name, Value: name, Why: "is an attribute that the module does not read yet",
				Remedy: "use the WebAssembly filter for this policy, or another attribute"})
		}
	}
	if len(found) == 0 {
		return nil
	}
	slices.SortFunc(found, func(a, b policy.Problem) int { return strings.Compare(a.Path, b.Path) })
	d.NameRules(found)
	return found
}
