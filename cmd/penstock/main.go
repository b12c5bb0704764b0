// SPDX-License-Identifier: Apache-2.0

// Command penstock helps people to live with a policy: it checks one, explains what it would do to a request, makes
// entries for files of API keys, and asks a running Caddy about its clients. It counts nothing itself.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// errSaid ends the command with status 1 without another word: what is wrong has been printed.
var errSaid = errors.New("")

func main() {
	if err := newRoot().Execute(); err != nil {
		if !errors.Is(err, errSaid) {
			fmt.Fprintf(os.Stderr, "penstock: %v\n", err)
		}
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "penstock",
		Short:         "Check, explain and operate rate limiting policies",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newValidate(), newExplain(), newHashKey())
	root.AddCommand(adminCommands()...)
	return root
}
