// SPDX-License-Identifier: Apache-2.0

// Command penstock checks a policy, explains what it would do to a request, manages API keys and
// the records of clients, and reads and resets the counters of clients. None of these commands
// charges a counter. "penstock bridge" serves Envoy, and does charge counters. "penstock control"
// serves an API for operators. The exit status is 0, or 1 for an error in the arguments, a policy
// or a server, or 3 if the named client does not exist.
//
// The code of a command is in the file with its name, or in the file of the command above it:
// "penstock redis inspect" in redis_inspect.go, "penstock redis health" in redis.go. The exceptions
// are "penstock reset" and "lift" in client_counters.go, and "penstock version" here. Commands that
// ask a running process, or Redis in its place, share the files admin*.go, and those that call a
// control plane share control_api.go.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/operator"
)

// errSaid ends the command with status 1 without another message: the command has printed the error
// itself.
var errSaid = errors.New("")

// errNobody is wrapped by the error of a command if the named client does not exist. The command
// then ends with status 3.
var errNobody = operator.ErrNobody

func main() {
	if err := newRoot().Execute(); err != nil {
		if !errors.Is(err, errSaid) {
			fmt.Fprintf(os.Stderr, "penstock: %s\n", escapeLines(err.Error()))
		}
		os.Exit(exitStatus(err))
	}
}

// exitStatus returns the exit status of a command that ended with an error.
func exitStatus(err error) int {
	if errors.Is(err, errNobody) {
		return 3
	}
	return 1
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
	root.AddCommand(newValidate(), newExplain(), newHashKey(), newKey(), newBridge(), newImportEnvoyRatelimit(), newImportRules(), newRedis(), newControl(), newRegion(), newRegions(), newVersion())
	root.AddCommand(adminCommands()...)
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the version, commit, commit date and Go version", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version())
			return err
		}}
}

// version returns one line that identifies this build, for bug reports.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "penstock (unknown build) " + runtime.Version()
	}
	return describeBuild(info)
}

// describeBuild returns "penstock VERSION commit HASH DATE GO". A build outside a checkout has no
// commit and no date; a module version that "go install" has installed has neither, because the
// version identifies both.
func describeBuild(info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, setting := range info.Settings {
		settings[setting.Key] = setting.Value
	}
	parts := []string{"penstock", cmp.Or(info.Main.Version, "(devel)")}
	if commit := settings["vcs.revision"]; commit != "" {
		parts = append(parts, "commit", commit)
		if settings["vcs.modified"] == "true" {
			parts = append(parts, "(modified)")
		}
	}
	if date := settings["vcs.time"]; date != "" {
		parts = append(parts, date)
	}
	return strings.Join(append(parts, info.GoVersion), " ")
}
