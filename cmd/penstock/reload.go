// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
)

// reloadCommand returns the command that reloads policies. The command prints one line on success,
// or with --json the policies in force, as "rules" does.
func (a *admin) reloadCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "reload", Short: "Read the policy files again", Args: noArgs}
	asJSON := cmd.Flags().Bool("json", false, "print the policies now in force as JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		reply, err := a.ask(cmd.Context(), http.MethodPost, "reload", nil)
		if err != nil {
			return err
		}
		if !*asJSON {
			if reply, err = summarizeReload(reply); err != nil {
				return err
			}
		}
		_, err = cmd.OutOrStdout().Write(reply)
		return err
	}
	return cmd
}

// summarizeReload returns one line that names each policy file with its policy and version.
// Policies written in the Caddyfile itself are left out, because a reload does not read them.
func summarizeReload(reply []byte) ([]byte, error) {
	var rules struct {
		Policies []struct{ Name, Version, File string }
	}
	if err := json.Unmarshal(reply, &rules); err != nil {
		return nil, fmt.Errorf("reading the policies in force: %w", err)
	}
	var files []string
	for _, p := range rules.Policies {
		if p.File != "" {
			files = append(files, fmt.Sprintf("%s (policy %q, version %s)", p.File, p.Name, p.Version))
		}
	}
	if len(files) == 0 {
		return []byte("no policy file is in use; \"caddy reload\" reads the Caddyfile again\n"), nil
	}
	return []byte("in force: " + strings.Join(files, ", ") + "\n"), nil
}
