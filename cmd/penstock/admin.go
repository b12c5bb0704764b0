// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/url"

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
