// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// versionBytes is how many bytes of the hash a version shows: with 48 bits, one of a thousand edits is taken for another
// in one of 500 million cases.
const versionBytes = 6

// Version names what the document says by a short hash, for logs and metrics: 12 hexadecimal digits. What is written
// otherwise and says the same (comments, spaces, another format) has the same version.
func (d *Document) Version() string {
	data, err := json.Marshal(d)
	if err != nil { // cannot be: a document has words and numbers only
		return "unknown"
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:versionBytes])
}
