// SPDX-License-Identifier: Apache-2.0

// Package signer generates keys that sign tokens in tests, with their entries for a key set.
//
// Every key is new and exists only in memory. The package does not create tokens: each test creates
// its own. The package is not for programs that store keys.
package signer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"math/big"
	"testing"
)

// Key is a key that signs tokens.
type Key struct {
	Name string // its kid
	crypto.Signer
	JWK string // the public key, as an entry for a key set
}

// EC returns a new key on an elliptic curve.
func EC(t testing.TB, name string, curve elliptic.Curve) Key {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes() // the byte 4, followed by both coordinates
	if err != nil {
		t.Fatal(err)
	}
	half := 1 + len(point)/2
	return Key{name, key, fmt.Sprintf(`{"kty":"EC","crv":%q,"kid":%q,"x":%q,"y":%q}`, curve.Params().Name, name,
		text(point[1:half]), text(point[half:]))}
}

// RSA returns a new key with a modulus of the given number of bits. The argument algorithm is the
// value of alg in the key's entry. If it is "", the entry has no alg.
func RSA(t testing.TB, name string, bits int, algorithm string) Key {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	if algorithm != "" {
		algorithm = fmt.Sprintf(`"alg":%q,`, algorithm)
	}
	return Key{name, key, fmt.Sprintf(`{"kty":"RSA","use":"sig",%s"kid":%q,"n":%q,"e":%q}`, algorithm, name, text(key.N.Bytes()),
		text(big.NewInt(int64(key.E)).Bytes()))}
}

func text(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
