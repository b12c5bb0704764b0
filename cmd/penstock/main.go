// SPDX-License-Identifier: Apache-2.0

// Command penstock helps people to live with a policy: it checks one, explains what it would do to a request, makes
// entries for files of API keys, and asks a running Caddy, or the Redis that counters are in, about its clients. That
// charges nobody anything. As a bridge it answers Envoy, and counts. Its exit status is 0, or 1 if something is wrong:
// with what it was told, with a policy, or with whom it asked.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

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
		Version:       version(),
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(newValidate(), newExplain(), newHashKey(), newBridge(), newImportEnvoyRatelimit(), newRedis(), newVersion())
	root.AddCommand(adminCommands()...)
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print which version this is", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version())
			return err
		}}
}

// version says what this was built from, as far as the build knows.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "penstock, of an unknown build"
	}
	text := "penstock " + cmp.Or(info.Main.Version, "(devel)")
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			text += " " + setting.Value
		}
	}
	return text + " " + info.GoVersion
}
