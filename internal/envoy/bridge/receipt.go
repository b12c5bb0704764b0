// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce"
)

// receiptTTL is how long a receipt can be redeemed. If a response takes longer, nothing is
// refunded, because most refunds would be for a window that has ended. A further charge is still
// made.
const receiptTTL = 10 * counter.Minute

// clocksApart bounds the difference between the clocks of bridges. A receipt is not redeemed if it
// expires more than clocksApart after a receipt that this bridge would issue now.
const clocksApart = counter.Minute

// onceInTime is the limit of the counter of a receipt that several bridges can redeem. onceInTime
// allows one redemption in the longest time for which any bridge would accept the receipt.
var onceInTime = func() counter.Limit {
	l, err := counter.NewLimit(counter.TokenBucket, 1, receiptTTL+2*clocksApart, 1)
	if err != nil {
		panic(err) // this cannot happen, because the constants are within bounds
	}
	return l
}()

// The first byte of a receipt is its form, which includes a version.
const (
	receiptForm = 1 // for the settlement of a response
	unitsForm   = 2 // for leased units; it names no version of the policy
	namedForm   = 3 // for the settlement of a response, with the client whose usage is counted
)

// A receipt is a plaintext header and a sealed part. The header is authenticated with the sealed
// part, so neither can be changed.
//
// form, process (16 bytes), number (8 bytes), length of the version (1 byte), the policy's version
// AES-256-GCM of: expiry (8 bytes, microseconds), the client in a named form, a settlement or a
// refund in compact form
//
// The key is derived for the process from a secret that bridges share, so another bridge behind the
// same address can open the receipt. A process uses a number only once, whatever the secret is, and
// no two processes have the same name. So a key is never used twice with the same nonce.
const receiptHeadMin = 1 + len(process{}) + 8 + 1

// Reasons why a receipt is not redeemed, as the settlement metric names them.
var (
	errForeign  = errors.New("invalid")  // the receipt is foreign, changed, or of a later release
	errExpired  = errors.New("expired")  // the receipt has expired, or is older than this bridge, which does not know whether such receipts were redeemed
	errRedeemed = errors.New("redeemed") // the receipt was redeemed before, or the memory for redeemed receipts is full
)

// sealer issues receipts and redeems each of them once. Safe for concurrent use.
type sealer struct {
	process  process
	secrets  atomic.Pointer[secrets]
	started  counter.Micros
	numbers  atomic.Uint64
	redeemed redeemedReceipts
}

// secrets holds the current and the previous receipt secret.
type secrets struct {
	current, previous receiptSecret
	previousUntil     counter.Micros // the instant from which the previous secret is no longer used; 0 if there is none
}

// receiptSecret is a secret and the cipher derived from it for this process.
type receiptSecret struct {
	secret []byte
	own    cipher.AEAD
}

// newSealer returns a sealer that derives its keys from the token. Without a token, it uses a
// random secret until the method named replace sets another. Until then, no other process can open
// its receipts.
//
// Bridges behind one address share a secret but not the memory of redeemed receipts. If other
// processes count in the store, the store also records which receipts were redeemed: see onlyOnce.
func newSealer(token string, now counter.Micros) *sealer {
	s := &sealer{started: now}
	_, _ = rand.Read(s.process[:]) // never fails
	if token == "" {
		token = rand.Text() + rand.Text()
	}
	s.secrets.Store(&secrets{current: s.receiptSecret(token)})
	return s
}

// sealer.secret returns the current secret.
func (s *sealer) secret() string { return string(s.secrets.Load().current.secret) }

// sealer.replace sets the secret with which receipts are sealed, and reports whether
// the secret has changed. Receipts sealed with the previous secret stay valid until they expire.
// Only one goroutine calls replace.
func (s *sealer) replace(secret string, now counter.Micros) (changed bool) {
	before := s.secrets.Load()
	if secret == string(before.current.secret) {
		return false
	}
	s.secrets.Store(&secrets{current: s.receiptSecret(secret), previous: before.current, previousUntil: now + receiptTTL})
	return true
}

func (s *sealer) receiptSecret(secret string) receiptSecret {
	return receiptSecret{secret: []byte(secret), own: sealingKey([]byte(secret), s.process)}
}

