// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
)

// versionBytes is the number of bytes of the hash in a version. With 48 bits, the probability that
// two of a thousand edits have the same version is one in 500 million.
const versionBytes = 6

// Version returns a short hash of the document for logs and metrics: 12 hexadecimal digits.
// Documents that differ only in comments, spaces or format have the same version.
func (d *Document) Version() string { return d.Hash()[:2*versionBytes] }

// MarkPublished remembers the present version as the one that a control plane has published. A
// front may then complete the document, which changes its version. The argument byClient reports
// whether the front enforces a candidate for a share of the clients.
func (d *Document) MarkPublished(byClient bool) { d.origin, d.byClient = d.Version(), byClient }

// ByClient reports whether the front that has the document enforces a candidate for a share of the
// clients, if one is published.
func (d *Document) ByClient() bool { return d.byClient }

// Published returns the version that a control plane has published, or "" if none has.
func (d *Document) Published() string { return d.origin }

// Hash returns the whole hash of which Version is the beginning.
func (d *Document) Hash() string {
	data, err := json.Marshal(d)
	if err != nil { // cannot happen: a document has words and numbers only
		return strings.Repeat("?", hex.EncodedLen(sha256.Size))
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
