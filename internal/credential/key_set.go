// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/MicahParks/jwkset"
)

// Bounds of a key set.
const (
	// setBytesMax is the greatest size of a key set. setBytesMax suffices for 256 RSA keys with
	// certificate chains.
	setBytesMax = 1 << 20
	// setKeysMax is the greatest number of keys in a set. The largest issuers publish a handful.
	setKeysMax = 256
	// rsaBitsMin is required by RFC 7518; rsaBitsMax bounds the cost of a signature check.
	rsaBitsMin = 2048
	rsaBitsMax = 8192
	// keysTriedMax bounds the keys that are tried for a token without a key ID. Each key can cost a
	// signature check, and anyone can send such a token.
	keysTriedMax = 4
)

// key is a verification key. Only the field named gone changes.
type key struct {
	kid       string
	family    family
	algorithm string // the algorithm for which the key is intended; "" if the key does not name one
	value     any    // the key, of the type that the algorithms' method requires
	print     [32]byte
	gone      atomic.Bool // whether the key was removed from the set, so that its verdicts are no longer valid
}

// key.verifies reports whether the key can verify signatures of the algorithm.
func (k *key) verifies(a *algorithm) bool {
	return k.family == a.family && (k.algorithm == "" || k.algorithm == a.name)
}

// keySet is an immutable set of keys.
type keySet struct {
	keys    []*key
	byKid   map[string][]*key
	unnamed []*key // without kid
}

// newKeySet returns the set of the keys.
func newKeySet(keys []*key) *keySet {
	s := &keySet{keys: keys, byKid: map[string][]*key{}}
	for _, k := range keys {
		if k.kid == "" {
			s.unnamed = append(s.unnamed, k)
		} else {
			s.byKid[k.kid] = append(s.byKid[k.kid], k)
		}
	}
	return s
}

// keySet.candidates returns the keys that might have signed a token. The result named unknown
// reports whether the token names a key that is not in the set. Any key might have signed a token
// without a kid. A key without a kid might have signed a token with an unknown kid.
func (s *keySet) candidates(kid string, a *algorithm) (found []*key, unknown bool) {
	among := s.keys
	if kid != "" {
		if among = s.byKid[kid]; len(among) == 0 {
			among, unknown = s.unnamed, true
		}
	}
	for _, k := range among {
		if k.verifies(a) && len(found) < keysTriedMax {
			found = append(found, k)
		}
	}
	return found, unknown
}

