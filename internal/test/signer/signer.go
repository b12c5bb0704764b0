// SPDX-License-Identifier: Apache-2.0

// Package signer makes the keys that sign tokens in tests, and their entries in a key set.
//
// Every key is new and exists only in memory. The package does not create tokens; each test makes
// its own. The package is not for programs that keep keys.
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
	JWK string // the public key, as an entry of a key set
}

// EC returns a new key of a curve.
func EC(t testing.TB, name string, curve elliptic.Curve) Key {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes() // 4, then both coordinates
	if err != nil {
		t.Fatal(err)
	}
	half := 1 + len(point)/2
	return Key{name, key, fmt.Sprintf(`{"kty":"EC","crv":%q,"kid":%q,"x":%q,"y":%q}`, curve.Params().Name, name,
		text(point[1:half]), text(point[half:]))}
}

// RSA returns a new key with a modulus of the given number of bits. The argument algorithm is its
// alg in the key set; "" means none.
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
