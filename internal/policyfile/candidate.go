// SPDX-License-Identifier: Apache-2.0

package policyfile

// Candidate is a document that decides the requests of a share of the clients in place of another
// document.
type Candidate struct {
	Document *Document
	Share    int32    // of ten thousand clients, how many the candidate decides
	Salt     [16]byte // determines which clients the candidate decides
}

// SetCandidate attaches a candidate, which is not a part of the document's text or version.
func (d *Document) SetCandidate(c *Candidate) { d.candidate = c }

// Candidate returns the document's candidate, or nil.
func (d *Document) Candidate() *Candidate { return d.candidate }

// All returns the document and the document of its candidate, if it has one.
func (d *Document) All() []*Document {
	if d.candidate == nil {
		return []*Document{d}
	}
	return []*Document{d, d.candidate.Document}
}