// keySet.replace returns a set of the fresh keys, and separately the keys that were removed. A key
// that is also in the old set stays the same *key. keySet.replace returns nil if both sets are the
// same.
func (s *keySet) replace(fresh []*key) (next *keySet, gone []*key) {
	keys := make([]*key, 0, len(fresh))
	for _, k := range fresh {
		if i := slices.IndexFunc(s.keys, func(old *key) bool { return old.print == k.print }); i >= 0 {
			k = s.keys[i]
		}
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	for _, old := range s.keys {
		if !slices.Contains(keys, old) {
			gone = append(gone, old)
		}
	}
	if len(gone) == 0 && len(keys) == len(s.keys) {
		return nil, nil
	}
	return newKeySet(keys), gone
}

// readSecret makes a key from a secret. readSecret rejects PEM, and secrets that are too short for
// the algorithms.
func readSecret(secret []byte, algorithms map[string]*algorithm) ([]*key, error) {
	if bytes.HasPrefix(bytes.TrimSpace(secret), []byte("-----BEGIN")) {
		return nil, errors.New("the secret is a key or certificate in PEM, which others may know: " +
			"write its public keys as a JWK set to jwks_file, or take a random secret")
	}
	if len(secret) > secretBytesMax {
		return nil, fmt.Errorf("the secret is longer than %d bytes", secretBytesMax)
	}
	for _, a := range algorithms {
		if len(secret) < a.secretBytesMin {
			return nil, fmt.Errorf("the secret has %d bytes, %s needs %d: make one with openssl rand -base64 %d",
				len(secret), a.name, a.secretBytesMin, a.secretBytesMin)
		}
	}
	k := &key{family: familySecret, value: bytes.Clone(secret)}
	k.print = sha256.Sum256(secret)
	return []*key{k}, nil
}

// readSecretFile is readSecret without the last line break of a file.
func readSecretFile(data []byte, algorithms map[string]*algorithm) ([]*key, error) {
	data = bytes.TrimSuffix(bytes.TrimSuffix(data, []byte("\n")), []byte("\r"))
	return readSecret(data, algorithms)
}

// readSet reads a JWK set (RFC 7517). As section 5 requires, it skips keys that cannot be used; the
// result named skipped contains the reasons. If no key is left, it returns an error.
func readSet(data []byte, algorithms map[string]*algorithm) (keys []*key, skipped []string, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		if bytes.HasPrefix(bytes.TrimSpace(data), []byte("-----BEGIN")) {
			return nil, nil, errors.New("is PEM, not a JWK set: convert it to JSON Web Keys")
		}
		return nil, nil, fmt.Errorf("is not a JWK set: %w", err)
	}
	switch {
	case len(set.Keys) == 0:
		return nil, nil, errors.New(`has no keys: a JWK set is {"keys": [...]}`)
	case len(set.Keys) > setKeysMax:
		return nil, nil, fmt.Errorf("has %d keys, more than %d", len(set.Keys), setKeysMax)
	}
	for i, raw := range set.Keys {
		k, err := readJWK(raw, algorithms)
		if err != nil {
			skipped = append(skipped, fmt.Sprintf("keys[%d] %v", i, err))
			continue
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, nil, fmt.Errorf("has no key that can be used: %s", strings.Join(skipped[:min(len(skipped), 4)], "; "))
	}
	return keys, skipped, nil
}

// readJWK reads one key.
func readJWK(raw []byte, algorithms map[string]*algorithm) (*key, error) {
	var m jwkset.JWKMarshal
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("is not a JSON Web Key: %w", err)
	}
	switch {
	case m.KTY == jwkset.KtyOct:
		return nil, errors.New("is a secret, which does not belong among public keys: write it to secret_file")
	case m.USE != "" && m.USE != jwkset.UseSig:
		return nil, fmt.Errorf("is for use %q, not for signatures", cut(string(m.USE)))
	case len(m.KEYOPS) > 0 && !slices.Contains(m.KEYOPS, jwkset.KeyOpsVerify):
		return nil, errors.New("is not for verifying: its key_ops do not say verify")
	}
	// Certificates are ignored, and a URL in a key is not fetched.
	m.X5U, m.X5C, m.X5T, m.X5TS256 = "", nil, "", ""
	parsed, err := jwkset.NewJWKFromMarshal(m, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %s", cut(err.Error()))
	}
	k := &key{kid: m.KID, algorithm: string(m.ALG), value: parsed.Key()}
	if k.family, err = familyOf(k.value); err != nil {
		return nil, err
	}
	for _, a := range algorithms {
		if k.verifies(a) {
			return k, k.fingerprint()
		}
	}
	return nil, fmt.Errorf("goes with none of the algorithms (its alg is %q)", cut(k.algorithm))
}

// key.fingerprint sets print, which identifies the key when the key set is read again.
func (k *key) fingerprint() error {
	der, err := x509.MarshalPKIXPublicKey(k.value)
	if err != nil {
		return fmt.Errorf("cannot be written: %w", err)
	}
	k.print = sha256.Sum256(fmt.Appendf(nil, "%q %q %x", k.kid, k.algorithm, der))
	return nil
}

// textMax is the greatest number of bytes of foreign text in a message.
const textMax = 200

// cut shortens foreign text to textMax bytes.
func cut(text string) string {
	if len(text) > textMax {
		return strings.ToValidUTF8(text[:textMax], "") + "…"
	}
	return text
}
