// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// Key describes an API key, without the key itself. A Key is immutable; to change one, create
// another.
type Key struct {
	// Identity is the owner: Kind "api_key", and the key's name as ID.
	Identity policy.Identity
	// NotBefore and Expires bound the key's validity: NotBefore <= now < Expires, in microseconds
	// since the epoch. A bound of 0 means that the validity is not bounded on that side.
	NotBefore, Expires counter.Micros
	// Revoked keys are invalid permanently. Inactive keys are disabled temporarily.
	Revoked, Inactive bool
	// Reason tells operators why the key is revoked or inactive.
	Reason string
}

// Key.state returns the state of the key at an instant.
func (k *Key) state(now counter.Micros) policy.CredentialState {
	switch {
	case k.Revoked:
		return policy.CredentialRevoked
	case k.Expires != 0 && now >= k.Expires:
		return policy.CredentialLapsed
	case k.Inactive, now < k.NotBefore:
		return policy.CredentialInactive
	}
	return policy.CredentialValid
}

// KeySource finds API keys by their SHA-256. Implementations must be safe for concurrent use and
// must not do I/O, because requests wait for them.
//
// The time of a lookup may depend on the hash, and so reveal how much the hash of a guess has in
// common with a key's hash. Such timing is harmless, because a client cannot choose the hash.
type KeySource interface {
	Lookup(hash [32]byte) (*Key, bool)
}

// KeyDirectory is a KeySource that also finds keys by their owners, for operators. A KeyDirectory's
// methods return the keys in the order of the source. The keys of one name have the same owner.
type KeyDirectory interface {
	KeySource
	// Named returns the keys with the given name.
	Named(name string) []*Key
	// OfUser returns the keys that belong to a user.
	OfUser(user string) []*Key
}

// KeysOptions configures [NewKeys]. At most one of File and Source is set, and at least one of
// File, Source and Directory is set.
type KeysOptions struct {
	// File is a list of keys in YAML, TOML or JSON, chosen by its extension; see [NewEntry]. File
	// is read again when it changes. An edit with an error is rejected and logged, and the previous
	// content remains in force.
	File string
	// Source is where keys are found if they are not in a file.
	Source KeySource
	// If Directory is set, keys that are neither in File nor in Source are looked up in the
	// directory of each request. For a key that is in the directory as well, the file or the source
	// takes precedence.
	Directory bool

	Now    func() time.Time // nil means time.Now
	Logger *slog.Logger     // nil means none
}

// Bounds of the length of a presented key, in bytes.
const (
	KeyBytesMin = 16 // shorter keys can be guessed
	KeyBytesMax = 512
)

// Keys verifies API keys. The type is a [policy.CostlyVerifier] and safe for concurrent use.
type Keys struct {
	source    KeySource
	file      string // "" if the keys are not from a file
	directory bool   // see KeysOptions.Directory
	now       func() time.Time
	cancel    context.CancelFunc
	running   sync.WaitGroup
}

var _ policy.CostlyVerifier = (*Keys)(nil)

// NewKeys returns a verifier. NewKeys reads the file and watches it until Close. The error is
// [policy.Problems] if the content is wrong; otherwise it states why the file could not be read.
func NewKeys(o KeysOptions) (*Keys, error) { return newKeys(o, watchEvery) }

