// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
)

// adminCommands returns the commands for a running Caddy or bridge, or Redis.
func adminCommands() []*cobra.Command {
	a := new(admin)
	commands := []*cobra.Command{
		a.rulesCommand(),
		a.clientCommand("client", "Print a client's counters and penalty, without spending anything", (*usageReport).print),
		a.clientCommand("reset", "Delete a client's counters: its full limits are available again", (*usageReport).printReset),
		a.clientCommand("lift", "Lift a client's penalty and forget its violations", (*usageReport).printLift),
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

// admin.show requests the data at a path from the target, and prints the reply. If asJSON is true,
// it prints the reply as it is. Otherwise it calls people, which prints the reply as text that
// people can read.
func (a *admin) show(cmd *cobra.Command, path string, query url.Values, asJSON bool, people func(io.Writer, []byte) error) error {
	reply, err := a.ask(cmd.Context(), http.MethodGet, path, query)
	if err != nil {
		return err
	}
	if asJSON {
		_, err = jsonWriter{cmd.OutOrStdout()}.Write(reply)
		return err
	}
	return people(cmd.OutOrStdout(), reply)
}
