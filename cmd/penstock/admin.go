// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

// adminCommands returns the commands for a running Caddy or bridge, or Redis.
func adminCommands() []*cobra.Command {
	a := new(admin)
	commands := []*cobra.Command{
		a.command("rules", "Print the policies and rules in force", func(*cobra.Command) request {
			return func() (string, string, url.Values) { return http.MethodGet, "rules", nil }
		}),
		a.clientCommand("client", "Print a client's counters and penalty, without spending anything"),
		a.clientCommand("reset", "Delete a client's counters: its full limits are available again"),
		a.clientCommand("lift", "Lift a client's penalty and forget its violations"),
		a.usageCommand(),
		a.topCommand(),
		a.nodesCommand(),
		a.eventsCommand(),
		a.reloadCommand(),
	}
	for _, cmd := range commands {
		a.register(cmd.Flags())
		if cmd.Name() == "client" {
			addClientEdits(cmd, a)
		}
	}
	return commands
}

// request returns the request of a command. It is called after the flags are parsed.
type request func() (method, path string, query url.Values)

func (a *admin) command(name, short string, prepare func(*cobra.Command) request) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: short, Args: noArgs}
	ask := prepare(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		method, path, query := ask()
		reply, err := a.ask(cmd.Context(), method, path, query)
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(reply)
		return err
	}
	return cmd
}

// reloadCommand returns the command that reloads policies. It prints one line on success, or with
// --json the policies in force, as "rules" does.
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
