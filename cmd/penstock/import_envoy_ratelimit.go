// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/envoy/rlsimport"
)

func newImportEnvoyRatelimit() *cobra.Command {
	var name string
	var strict bool
	var entries []string
	cmd := &cobra.Command{
		Use:   "import-envoy-ratelimit FILE...",
		Short: "Turn configurations of envoyproxy/ratelimit into a policy",
		Long: "Print a policy that decides behind Envoy's rate limit filter as envoyproxy/ratelimit does with these\n" +
			"configurations. Several files become one policy. The file - is the standard input. What could not be carried over\n" +
			"is printed to standard error, a line each, with what to do instead. The exit status is 1, and no policy is\n" +
			"printed, if a configuration is wrong or limits by what no policy can say; and with --strict if anything could not be\n" +
			"carried over: the policy is printed all the same then.\n\n" +
			"With --entry, the policy is for Caddy, the filter and the native module, which see requests and no descriptors.\n" +
			"Each key needs an --entry that names where its value comes from.",
		Example: "  penstock import-envoy-ratelimit config.yaml > policy.yaml\n" +
			"  penstock import-envoy-ratelimit --entry remote_address=ip --entry api_key=header:X-API-Key config.yaml",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("import-envoy-ratelimit takes configurations; write penstock import-envoy-ratelimit config.yaml")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, paths []string) error {
			sources, err := rlsimport.ParseSources(entries)
			if err != nil {
				return err
			}
			var files []rlsimport.File
			for _, path := range paths {
				data, err := readInput(path, cmd.InOrStdin())
				if err != nil {
					return fmt.Errorf("configuration: %w", err)
				}
				files = append(files, rlsimport.File{Name: filepath.Base(path), Data: data})
			}
			text, notes, err := rlsimport.Import(name, files, sources)
			for _, note := range notes {
				fmt.Fprintln(cmd.ErrOrStderr(), "not carried over:", note)
			}
			if err != nil {
				for _, line := range linesOf(err) {
					fmt.Fprintln(cmd.ErrOrStderr(), "error:", line)
				}
				return errSaid
			}
			if _, err := cmd.OutOrStdout().Write(text); err != nil {
				return err
			}
			if strict && len(notes) > 0 {
				return errSaid
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", "envoy", "the name of the policy, which is the namespace of its counters")
	cmd.Flags().StringArrayVar(&entries, "entry", nil, "where a proxy finds an entry, as `KEY=SOURCE`: ip, path, method, host, header:NAME or attr:NAME;\n"+
		"KEY alone if the entry always has its value. Repeat it for each key")
	cmd.Flags().BoolVar(&strict, "strict", false, "fail if anything could not be carried over")
	return cmd
}
