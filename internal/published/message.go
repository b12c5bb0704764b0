// SPDX-License-Identifier: Apache-2.0

package published

import (
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// These are the bounds of a message.
const (
	// TextBytesMax is the greatest length of a text that a reader accepts.
	TextBytesMax = 1 << 20
	// headerBytesMax bounds the text's first line.
	headerBytesMax = 1 << 10
	// messageBytesMax bounds the message, which has two documents and little else.
	messageBytesMax = 2*syntax.SizeMax + 4<<10
)

// The versions of the form of a published text. Readers reject any other version. A message with a
// share of the clients has a version of its own, because earlier readers would take that share for
// a share of the nodes.
const (
	formatVersion        = 1
	formatVersionClients = 2
)

// Message states which revision of a policy nodes enforce, and which one, if any, is the candidate.
type Message struct {
	Policy     string     `json:"policy"`
	Generation int64      `json:"generation"` // rises with each publication
	Now        Content    `json:"now"`
	Candidate  *Candidate `json:"candidate,omitempty"`
}

// Content is a revision of a policy: its number and its document.
type Content struct {
	Revision int64                `json:"revision"`
	Document *policyfile.Document `json:"document"`
}

// Candidate is a revision that is enforced for a share of the nodes or of the clients, or that
// nodes compare with the one in force.
type Candidate struct {
	Content
	Share int32 `json:"share"` // of ten thousand nodes or clients; 0: not enforced; all nodes compare it with the policy in force
	// Clients reports whether the share is a share of the clients, on all nodes. Otherwise it is a
	// share of the nodes.
	Clients bool `json:"clients,omitempty"`
}

// shareAll is the value of Candidate.Share that stands for all.
const shareAll = 10_000

// Has reports whether a node is among those that enforce the candidate. The answer for a node is
// the same for all revisions of a policy, and a node that is in a share is in every greater share.
func (m *Message) Has(node string) bool {
	return m.Candidate != nil && !m.Candidate.Clients && Place(m.Policy, node) < m.Candidate.Share
}

// ForClients returns the candidate that decides the requests of a share of the clients, or nil. The
// salt depends only on the policy and on the revision. So a client that is in a share is in every
// greater share of the same revision, and another revision begins with other clients.
func (m *Message) ForClients() *policyfile.Candidate {
	c := m.Candidate
	if c == nil || !c.Clients {
		return nil
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "penstock clients\x00%s\x00%d", m.Policy, c.Revision))
	return &policyfile.Candidate{Document: c.Document, Share: c.Share, Salt: [16]byte(sum[:16])}
}

// Place returns a number from 0 to 9,999 for a node, by a hash of its name.
func Place(policy, node string) int32 {
	sum := sha256.Sum256([]byte(policy + "\x00" + node))
	return int32(binary.BigEndian.Uint64(sum[:8]) % shareAll)
}

// For returns which document a node enforces.
func (m *Message) For(node string) Content {
	if m.Has(node) {
		return m.Candidate.Content
	}
	return m.Now
}

// Trial returns the candidate that all nodes compare with the policy in force. The result ok is
// false if there is none.
func (m *Message) Trial() (c Content, ok bool) {
	if m.Candidate == nil || m.Candidate.Share > 0 {
		return c, false
	}
	return m.Candidate.Content, true
}

// header is the first line of the text.
type header struct {
	Format     int    `json:"v"`
	Policy     string `json:"policy"`
	Generation int64  `json:"generation"`
	Key        string `json:"key"` // which key has signed, for messages; not trusted
	Signature  []byte `json:"signature"`
}

// header.signed returns the bytes that a signature covers.
func (h *header) signed(body []byte) []byte {
	text := fmt.Appendf(nil, "penstock policy %d\x00%s\x00%d\x00", h.Format, h.Policy, h.Generation)
	return append(text, body...)
}

// ErrTooLarge is the error for a message that is too large for its readers.
var ErrTooLarge = errors.New("the policy is too large to be published")

// Message.format returns the version of the form that the message needs.
func (m *Message) format() int {
	if m.Candidate != nil && m.Candidate.Clients {
		return formatVersionClients
	}
	return formatVersion
}

