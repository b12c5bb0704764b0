// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"fmt"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

// family is the kind of key that an algorithm uses. The family of a key never changes, so a token
// cannot make the verifier use a public key as a secret.
type family uint8

const (
	familySecret family = iota + 1
	familyRSA
	familyP256
	familyP384
	familyEd25519
)

// algorithm is a signature algorithm. The methods are those of golang-jwt, because constant-time
// comparison, RSA padding and the encoding of ECDSA signatures should not be reimplemented.
type algorithm struct {
	name           string
	family         family
	method         jwt.SigningMethod
	secretBytesMin int // a secret must not be shorter than the hash (RFC 7518, 3.2)
}

// algorithms lists all supported algorithms. ES512, PS256 and "none" are not among them.
var algorithms = [...]algorithm{
	{"HS256", familySecret, jwt.SigningMethodHS256, 32},
	{"HS384", familySecret, jwt.SigningMethodHS384, 48},
	{"HS512", familySecret, jwt.SigningMethodHS512, 64},
	{"RS256", familyRSA, jwt.SigningMethodRS256, 0},
	{"RS384", familyRSA, jwt.SigningMethodRS384, 0},
	{"RS512", familyRSA, jwt.SigningMethodRS512, 0},
	{"ES256", familyP256, jwt.SigningMethodES256, 0},
	{"ES384", familyP384, jwt.SigningMethodES384, 0},
	{"EdDSA", familyEd25519, jwt.SigningMethodEdDSA, 0},
}

func algorithmByName(name string) *algorithm {
	for i := range algorithms {
		if algorithms[i].name == name {
			return &algorithms[i]
		}
	}
	return nil
}

// allowedAlgorithms returns the algorithms that a token may name. For a secret, the default is
// HS256. For a JWK set, the default is every algorithm that the set's keys allow.
func allowedAlgorithms(names []string, secret bool) (map[string]*algorithm, error) {
	set := map[string]*algorithm{}
	if len(names) == 0 && secret {
		names = []string{"HS256"}
	}
	for i, name := range names {
		at := fmt.Sprintf("algorithms[%d]", i)
		a := algorithmByName(name)
		switch {
		case a == nil:
			return nil, fmt.Errorf("%s: %q is not verified: write one of %s", at, name, algorithmNames(secret))
		case secret != (a.family == familySecret):
			return nil, fmt.Errorf("%s: %s does not go with this kind of key: write one of %s", at, name, algorithmNames(secret))
		case set[name] != nil:
			return nil, fmt.Errorf("%s: %s is listed twice: keep one", at, name)
		}
		set[name] = a
	}
	if len(names) > 0 {
		return set, nil
	}
	for i := range algorithms {
		if a := &algorithms[i]; a.family != familySecret {
			set[a.name] = a
		}
	}
	return set, nil
}

func algorithmNames(secret bool) string {
	var names []string
	for _, a := range algorithms {
		if secret == (a.family == familySecret) {
			names = append(names, a.name)
		}
	}
	return strings.Join(names, ", ")
}

// familyOf returns the family of a public key, or an error if the key is not supported.
func familyOf(public any) (family, error) {
	switch k := public.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < rsaBitsMin || bits > rsaBitsMax {
			return 0, fmt.Errorf("is an RSA key of %d bits: it must have %d to %d", bits, rsaBitsMin, rsaBitsMax)
		}
		return familyRSA, nil
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return familyP256, nil
		case elliptic.P384():
			return familyP384, nil
		}
		return 0, fmt.Errorf("is on the curve %s: P-256 and P-384 are used", k.Curve.Params().Name)
	case ed25519.PublicKey:
		return familyEd25519, nil
	}
	return 0, fmt.Errorf("is not a key for signatures")
}