func newKeys(o KeysOptions, every time.Duration) (*Keys, error) {
	switch {
	case o.File != "" && o.Source != nil:
		return nil, errors.New("api keys: a file and a source are given, and only one of them is possible")
	case o.File == "" && o.Source == nil && !o.Directory:
		return nil, errors.New("api keys: a file, a source or a directory is needed")
	}
	k := &Keys{source: o.Source, file: o.File, directory: o.Directory, now: o.Now}
	if k.now == nil {
		k.now = time.Now
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	if o.File == "" {
		if k.source == nil {
			k.source = emptySource{}
		}
		return k, nil
	}
	format, ok := syntax.FormatOf(o.File)
	if !ok {
		cancel()
		return nil, fmt.Errorf("keys file %q: the extension must be .yaml, .yml, .toml or .json", o.File)
	}
	list := &keyList{}
	k.source = list
	file := &watchedFile{path: o.File, sizeMax: syntax.SizeMax, notices: newNotices(o.Logger),
		smaller: ": spread the keys over several files, an api_key entry of identify each"}
	file.load = func(data []byte) error {
		keys, err := readKeys(filepath.Base(o.File), format, data)
		if err == nil {
			list.keys.Store(keys)
		}
		return err
	}
	if err := file.open(); err != nil {
		cancel()
		return nil, fmt.Errorf("keys file: %w", err)
	}
	k.running.Go(func() { file.run(ctx, every) })
	return k, nil
}

// Close stops watching the file. The file's last content remains in force.
func (k *Keys) Close() error {
	k.cancel()
	k.running.Wait()
	return nil
}

// Verify returns the identity of the client that owns a key. Verify does not find keys of a
// directory: see VerifyFor.
func (k *Keys) Verify(credential string) (*policy.Identity, policy.CredentialState) {
	found, _, state := k.find(credential)
	if state != policy.CredentialValid {
		return nil, state
	}
	return &found.Identity, state
}

// VerifyFor implements [policy.CostlyVerifier]. A key that is not in the file is looked up in the
// asker's directory. A key that the directory cannot look up is CredentialInvalid, like a token
// whose keys have not arrived.
func (k *Keys) VerifyFor(asker *policy.Asker, credential string) (*policy.Identity, policy.CredentialState) {
	found, hash, state := k.find(credential)
	switch {
	case state == policy.CredentialValid:
		return &found.Identity, state
	case state != policy.CredentialUnknown || !k.directory || len(credential) < KeyBytesMin:
		return nil, state
	case asker.Keys == nil:
		return nil, policy.CredentialInvalid
	}
	who, state, ok := asker.Keys.FindKey(hash, counter.Micros(k.now().UnixMicro()))
	if !ok {
		*asker.Unread = append(*asker.Unread, policy.ClientName{Kind: policy.KindKey, ID: hex.EncodeToString(hash[:])})
		return nil, policy.CredentialInvalid
	}
	return who, state
}

// InDirectory reports whether keys are looked up in a directory, besides the file.
func (k *Keys) InDirectory() bool { return k.directory }

// emptySource is the source of a verifier whose keys are all in a directory.
type emptySource struct{}

// Lookup implements [KeySource].
func (emptySource) Lookup([32]byte) (*Key, bool) { return nil, false }

// Reason returns why the key is revoked or inactive, as the key's entry says. Reason returns "" if
// the entry has no reason or the key is unknown.
func (k *Keys) Reason(credential string) string {
	if found, _, _ := k.find(credential); found != nil {
		return found.Reason
	}
	return ""
}

// Keys.find returns the entry of a key (nil if there is none), the key's SHA-256, and the key's
// state.
func (k *Keys) find(credential string) (found *Key, hash [32]byte, state policy.CredentialState) {
	if credential == "" {
		return nil, hash, policy.CredentialAbsent
	}
	if len(credential) > KeyBytesMax || !isKeyText(credential) {
		return nil, hash, policy.CredentialMalformed
	}
	hash = sha256.Sum256(unsafe.Slice(unsafe.StringData(credential), len(credential)))
	found, ok := k.source.Lookup(hash)
	if !ok {
		return nil, hash, policy.CredentialUnknown
	}
	return found, hash, found.state(counter.Micros(k.now().UnixMicro()))
}

// isKeyText reports whether a text is visible ASCII without spaces, as a key in a header must be.
func isKeyText(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// File returns the name of the keys file, or "" if the keys are not from a file.
func (k *Keys) File() string { return k.file }

// Named returns the keys of a name, beginning with those in force. The result ok is false if the
// source cannot find keys by name.
func (k *Keys) Named(name string) (keys []*Key, ok bool) {
	directory, ok := k.source.(KeyDirectory)
	if !ok {
		return nil, false
	}
	return k.validFirst(directory.Named(name)), true
}

// OfUser returns the keys that belong to a user, beginning with those in force. The result ok is
// false if the source cannot find keys by user.
func (k *Keys) OfUser(user string) (keys []*Key, ok bool) {
	directory, ok := k.source.(KeyDirectory)
	if !ok {
		return nil, false
	}
	return k.validFirst(directory.OfUser(user)), true
}

// validFirst returns a copy of the list with the keys in force first.
func (k *Keys) validFirst(keys []*Key) []*Key {
	sorted := slices.Clone(keys)
	slices.SortStableFunc(sorted, func(a, b *Key) int { return cmp.Compare(k.rank(a), k.rank(b)) })
	return sorted
}

// Keys.rank returns 0 for a key in force and 1 for any other.
func (k *Keys) rank(key *Key) int {
	if k.State(key) == policy.CredentialValid {
		return 0
	}
	return 1
}

// State returns whether a key is valid now and, if not, why.
func (k *Keys) State(key *Key) policy.CredentialState {
	return key.state(counter.Micros(k.now().UnixMicro()))
}

// keyList is the current content of a keys file.
type keyList struct {
	keys atomic.Pointer[keyTable]
}

var _ KeyDirectory = (*keyList)(nil)

// Lookup implements [KeySource].
func (l *keyList) Lookup(hash [32]byte) (*Key, bool) {
	k, ok := l.keys.Load().byHash[hash]
	return k, ok
}

// Named implements [KeyDirectory].
func (l *keyList) Named(name string) []*Key { return l.keys.Load().byName[name] }

// OfUser implements [KeyDirectory].
func (l *keyList) OfUser(user string) []*Key { return l.keys.Load().byUser[user] }

// keyTable is the content of one version of a keys file. A keyTable is immutable. The keys of
// byName and byUser are in the order of the file.
type keyTable struct {
	byHash         map[[32]byte]*Key
	byName, byUser map[string][]*Key
}
