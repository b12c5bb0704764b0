// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/identity"
	"github.com/penstock/penstock/internal/policy"
)

// verifierPool holds what verifies credentials, by its settings: key sets and the memory of tokens outlive a reload that
// does not change them, and policies that say the same share them.
var verifierPool = caddy.NewUsagePool()

// keysWait is how long a configuration that is loaded waits for key sets from URLs. Tokens that come before the keys are
// invalid, and a service that starts may not begin by refusing everybody; one whose issuer is down must start all the
// same.
const keysWait = 2 * time.Second

// pooledVerifier is a verifier in use by one or several policies.
type pooledVerifier struct {
	core.Verifier
	closer io.Closer
}

// Destruct closes the verifier when no policy uses it any more.
func (v *pooledVerifier) Destruct() error { return v.closer.Close() }

// verifiers are those of one policy, each at the index of its entry in identify; nil where none is needed.
type verifiers struct {
	list []core.Verifier
	keys []string // in the pool
}

// openVerifiers opens what the policy's identify needs. The error is [core.Problems], or [policy.PanicError]; then nothing is left
// open. Otherwise the caller closes them when the policy is in force no longer.
func openVerifiers(d *policy.Document) (*verifiers, error) {
	v := &verifiers{list: make([]core.Verifier, len(d.Identify))}
	var problems core.Problems
	for i := range d.Identify {
		way := d.Identify[i]
		if way.JWT == nil && way.APIKey == nil {
			continue
		}
		opened, err := v.open(withPaths(way, d))
		if panicked, ok := errors.AsType[*policy.PanicError](err); ok { // no problem of the policy's, and it has the stack
			return nil, errors.Join(panicked, v.close())
		}
		var found core.Problems
		switch {
		case errors.As(err, &found):
			problems = append(problems, atEntry(found, i, d)...)
			continue
		case err != nil:
			problems = append(problems, core.Problem{Path: entryPath(i), Why: "cannot be used: " + err.Error()})
			continue
		}
		v.list[i] = opened.Verifier
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems, v.close())
	}
	return v, nil
}

// withPaths returns a way to identify whose files are found wherever it is opened.
func withPaths(way policy.Identify, d *policy.Document) policy.Identify {
	if way.JWT != nil {
		jwt := *way.JWT
		jwt.JWKSFile, jwt.SecretFile = d.File(jwt.JWKSFile), d.File(jwt.SecretFile)
		way.JWT = &jwt
	}
	if way.APIKey != nil {
		key := *way.APIKey
		key.KeysFile = d.File(key.KeysFile)
		way.APIKey = &key
	}
	return way
}

// open returns the verifier of a way to identify, the one in use if there is one with the same settings.
func (v *verifiers) open(way policy.Identify) (*pooledVerifier, error) {
	text, err := json.Marshal(way)
	if err != nil {
		return nil, err
	}
	key := string(text)
	value, _, err := verifierPool.LoadOrNew(key, func() (_ caddy.Destructor, err error) {
		defer func() {
			if reason := recover(); reason != nil { // the pool would stay locked for this key
				err = &policy.PanicError{Reason: reason, Stack: debug.Stack()}
			}
		}()
		alone := &policy.Document{Identify: []policy.Identify{way}}
		opened, closer, err := identity.OpenAll(alone, identity.OpenOptions{Wait: keysWait, Logger: storeLogger()})
		if err != nil {
			return nil, err
		}
		return &pooledVerifier{Verifier: opened[0], closer: closer}, nil
	})
	if err != nil {
		return nil, err
	}
	v.keys = append(v.keys, key)
	return value.(*pooledVerifier), nil
}

// close gives the verifiers back. Requests that still use them find the last keys.
func (v *verifiers) close() error {
	if v == nil {
		return nil
	}
	var problems []error
	for _, key := range v.keys {
		_, err := verifierPool.Delete(key)
		problems = append(problems, err)
	}
	v.keys = nil
	return errors.Join(problems...)
}

func entryPath(i int) string { return fmt.Sprintf("identify[%d]", i) }

// atEntry puts problems of a way that was opened alone where it stands in the policy.
func atEntry(found core.Problems, i int, d *policy.Document) core.Problems {
	for k := range found {
		rest, _ := strings.CutPrefix(found[k].Path, entryPath(0))
		found[k].Path = entryPath(i) + rest
		if found[k].Place == "" {
			found[k].Place = d.Place(found[k].Path)
		}
	}
	return found
}