// Seal returns the signed text of a message.
func (m *Message) Seal(key ed25519.PrivateKey) ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	packer, _ := gzip.NewWriterLevel(&body, gzip.BestCompression) // the level is valid
	if _, err := packer.Write(text); err != nil {
		return nil, err
	}
	if err := packer.Close(); err != nil {
		return nil, err
	}
	h := header{Format: m.format(), Policy: m.Policy, Generation: m.Generation, Key: keyID(key.Public().(ed25519.PublicKey))}
	h.Signature = ed25519.Sign(key, h.signed(body.Bytes()))
	line, err := json.Marshal(&h)
	if err != nil {
		return nil, err
	}
	whole := append(append(line, '\n'), body.Bytes()...)
	if len(text) > messageBytesMax || len(line) > headerBytesMax || len(whole) > TextBytesMax {
		return nil, fmt.Errorf("%w: it has %d bytes, %d compressed, and at most %d and %d can be: have fewer rules", ErrTooLarge, len(text), len(whole),
			messageBytesMax, TextBytesMax)
	}
	return whole, nil
}

// Generation returns the generation that a published text names, without verifying the text; 0 if
// the text is not one of a control plane.
func Generation(text []byte) int64 {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	var h header
	if len(line) > headerBytesMax || json.Unmarshal(line, &h) != nil {
		return 0
	}
	return h.Generation
}

// IsSigned reports whether a published text names the policy and is signed by one of the keys. It
// does not read the message, which Open may still reject.
func IsSigned(text []byte, policy string, keys []ed25519.PublicKey) bool {
	line, body, found := bytes.Cut(text, []byte("\n"))
	var h header
	return found && len(line) <= headerBytesMax && json.Unmarshal(line, &h) == nil && h.Policy == policy && h.trusted(body, keys)
}

// Open verifies and decodes a published text, and returns its message. The text must name the
// policy and be signed by one of the keys.
func Open(text []byte, policy string, keys []ed25519.PublicKey) (*Message, error) {
	if len(text) > TextBytesMax {
		return nil, fmt.Errorf("the published policy has %d bytes, and at most %d can be", len(text), TextBytesMax)
	}
	line, body, found := bytes.Cut(text, []byte("\n"))
	var h header
	if !found || len(line) > headerBytesMax || json.Unmarshal(line, &h) != nil {
		return nil, errors.New("the published policy is broken: its first line is not that of a control plane")
	}
	switch {
	case h.Format != formatVersion && h.Format != formatVersionClients:
		return nil, fmt.Errorf("the published policy has the form %d, and this program reads %d and %d: use the release of the control plane", h.Format,
			formatVersion, formatVersionClients)
	case h.Policy != policy:
		return nil, fmt.Errorf("the published policy is %.80q and not %q", h.Policy, policy)
	case !h.trusted(body, keys):
		return nil, fmt.Errorf("the published policy is not signed by a key that this node trusts (it names the key %.20q): publish it with the "+
			"control plane, or add its key", h.Key)
	}
	// The rest of the text was written by an owner of the key.
	reader, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("the published policy is broken: %w", err)
	}
	plain, err := io.ReadAll(io.LimitReader(reader, messageBytesMax+1))
	if err == nil && len(plain) > messageBytesMax {
		err = fmt.Errorf("it has more than %d bytes", messageBytesMax)
	}
	m := new(Message)
	if err == nil {
		err = json.Unmarshal(plain, m)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("the published policy is broken: %w", err)
	case m.Policy != h.Policy || m.Generation != h.Generation || m.format() != h.Format || m.Generation < 1 || m.Generation == math.MaxInt64 || m.Now.Document == nil ||
		m.Candidate != nil && (m.Candidate.Document == nil || m.Candidate.Share < 0 || m.Candidate.Share >= shareAll ||
			m.Candidate.Clients && m.Candidate.Share == 0):
		return nil, errors.New("the published policy is broken: its parts contradict each other")
	}
	return m, nil
}

// header.trusted reports whether one of the keys has signed the text.
func (h *header) trusted(body []byte, keys []ed25519.PublicKey) bool {
	covered := h.signed(body)
	for _, key := range keys {
		if ed25519.Verify(key, covered, h.Signature) {
			return true
		}
	}
	return false
}
