// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/policyfile"
)

const (
	// generatedPrefix lets people and secret scanners recognize a key.
	generatedPrefix = "pk_"
	generatedBytes  = 32
	// generatedDigits is the number of base62 digits for 32 bytes.
	generatedDigits = 43
	// distinctMin is the number of different bytes that a key must have. A key with fewer of them
	// was probably not generated at random.
	distinctMin = 8
)

// GenerateKey returns a new API key: "pk_" and 43 letters and digits that encode 256 random bits.
func GenerateKey() string {
	var random [generatedBytes]byte
	rand.Read(random[:]) // Read never fails; it would crash the program instead
	digits := new(big.Int).SetBytes(random[:]).Text(62)
	return generatedPrefix + strings.Repeat("0", generatedDigits-len(digits)) + digits
}

// HashKey returns the hash of an API key in the form of a keys file: "sha256:" and 64 hexadecimal
// digits. The error states why a key is too weak or cannot be sent in a header. The error never
// contains the key.
func HashKey(key string) (string, error) {
	var seen [256]bool
	distinct := 0
	for i := range len(key) {
		if !seen[key[i]] {
			seen[key[i]], distinct = true, distinct+1
		}
	}
	switch {
	case len(key) < KeyBytesMin:
		return "", fmt.Errorf("the key has %d bytes and could be guessed: it must have %d at least; leave it out to have one made",
			len(key), KeyBytesMin)
	case len(key) > KeyBytesMax:
		return "", fmt.Errorf("the key has %d bytes: it must have %d at most", len(key), KeyBytesMax)
	case !isKeyText(key):
		return "", fmt.Errorf("the key has spaces, line breaks or other bytes that headers cannot carry: " +
			"use letters, digits and signs of ASCII")
	case distinct < distinctMin:
		return "", fmt.Errorf("the key has only %d different characters and could be guessed: leave it out to have one made", distinct)
	}
	sum := sha256.Sum256([]byte(key))
	return hashPrefix + hex.EncodeToString(sum[:]), nil
}

// Entry is an entry of a keys file for [NewEntry]. Only ID and Hash are required.
type Entry struct {
	ID, Hash           string
	User, Tenant, Tier string
	Limits             map[string][]string // by rule name, or "*"
	NotBefore, Expires time.Time           // zero means none
	Revoked, Inactive  bool
	Reason             string
}

// NewEntry returns the text of an entry in TOML, to be appended to a keys file. The error states
// why the file would be rejected.
func NewEntry(e Entry) (string, error) {
	var b strings.Builder
	b.WriteString("[[keys]]\n")
	word := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s = %s\n", name, tomlText(value))
		}
	}
	instant := func(name string, when time.Time) {
		if !when.IsZero() {
			fmt.Fprintf(&b, "%s = %s\n", name, when.UTC().Format(time.RFC3339))
		}
	}
	word("id", e.ID)
	word("hash", e.Hash)
	word("user", e.User)
	word("tenant", e.Tenant)
	word("tier", e.Tier)
	instant("not_before", e.NotBefore)
	instant("expires", e.Expires)
	if e.Revoked {
		b.WriteString("revoked = true\n")
	}
	if e.Inactive {
		b.WriteString("inactive = true\n")
	}
	word("reason", e.Reason)
	if len(e.Limits) > 0 {
		b.WriteString("limits = { " + limitsText(e.Limits) + " }\n")
	}
	if _, err := readKeys("", policyfile.TOML, []byte(b.String())); err != nil {
		return "", err
	}
	return b.String(), nil
}

func limitsText(limits map[string][]string) string {
	var rules []string
	for rule, texts := range limits {
		quoted := make([]string, len(texts))
		for i, text := range texts {
			quoted[i] = tomlText(text)
		}
		rules = append(rules, tomlText(rule)+" = ["+strings.Join(quoted, ", ")+"]")
	}
	slices.Sort(rules)
	return strings.Join(rules, ", ")
}

// tomlText returns a basic string of TOML. Go's escapes are valid TOML except \x, \a and \v. Those
// three escapes stand for control characters, which no entry may have.
func tomlText(text string) string {
	return strconv.Quote(strings.ToValidUTF8(text, ""))
}
