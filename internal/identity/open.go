// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policy"
)

// OpenOptions say how the verifiers of a policy are opened.
type OpenOptions struct {
	// Folder is where file names of the policy are looked for that are not absolute; "" is the working directory.
	Folder string
	// Wait is how long to wait for the first key sets from URLs. Requests that come before them find their tokens
	// invalid. 0 means not at all. That a URL does not answer is no error: the log says so.
	Wait time.Duration

	Now    func() time.Time // nil means time.Now
	Logger *slog.Logger     // nil means none
}

// OpenAll opens a verifier for each entry of identify that needs one; the others are nil, so that the result is what
// [policy.Document.CompileWith] takes. Close it when no request uses them any more. The error is [core.Problems] with the
// entries that could not be opened; then nothing is left open.
func OpenAll(d *policy.Document, o OpenOptions) ([]core.Verifier, io.Closer, error) {
	verifiers := make([]core.Verifier, len(d.Identify))
	var open closers
	var problems core.Problems
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
			if keys, err = NewKeys(KeysOptions{File: o.file(entry.APIKey.KeysFile), Now: o.Now, Logger: o.Logger}); err == nil {
				verifiers[i] = keys
				open = append(open, keys)
			}
		}
		problems = append(problems, opened(path, d, err)...)
	}
	if len(problems) > 0 {
		_ = open.Close() // never fails
		return nil, nil, problems
	}
	open.wait(o.Wait)
	return verifiers, open, nil
}

// opened turns what could not be opened into problems of the policy. Problems of a keys file keep their own places.
func opened(path string, d *policy.Document, err error) core.Problems {
	var inside core.Problems
	switch {
	case err == nil:
		return nil
	case errors.As(err, &inside):
		for i := range inside {
			inside[i].Path = path + ".keys_file: " + inside[i].Path
		}
		return inside
	}
	return core.Problems{{Path: path, Place: d.Place(path), Why: "cannot be used: " + err.Error()}}
}

func openJWT(d *policy.IdentifyJWT, o *OpenOptions) (*JWT, error) {
	options := JWTOptions{Secret: d.Secret, SecretFile: o.file(d.SecretFile), JWKSFile: o.file(d.JWKSFile),
		Algorithms: d.Algorithms, Issuer: d.Issuer, Audience: d.Audience, Claim: d.Claim, TenantClaim: d.TenantClaim,
		TierClaim: d.TierClaim, LimitsClaim: d.LimitsClaim, Now: o.Now, Logger: o.Logger}
	if d.Leeway != "" {
		leeway, err := policy.Span(d.Leeway)
		if err != nil {
			return nil, fmt.Errorf("leeway %q %w", d.Leeway, err)
		}
		options.Leeway = &leeway
	}
	var err error
	if options.JWKSURL, err = policy.Secret(d.JWKSURL); err != nil {
		return nil, fmt.Errorf("jwks_url: %w", err)
	}
	if options.Refresh, err = policy.Span(d.Refresh); err != nil {
		return nil, fmt.Errorf("refresh %q %w", d.Refresh, err)
	}
	return NewJWT(options)
}

func (o *OpenOptions) file(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(o.Folder, name)
}

// closers closes all of them.
type closers []io.Closer

// Close closes every verifier and returns what went wrong.
func (c closers) Close() error {
	var errs []error
	for _, one := range c {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// Ready reports whether every one has keys: a set from a URL takes time. Until then every token is invalid.
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

// wait waits until every one has keys, or for so long.
func (c closers) wait(most time.Duration) {
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
