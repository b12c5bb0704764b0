// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/explain"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/policyfile"
)

// openUnwatched compiles a policy for reports about a named client, for which no credential is
// verified. The client's tier and limits come from the keys files that can be read. The caller
// closes the closer.
func openUnwatched(d *policyfile.Document, path string) (*operator.Policy, io.Closer, error) {
	verifiers, closer := keysOf(d, path)
	p := &operator.Policy{Document: d, Verifiers: verifiers}
	standIns := make([]policy.Verifier, len(verifiers))
	for i := range verifiers {
		standIns[i] = verifiers[i]
		if entry := &d.Identify[i]; standIns[i] == nil && (entry.JWT != nil || entry.APIKey != nil) {
			standIns[i] = explain.Unknowing{}
		}
	}
	var err error
	if p.Ruleset, err = d.CompileWith(standIns); err != nil {
		_ = closer.Close() // nothing was written
		return nil, nil, err
	}
	return p, closer, nil
}

// keysOf opens those keys files of a policy that can be read. keysOf returns a verifier for each
// entry of identify; the verifiers of all other entries are nil.
func keysOf(d *policyfile.Document, path string) ([]policy.Verifier, io.Closer) {
	verifiers := make([]policy.Verifier, len(d.Identify))
	var open closers
	for i := range d.Identify {
		if d.Identify[i].APIKey == nil {
			continue
		}
		alone := &policyfile.Document{Identify: d.Identify[i : i+1]}
		if opened, closer, err := credential.OpenAll(alone, credential.OpenOptions{Folder: filepath.Dir(path)}); err == nil {
			verifiers[i], open = opened[0], append(open, closer)
		}
	}
	return verifiers, open
}

// warnOfUnknown prints a line for each property of a client that is unknown.
func warnOfUnknown(out io.Writer, client string, of *operator.Profile) {
	for _, gap := range of.Unknown {
		fmt.Fprintf(out, "warning: the %s of %s cannot be known: %s\n", quoteUnprintable(gap.What), quoteUnprintable(client), quoteUnprintable(gap.Why))
	}
}

// closers closes several verifiers.
type closers []io.Closer

// Close closes all verifiers, which never fails.
func (c closers) Close() error {
	for _, one := range c {
		_ = one.Close()
	}
	return nil
}
