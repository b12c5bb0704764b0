// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/explain"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/policyfile"
)

// compileNamed compiles the policy and makes the request come from the named client. The caller
// closes the closer.
func (q *question) compileNamed(cmd *cobra.Command, d *policyfile.Document, r *explain.Request) (*core.Ruleset, io.Closer, error) {
	if q.named.Client == "" {
		return nil, nil, errors.New("--user, --tier and --tenant are those of a --client; write --client user:u_42 too")
	}
	client, err := operator.Parse(q.named)
	if err != nil {
		return nil, nil, fmt.Errorf("--client: %w", err)
	}
	verifiers, closer := keysOf(d, q.policy)
	p, err := explain.Compile(d, verifiers)
	if err == nil {
		var f *operator.Profile
		if f, err = r.Name(p, client, q.named); f != nil {
			warnOfUnknown(cmd.ErrOrStderr(), client.String(), f)
		}
	}
	if err != nil {
		_ = closer.Close() // nothing was written to the store
		return nil, nil, err
	}
	return p.Ruleset, closer, nil
}
