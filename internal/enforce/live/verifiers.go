// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/policyfile"
)

// keysWait bounds how long opening a policy waits for the key sets of its issuers. Tokens are
// invalid until the keys arrive, so without waiting a service would begin by rejecting all tokens.
// The wait is bounded, because a service must start even if an issuer is down.
const keysWait = 2 * time.Second

// Verifiers is a pool of open verifiers, keyed by their settings. Policies and versions with the
// same settings share a verifier with its keys and its token cache. It is safe for concurrent use.
type Verifiers struct {
	logger *slog.Logger

	mu   sync.Mutex
	open map[string]*sharedVerifier
}

// NewVerifiers returns an empty pool. Verifiers log to the logger.
func NewVerifiers(logger *slog.Logger) *Verifiers {
	return &Verifiers{logger: logger, open: make(map[string]*sharedVerifier)}
}

// Len returns the number of open verifiers.
func (p *Verifiers) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}

// sharedVerifier is a verifier that one or more versions use.
type sharedVerifier struct {
	key  string
	uses int // guarded by the pool's mu

	once     sync.Once // runs the method start
	err      error
	verifier policy.Verifier
	closer   io.Closer
}

// versionVerifiers are the verifiers of one version.
type versionVerifiers struct {
	pool *Verifiers
	list []policy.Verifier // in the order of the list "identify"; nil for an entry without a verifier
	held []*sharedVerifier
}

// openFor opens the verifiers for the entries of the policy's list "identify". Its error is
// [policy.Problems] or a [*policyfile.PanicError]; after an error, nothing is left open.
func (p *Verifiers) openFor(d *policyfile.Document) (*versionVerifiers, error) {
	v := &versionVerifiers{pool: p, list: make([]policy.Verifier, len(d.Identify))}
	deadline := time.Now().Add(keysWait)
	var fresh []*sharedVerifier
	var problems policy.Problems
	for i := range d.Identify {
		entry := d.Identify[i]
		if entry.JWT == nil && entry.APIKey == nil {
			continue
		}
		one, isNew, err := p.share(withPaths(entry, d))
		var found policy.Problems
		switch {
		case err == nil:
			v.list[i], v.held = one.verifier, append(v.held, one)
			if isNew {
				fresh = append(fresh, one)
			}
		case errors.As(err, new(*policyfile.PanicError)): // this is not a problem of the policy
			return nil, errors.Join(err, v.close())
		case errors.As(err, &found):
			problems = append(problems, atEntry(found, i, d)...)
		default:
			problems = append(problems, policy.Problem{Path: entryPath(i), Why: "cannot be used: " + err.Error(),
				Place: d.Place(entryPath(i))})
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems, v.close())
	}
	for _, one := range fresh {
		if keys, ok := one.closer.(interface{ Wait(time.Duration) }); ok {
			keys.Wait(time.Until(deadline))
		}
	}
	return v, nil
}

// Verifiers.share returns the verifier of an entry and reports whether this call opened it.
func (p *Verifiers) share(entry policyfile.Identify) (one *sharedVerifier, isNew bool, err error) {
	text, err := json.Marshal(entry)
	if err != nil {
		return nil, false, err
	}
	p.mu.Lock()
	one = p.open[string(text)]
	if one == nil {
		one = &sharedVerifier{key: string(text)}
		p.open[one.key] = one
	}
	one.uses++
	p.mu.Unlock()
	one.once.Do(func() {
		isNew = true
		one.start(entry, p.logger)
	})
	if one.err != nil {
		return nil, false, errors.Join(one.err, p.release(one))
	}
	return one, isNew, nil
}

// sharedVerifier.start opens the verifier. It converts a panic into an error, because other callers
// wait for the verifier.
func (s *sharedVerifier) start(entry policyfile.Identify, logger *slog.Logger) {
	defer func() {
		if reason := recover(); reason != nil {
			s.err = &policyfile.PanicError{Reason: reason, Stack: debug.Stack()}
		}
	}()
	alone := &policyfile.Document{Identify: []policyfile.Identify{entry}}
	list, closer, err := credential.OpenAll(alone, credential.OpenOptions{Logger: logger})
	if err != nil {
		s.err = err
		return
	}
	s.verifier, s.closer = list[0], closer
}

// Verifiers.release ends one use of a verifier. It closes the verifier after the last use.
func (p *Verifiers) release(one *sharedVerifier) error {
	p.mu.Lock()
	one.uses--
	last := one.uses == 0
	if (last || one.err != nil) && p.open[one.key] == one {
		delete(p.open, one.key)
	}
	p.mu.Unlock()
	if last && one.closer != nil {
		return one.closer.Close()
	}
	return nil
}

// versionVerifiers.close releases all verifiers. Requests that still use them keep their last keys.
// A second call does nothing.
func (v *versionVerifiers) close() error {
	if v == nil {
		return nil
	}
	var problems []error
	for _, one := range v.held {
		problems = append(problems, v.pool.release(one))
	}
	v.held = nil
	return errors.Join(problems...)
}

// versionVerifiers.ready reports whether every key set that comes from a URL has been fetched.
func (v *versionVerifiers) ready() bool {
	for _, one := range v.held {
		if keys, ok := one.closer.(interface{ Ready() bool }); ok && !keys.Ready() {
			return false
		}
	}
	return true
}

// withPaths returns a copy of an entry with its file names resolved against the policy's folder.
func withPaths(entry policyfile.Identify, d *policyfile.Document) policyfile.Identify {
	if entry.JWT != nil {
		jwt := *entry.JWT
		jwt.JWKSFile, jwt.SecretFile = d.File(jwt.JWKSFile), d.File(jwt.SecretFile)
		entry.JWT = &jwt
	}
	if entry.APIKey != nil {
		key := *entry.APIKey
		key.KeysFile = d.File(key.KeysFile)
		entry.APIKey = &key
	}
	return entry
}

func entryPath(i int) string { return fmt.Sprintf("identify[%d]", i) }

// atEntry adjusts the problems of an entry that was opened alone to the entry's index and location
// in the policy.
func atEntry(found policy.Problems, i int, d *policyfile.Document) policy.Problems {
	for k := range found {
		rest, _ := strings.CutPrefix(found[k].Path, entryPath(0))
		found[k].Path = entryPath(i) + rest
		if found[k].Place == "" {
			found[k].Place = d.Place(found[k].Path)
		}
	}
	return found
}
