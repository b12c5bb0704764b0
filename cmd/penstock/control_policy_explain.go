// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/explain"
)

// explainedRequest is the body of the call of the API that explains a request.
type explainedRequest struct {
	Revision int64               `json:"revision,omitempty"`
	Region   string              `json:"region,omitempty"`
	Method   string              `json:"method"`
	Path     string              `json:"path"`
	Host     string              `json:"host"`
	IP       string              `json:"ip,omitempty"`
	Remote   string              `json:"remote,omitempty"`
	Headers  map[string][]string `json:"headers,omitempty"`
	Attrs    map[string]string   `json:"attributes,omitempty"`
	Client   string              `json:"client,omitempty"`
	User     string              `json:"user,omitempty"`
	Tier     string              `json:"tier,omitempty"`
	Tenant   string              `json:"tenant,omitempty"`
	Counters bool                `json:"counters,omitempty"`
}

// newPolicyExplain returns the command that explains a request under a policy of the control plane.
func newPolicyExplain() *cobra.Command {
	c, q := new(policyCommand), new(question)
	var asked explainedRequest
	cmd := c.command("explain", "Explain which rules of a policy apply to a request, with the records of its client", noArgs, func(cmd *cobra.Command, _ []string) error {
		return c.explain(cmd, q, &asked)
	})
	cmd.Long = "Explain a request as penstock explain does: by the code that decides it in a proxy, under a revision of a policy of the control plane,\n" +
		"and with the records of clients, networks and API keys that it has. Nothing is charged. With --counters, the counters are read in the\n" +
		"Redis of the control plane. The control plane verifies no tokens and no keys of a keys file: name their clients by --client."
	q.registerRequest(cmd.Flags())
	flags := cmd.Flags()
	flags.Int64Var(&asked.Revision, "revision", 0, "the revision (the one in force on all nodes, or the latest if none is)")
	flags.BoolVar(&asked.Counters, "counters", false, "read the counters; without it they count as unused")
	return cmd
}

// policyCommand.explain sends the request to the control plane, and prints the explanation.
func (c *policyCommand) explain(cmd *cobra.Command, q *question, asked *explainedRequest) error {
	r, _, err := q.read()
	if err != nil {
		return err
	}
	path, err := c.path(cmd.Context())
	if err != nil {
		return err
	}
	of := &r.Description
	asked.Method, asked.Path, asked.Host, asked.Headers, asked.Attrs = of.Method, q.target, of.Host, of.Headers, of.Attrs
	asked.IP, asked.Remote, asked.Region = q.client, q.remote, string(q.region)
	asked.Client, asked.User, asked.Tier, asked.Tenant = q.named.Client, q.named.User, q.named.Tier, q.named.Tenant
	var told struct {
		explain.Explanation
		Revision int64    `json:"revision"`
		Records  []any    `json:"records"`
		Unknown  []string `json:"unknown,omitempty"`
	}
	if _, err := c.sendJSON(cmd.Context(), http.MethodPost, path+"/explanation", asked, &told); err != nil {
		return err
	}
	for _, gap := range told.Unknown {
		what, why, _ := strings.Cut(gap, ": ")
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: the %s of %s cannot be known: %s\n", quoteUnprintable(what), quoteUnprintable(asked.Client), quoteUnprintable(why))
	}
	if q.asJSON {
		return printJSON(cmd.OutOrStdout(), &told)
	}
	return printExplanation(cmd.OutOrStdout(), &told.Explanation, "--counters")
}
