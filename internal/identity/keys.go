// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policy"
)

// Key is what is known of an API key. The key itself is not. It never changes; make another one instead.
type Key struct {
	// Identity is who the owner is: Kind "api_key", and the key's name as ID.
	Identity core.Identity
	// NotBefore and Expires bound when the key is good: NotBefore <= now < Expires, in microseconds since the epoch; 0 is
	// no bound.
	NotBefore, Expires core.Micros
	// Revoked keys were taken back; Inactive ones are switched off for now.
	Revoked, Inactive bool
	// Reason says why, to whoever looks into it.
	Reason string
}

// state says what the key is worth.
func (k *Key) state(now core.Micros) core.CredentialState {
	switch {
	case k.Revoked:
		return core.CredentialRevoked
	case k.Expires != 0 && now >= k.Expires:
		return core.CredentialLapsed
	case k.Inactive, now < k.NotBefore:
		return core.CredentialInactive
	}
	return core.CredentialValid
}

// KeySource finds API keys by their SHA-256. Implementations are safe for concurrent use, and answer from memory: requests
// wait for them.
//
// The lookup need not take the same time whatever the hash: what it leaks is how far the hash of a guess, which nobody can
// choose, agrees with that of a key.
type KeySource interface {
	Lookup(hash [32]byte) (*Key, bool)
}

// KeysOptions say where API keys are known from. Exactly one of File and Source is set.
type KeysOptions struct {
	// File is a list of keys in YAML, TOML or JSON, by its extension; see [NewEntry]. It is read again when it changes; an
	// edit with a mistake is refused, with a line in the log, and what it held before stays in force.
	File string
	// Source is where to look instead.
	Source KeySource

	Now    func() time.Time // nil means time.Now
	Logger *slog.Logger     // nil means none
}

// Bounds of a key as it is presented, in bytes.
const (
	KeyBytesMin = 16 // shorter ones can be guessed
	KeyBytesMax = 512
)

// Keys verifies API keys. It is a [core.Verifier], safe for concurrent use.
type Keys struct {
	source  KeySource
	now     func() time.Time
	cancel  context.CancelFunc
	running sync.WaitGroup
}

var _ core.Verifier = (*Keys)(nil)

// NewKeys returns a verifier. It reads the file, and watches it until Close. The error is [core.Problems] for what the file
// says, or says why it could not be read.
func NewKeys(o KeysOptions) (*Keys, error) { return newKeys(o, watchEvery) }

func newKeys(o KeysOptions, every time.Duration) (*Keys, error) {
	if (o.File == "") == (o.Source == nil) {
		return nil, fmt.Errorf("api keys: exactly one of a file and a source is needed")
	}
	k := &Keys{source: o.Source, now: o.Now}
	if k.now == nil {
		k.now = time.Now
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	if o.Source != nil {
		return k, nil
	}
	format, ok := policy.FormatOf(o.File)
	if !ok {
		cancel()
		return nil, fmt.Errorf("keys file %q: the extension must be .yaml, .yml, .toml or .json", o.File)
	}
	list := &keyList{}
	k.source = list
	file := &watchedFile{path: o.File, sizeMax: policy.SizeMax, notices: newNotices(o.Logger),
		smaller: ": spread the keys over several files, an api_key entry of identify each"}
	file.load = func(data []byte) error {
		keys, err := readKeys(filepath.Base(o.File), format, data)
		if err == nil {
			list.keys.Store(&keys)
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

// Close stops watching the file. Keys are verified by what it held last.
func (k *Keys) Close() error {
	k.cancel()
	k.running.Wait()
	return nil
}

// Verify says whose key it is.
func (k *Keys) Verify(credential string) (*core.Identity, core.CredentialState) {
	found, state := k.find(credential)
	if state != core.CredentialValid {
		return nil, state
	}
	return &found.Identity, state
}

// Reason returns why a key is revoked or inactive, as its entry says; "" if it does not, or if there is no such key.
func (k *Keys) Reason(credential string) string {
	if found, _ := k.find(credential); found != nil {
		return found.Reason
	}
	return ""
}

// find returns the entry of a key, nil if it has none, and what it is worth.
func (k *Keys) find(credential string) (*Key, core.CredentialState) {
	if credential == "" {
		return nil, core.CredentialAbsent
	}
	if len(credential) > KeyBytesMax || !isKeyText(credential) {
		return nil, core.CredentialMalformed
	}
	found, ok := k.source.Lookup(sha256.Sum256(unsafe.Slice(unsafe.StringData(credential), len(credential))))
	if !ok {
		return nil, core.CredentialUnknown
	}
	return found, found.state(core.Micros(k.now().UnixMicro()))
}

// isKeyText reports whether a text is visible ASCII without spaces, as keys are that travel in headers.
func isKeyText(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// keyList is a list of keys that is swapped as a whole.
type keyList struct {
	keys atomic.Pointer[map[[32]byte]*Key]
}

func (l *keyList) Lookup(hash [32]byte) (*Key, bool) {
	k, ok := (*l.keys.Load())[hash]
	return k, ok
}
