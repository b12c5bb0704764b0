// SPDX-License-Identifier: Apache-2.0

package published

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// The prefixes of keys in text form.
const (
	publicPrefix  = "ed25519:"
	privatePrefix = "ed25519-private:"
)

// KeysMax is how many keys a reader accepts. Two are enough to replace one.
const KeysMax = 8

// PublicText returns a public key as people write it.
func PublicText(key ed25519.PublicKey) string {
	return publicPrefix + base64.RawURLEncoding.EncodeToString(key)
}

// PrivateText returns the text form of a private key, for its file. ParsePrivate reads it.
func PrivateText(key ed25519.PrivateKey) string {
	return privatePrefix + base64.RawURLEncoding.EncodeToString(key.Seed())
}

// ParsePublic reads a public key.
func ParsePublic(text string) (ed25519.PublicKey, error) {
	if strings.HasPrefix(text, privatePrefix) {
		return nil, errors.New("the key is the private one, which only the control plane has: write the public key, which penstock control " +
			"policy key FILE prints; and make a new pair, since others may have seen this one")
	}
	raw, err := keyBytes(text, publicPrefix, ed25519.PublicKeySize)
	if err != nil {
		return nil, fmt.Errorf("the key %.60q is %w: write ed25519:… as penstock control policy key FILE prints it", text, err)
	}
	return raw, nil
}

// ParsePrivate reads a private key. The error does not contain it.
func ParsePrivate(text string) (ed25519.PrivateKey, error) {
	raw, err := keyBytes(strings.TrimSpace(text), privatePrefix, ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("the private key is %w: make a file with penstock control policy key FILE", err)
	}
	return ed25519.NewKeyFromSeed(raw), nil
}

func keyBytes(text, prefix string, size int) ([]byte, error) {
	rest, ok := strings.CutPrefix(text, prefix)
	if !ok {
		return nil, fmt.Errorf("not of the form %s…", prefix)
	}
	raw, err := base64.RawURLEncoding.DecodeString(rest)
	if err != nil || len(raw) != size {
		return nil, fmt.Errorf("not %d bytes in base64", size)
	}
	return raw, nil
}

// keyID returns a short name of a key, for messages about it.
func keyID(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:6])
}