// receiptSecret.key returns the cipher of the receipts that process p has sealed with the secret.
func (r *receiptSecret) key(s *sealer, p process) cipher.AEAD {
	if p == s.process {
		return r.own
	}
	return sealingKey(r.secret, p)
}

// sealingKey derives the cipher for a process's receipts from a secret.
func sealingKey(secret []byte, p process) cipher.AEAD {
	key, err := hkdf.Key(sha256.New, secret, p[:], "penstock bridge receipt", 32)
	if err != nil {
		panic(err) // this cannot happen, because the length is valid
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // as above
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // as above
	}
	return aead
}

// sealer.seal returns a receipt for a settlement by a version of the policy.
func (s *sealer) seal(version string, settlement *core.Settlement, rs *core.Ruleset, now counter.Micros) string {
	return s.sealed(receiptForm, version, settlement.AppendCompact(s.appendHeader(now), rs))
}

// sealNamed returns a receipt that also names the client of the request.
func (s *sealer) sealNamed(version string, of *enforce.Client, settlement *core.Settlement, rs *core.Ruleset, now counter.Micros) string {
	return s.sealed(namedForm, version, settlement.AppendCompact(appendClient(s.appendHeader(now), of), rs))
}

// sealUnits returns a receipt for leased units, with which they can be refunded.
func (s *sealer) sealUnits(back *counter.Check, now counter.Micros) string {
	return s.sealed(unitsForm, "", compact.AppendRefund(s.appendHeader(now), back))
}

// sealer.appendHeader returns the header of the part to be sealed.
func (s *sealer) appendHeader(now counter.Micros) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 0, 384), uint64(now+receiptTTL))
}

func (s *sealer) sealed(form byte, version string, plain []byte) string {
	number := s.numbers.Add(1)
	head := make([]byte, 0, 512)
	head = append(append(head, form), s.process[:]...)
	head = binary.BigEndian.AppendUint64(head, number)
	head = append(append(head, byte(len(version))), version...)
	return string(s.secrets.Load().current.own.Seal(head, nonce(number), plain, head))
}

// receiptContent is the content of a receipt that was opened and can be redeemed.
type receiptContent struct {
	id      receiptID
	version string
	expires counter.Micros
	client  enforce.Client // the client, if the receipt names it
	plain   []byte         // a settlement or a refund, depending on the form
}

// sealer.open returns the content of a receipt of the given form. If form is receiptForm, a receipt
// of namedForm is opened as well. sealer.open does not redeem the receipt.
func (s *sealer) open(receipt string, form byte, now counter.Micros) (o receiptContent, err error) {
	if len(receipt) < receiptHeadMin || receipt[0] != form && (receipt[0] != namedForm || form != receiptForm) {
		return o, errForeign
	}
	rest := receipt[1:]
	copy(o.id.process[:], rest)
	rest = rest[len(process{}):]
	o.id.number = binary.BigEndian.Uint64([]byte(rest[:8]))
	length := int(rest[8])
	rest = rest[9:]
	if length > len(rest) {
		return o, errForeign
	}
	o.version, rest = rest[:length], rest[length:]
	head, all := strings.TrimSuffix(receipt, rest), s.secrets.Load()
	unseal := func(r *receiptSecret) ([]byte, error) {
		return r.key(s, o.id.process).Open(nil, nonce(o.id.number), []byte(rest), []byte(head))
	}
	plain, err := unseal(&all.current)
	if err != nil && now < all.previousUntil {
		plain, err = unseal(&all.previous)
	}
	if err != nil || len(plain) < 8 {
		return o, errForeign
	}
	o.expires = counter.Micros(binary.BigEndian.Uint64(plain))
	o.plain = plain[8:]
	if receipt[0] == namedForm {
		var ok bool
		if o.client, o.plain, ok = readClient(o.plain); !ok {
			return o, errForeign
		}
	}
	if now >= o.expires || o.expires > now+receiptTTL+clocksApart || o.expires-receiptTTL < s.started {
		return o, errExpired
	}
	return o, nil
}

// sealer.redeem redeems an opened receipt, and reports whether it has not been redeemed before.
func (s *sealer) redeem(o *receiptContent, now counter.Micros) bool {
	return s.redeemed.redeem(o.id, o.expires, now)
}

func nonce(number uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 4, 12), number) }
