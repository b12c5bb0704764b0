// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"

	"github.com/spf13/cobra"
)

// adminCommands returns the commands for a running Caddy or bridge, or Redis.
func adminCommands() []*cobra.Command {
	a := new(admin)
	commands := []*cobra.Command{
		a.rulesCommand(),
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

// rulesCommand returns the command that prints the policies and rules in force.
func (a *admin) rulesCommand() *cobra.Command {
	return &cobra.Command{Use: "rules", Short: "Print the policies and rules in force", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := a.ask(cmd.Context(), http.MethodGet, "rules", nil)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(reply)
			return err
		}}
}
