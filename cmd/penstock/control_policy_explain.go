// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/policyfile"
)

// newPolicyExplain returns the command that explains a request under a policy of the control plane.
func newPolicyExplain() *cobra.Command {
	c := &controlFlagsSet{policyCommand: new(policyCommand)}
	q := &question{control: c}
	cmd := c.command("explain", "Explain which rules of a policy apply to a request, with the records of its client", noArgs, func(cmd *cobra.Command, _ []string) error {
		return q.explain(cmd)
	})
	cmd.Long = "Explain a request as penstock explain does: by the code that decides it in a proxy, under a revision of a policy of the control plane,\n" +
		"and with the records of clients and networks that it has. Nothing is charged. With --redis the counters are read."
	q.register(cmd.Flags())
	cmd.Flags().Int64Var(&c.revision, "revision", 0, "the revision (the one in force on all nodes, or the latest if none is)")
	return cmd
}

// The type controlFlagsSet is the control plane that has the policy and the records of clients.
type controlFlagsSet struct {
	*policyCommand
	revision int64
}

// document returns the policy.
func (c *controlFlagsSet) document(ctx context.Context) (*policyfile.Document, error) {
	path, err := c.path(ctx)
	if err != nil {
		return nil, err
	}
	var found struct {
		Publication ledger.Publication
		Document    json.RawMessage
	}
	if c.revision == 0 {
		if _, err := c.send(ctx, http.MethodGet, path, nil, &found); err != nil {
			return nil, err
		}
		c.revision = found.Publication.Revision
	}
	if c.revision != 0 {
		if _, err := c.send(ctx, http.MethodGet, fmt.Sprintf("%s?revision=%d", path, c.revision), nil, &found); err != nil {
			return nil, err
		}
	}
	d := new(policyfile.Document)
	if err := json.Unmarshal(found.Document, d); err != nil {
		return nil, err
	}
	d.Directory = true
	return d, nil
}

// recordSource reads records from a control plane.
type recordSource struct {
	directory.Memory
	client *controlClient
}

// Read implements [directory.Source].
func (s *recordSource) Read(ctx context.Context, names []policy.ClientName, texts [][]byte) error {
	for i, name := range names {
		if name.Kind == policy.KindKey {
			continue // a control plane keeps no keys
		}
		var found ledger.Client
		status, err := s.client.send(ctx, http.MethodGet, clientPath(name.String()), nil, &found)
		if status == http.StatusNotFound {
			continue
		}
		if err != nil {
			return err
		}
		texts[i] = found.Record.Text()
	}
	return nil
}

// Networks implements [directory.Source].
func (s *recordSource) Networks(ctx context.Context) (map[string][]byte, error) {
	all := map[string][]byte{}
	for after := ""; ; {
		var page struct {
			Clients []ledger.Client
			Next    string
		}
		if _, err := s.client.send(ctx, http.MethodGet, "/v1/clients?limit=1000&kind="+directory.KindNetwork+"&after="+url.QueryEscape(after), nil, &page); err != nil {
			return nil, err
		}
		for i := range page.Clients {
			name, err := directory.ParseName(page.Clients[i].Client)
			if err != nil {
				return nil, err
			}
			all[name.ID] = page.Clients[i].Record.Text()
		}
		if after = page.Next; after == "" {
			return all, nil
		}
	}
}
