// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/explain"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/policyfile"
)

// The method assert makes the request come from the named client. The method returns verifiers that
// accept any credential as the client's. The caller closes the closer.
func (q *question) assert(cmd *cobra.Command, d *policyfile.Document, r *explain.Request) ([]policy.Verifier, io.Closer, error) {
	if q.named.Client == "" {
		return nil, nil, errors.New("--user, --tier and --tenant are those of a --client; write --client user:u_42 too")
	}
	client, err := operator.Parse(q.named)
	if err != nil {
		return nil, nil, fmt.Errorf("--client: %w", err)
	}
	p, closer, err := openUnwatched(d, q.policy)
	if err != nil {
		return nil, nil, err
	}
	verifiers, err := q.assertIn(cmd, p, client, r)
	if err != nil {
		_ = closer.Close() // nothing was written to the store
		return nil, nil, err
	}
	return verifiers, closer, nil
}

// assertIn is like assert, for a policy that is already open.
func (q *question) assertIn(cmd *cobra.Command, p *operator.Policy, client *operator.Client, r *explain.Request) ([]policy.Verifier, error) {
	verifiers, f, err := r.Name(p, client, q.named)
	if f != nil {
		warnOfUnknown(cmd.ErrOrStderr(), client.String(), f)
	}
	return verifiers, err
}
