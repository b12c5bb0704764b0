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
)

// receiptTTL is how long a receipt can be redeemed: a response that takes longer costs what was reserved. What is given
// back to a window that is over is lost anyway.
const receiptTTL = 10 * core.Minute

// clocksApart is how far the clocks of bridges may be apart: a receipt that is good for longer than any that is given out
// here is not redeemed.
const clocksApart = core.Minute

// onceInTime is the limit of a receipt that several bridges can redeem: once, in as long as any of them would.
var onceInTime = func() core.Limit {
	l, err := core.NewLimit(core.TokenBucket, 1, receiptTTL+2*clocksApart, 1)
	if err != nil {
		panic(err) // only for numbers that are out of bounds
	}
	return l
}()

// The first byte of a receipt: its form, and the version of that.
const (
	receiptForm = 1 // of what a response may settle
	unitsForm   = 2 // of units that a filter has taken in advance, of no version of the policy
)

// A receipt is a head in the clear and what is sealed. The head is sealed with it: it cannot be changed either.
//
//	form, process (16 bytes), number (8 bytes), length of the version (1 byte), the policy's version
//	AES-256-GCM of: when it expires (8 bytes, microseconds), a settlement or a give-back in compact form
//
// The key is that of the process, from a secret that bridges with one token share, so that a receipt can go to another
// bridge behind the same address than the one that gave it out. As a number is used once by a process, and no two processes
// have a name, no key is used with one nonce twice.
const receiptHeadMin = 1 + len(process{}) + 8 + 1

// Why a receipt is not redeemed, as the metric of settlements names it.
var (
	errForeign  = errors.New("invalid")  // not ours, changed, or of a form of a later version
	errExpired  = errors.New("expired")  // or of another time than ours, or from before this bridge's start: it does not know what was redeemed then
	errRedeemed = errors.New("redeemed") // already, or so many are remembered that nobody knows
)

// sealer gives receipts out and redeems them, each once. Safe for concurrent use.
type sealer struct {
	process  process
	secret   []byte
	own      cipher.AEAD
	started  core.Micros
	numbers  atomic.Uint64
	redeemed redeemed
}

// newSealer returns a sealer whose receipts those can open that have the same token; without a token nobody else can.
//
// Several bridges behind one address share a token but not what they remember. So the store is asked as well whether a receipt
// was redeemed, where others can count in it: see onlyOnce.
func newSealer(token string, now core.Micros) *sealer {
	s := &sealer{started: now, secret: []byte(token)}
	_, _ = rand.Read(s.process[:]) // never fails
	if token == "" {
		s.secret = make([]byte, 32)
		_, _ = rand.Read(s.secret)
	}
	s.own = s.key(s.process)
	return s
}

// key returns what seals the receipts of a process.
func (s *sealer) key(p process) cipher.AEAD {
	key, err := hkdf.Key(sha256.New, s.secret, p[:], "penstock bridge receipt", 32)
	if err != nil {
		panic(err) // only for lengths that are not allowed
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

// seal returns a receipt for a settlement by a version of the policy.
func (s *sealer) seal(version string, settlement *core.Settlement, rs *core.Ruleset, now core.Micros) string {
	return s.sealed(receiptForm, version, settlement.AppendCompact(s.plain(now), rs))
}

// sealUnits returns a receipt for units that may be given back.
func (s *sealer) sealUnits(back *core.Check, now core.Micros) string {
	return s.sealed(unitsForm, "", core.AppendGiveBack(s.plain(now), back))
}

// plain begins what is sealed.
func (s *sealer) plain(now core.Micros) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 0, 384), uint64(now+receiptTTL))
}

func (s *sealer) sealed(form byte, version string, plain []byte) string {
	number := s.numbers.Add(1)
	head := make([]byte, 0, 512)
	head = append(append(head, form), s.process[:]...)
	head = binary.BigEndian.AppendUint64(head, number)
	head = append(append(head, byte(len(version))), version...)
	return string(s.own.Seal(head, nonce(number), plain, head))
}

// opened is a receipt that can be redeemed.
type opened struct {
	id      receiptID
	version string
	expires core.Micros
	plain   []byte // a settlement or a give-back, by its form
}

// open returns what is in a receipt of that form. It does not redeem it.
func (s *sealer) open(receipt string, form byte, now core.Micros) (o opened, err error) {
	if len(receipt) < receiptHeadMin || receipt[0] != form {
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
	key := s.own
	if o.id.process != s.process {
		key = s.key(o.id.process)
	}
	plain, err := key.Open(nil, nonce(o.id.number), []byte(rest), []byte(strings.TrimSuffix(receipt, rest)))
	if err != nil || len(plain) < 8 {
		return o, errForeign
	}
	o.expires = core.Micros(binary.BigEndian.Uint64(plain))
	o.plain = plain[8:]
	if now >= o.expires || o.expires > now+receiptTTL+clocksApart || o.expires-receiptTTL < s.started {
		return o, errExpired
	}
	return o, nil
}

// redeem reports whether an opened receipt is redeemed now for the first time.
func (s *sealer) redeem(o *opened, now core.Micros) bool {
	return s.redeemed.redeem(o.id, o.expires, now)
}

func nonce(number uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 4, 12), number) }
