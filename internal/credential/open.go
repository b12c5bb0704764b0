// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
)

// OpenOptions configures [OpenAll].
type OpenOptions struct {
	// Folder is the folder of relative file names in the policy. "" is the working directory.
	Folder string
	// Wait bounds the wait for the first key sets from URLs. Until a set arrives, the tokens that
	// its keys have signed are invalid. If Wait is 0, OpenAll does not wait. A URL that does not
	// answer is logged, but is not an error.
	Wait time.Duration

	Now    func() time.Time // nil means time.Now
	Logger *slog.Logger     // nil means none
}

// OpenAll opens a verifier for each entry of identify that needs one. The slice of verifiers has
// nil for every other entry, and is the argument of [policyfile.Document.CompileWith]. The caller
// closes the [io.Closer] when no request uses the verifiers any more. The error is
// [policy.Problems], with the entries that could not be opened. After an error, no verifier is left
// open.
func OpenAll(d *policyfile.Document, o OpenOptions) ([]policy.Verifier, io.Closer, error) {
	verifiers := make([]policy.Verifier, len(d.Identify))
	var open closers
	var problems policy.Problems
	for i := range d.Identify {
		path := fmt.Sprintf("identify[%d]", i)
		var err error
		switch entry := &d.Identify[i]; {
		case entry.JWT != nil:
			path += ".jwt"
			var jwt *JWT
			if jwt, err = openJWT(entry.JWT, &o); err == nil {
				verifiers[i] = jwt
				open = append(open, jwt)
			}
		case entry.APIKey != nil:
			path += ".api_key"
			var keys *Keys
			if keys, err = NewKeys(KeysOptions{File: o.file(entry.APIKey.KeysFile),
				Directory: entry.APIKey.InDirectory(), Now: o.Now, Logger: o.Logger}); err == nil {
				verifiers[i] = keys
				open = append(open, keys)
			}
		}
		problems = append(problems, problemsOfOpen(path, d, err)...)
	}
	if len(problems) > 0 {
		_ = open.Close() // never fails
		return nil, nil, problems
	}
	open.Wait(o.Wait)
	return verifiers, open, nil
}

// problemsOfOpen converts an error into problems of the policy. Problems of a keys file keep their
// locations.
func problemsOfOpen(path string, d *policyfile.Document, err error) policy.Problems {
	var inside policy.Problems
	switch {
	case err == nil:
		return nil
	case errors.As(err, &inside):
		for i := range inside {
			inside[i].Path = path + ".keys_file: " + inside[i].Path
		}
		return inside
	}
	return policy.Problems{{Path: path, Place: d.Place(path), Why: "cannot be used: " + err.Error()}}
}

// openJWT opens the verifier of a jwt entry.
func openJWT(d *policyfile.IdentifyJWT, o *OpenOptions) (*JWT, error) {
	options := JWTOptions{Secret: d.Secret, SecretFile: o.file(d.SecretFile), JWKSFile: o.file(d.JWKSFile),
		Algorithms: d.Algorithms, Issuer: d.Issuer, Audience: d.Audience, Claim: d.Claim, TenantClaim: d.TenantClaim,
		TierClaim: d.TierClaim, LimitsClaim: d.LimitsClaim, Now: o.Now, Logger: o.Logger}
	if d.Leeway != "" {
		leeway, err := policyfile.Span(d.Leeway)
		if err != nil {
			return nil, fmt.Errorf("leeway %q %w", d.Leeway, err)
		}
		options.Leeway = &leeway
	}
	var err error
	if options.JWKSURL, err = policyfile.Secret(d.JWKSURL); err != nil {
		return nil, fmt.Errorf("jwks_url: %w", err)
	}
	if options.Refresh, err = policyfile.Span(d.Refresh); err != nil {
		return nil, fmt.Errorf("refresh %q %w", d.Refresh, err)
	}
	return NewJWT(options)
}

// OpenOptions.file resolves a file name of the policy.
func (o *OpenOptions) file(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(o.Folder, name)
}

// closers closes several verifiers.
type closers []io.Closer

// Close closes every verifier and returns all errors.
func (c closers) Close() error {
	var errs []error
	for _, one := range c {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// Ready reports whether every verifier has keys. A set from a URL takes time, and until it arrives
// every token is invalid.
func (c closers) Ready() bool {
	for _, one := range c {
		if jwt, ok := one.(*JWT); ok {
			select {
			case <-jwt.Ready():
			default:
				return false
			}
		}
	}
	return true
}

// Wait waits until every verifier has keys, but at most for the given time.
func (c closers) Wait(most time.Duration) {
	if most <= 0 {
		return
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	for _, one := range c {
		jwt, ok := one.(*JWT)
		if !ok {
			continue
		}
		select {
		case <-jwt.Ready():
		case <-timer.C:
			return
		}
	}
}
