// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/identity"
	"github.com/penstock/penstock/internal/policy"
)

func newValidate() *cobra.Command {
	var strict, files bool
	var names []string
	cmd := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Print every error of policy files, and what they probably do not mean",
		Long: "Print every error of policy files, and warnings: what a policy says that its author probably does not mean.\n" +
			"The file - is YAML or JSON on the standard input. Files and variables that a policy names, such as keys_file, are\n" +
			"read with --files only: a policy may be checked where its keys are not. The exit status is 1 if there is an error,\n" +
			"or with --strict a warning. With --front a policy is refused that asks for what this front cannot do: caddy, envoy\n" +
			"(the filter) or rls (Envoy's rate limit protocol, of a bridge with --rls-listen, which also serves the filter).",
		Example: "  penstock validate policy.yaml",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("validate takes policy files; write penstock validate policy.yaml")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, paths []string) error {
			fronts, err := frontsOf(names)
			if err != nil {
				return err
			}
			failed := false
			for _, path := range paths {
				errs, warnings, beyond := validate(path, cmd.InOrStdin(), files, fronts)
				for _, line := range errs {
					fmt.Fprintln(cmd.OutOrStdout(), "error:", line)
				}
				for _, line := range warnings {
					fmt.Fprintln(cmd.OutOrStdout(), "warning:", line)
				}
				if len(errs) == 0 {
					fmt.Fprintf(cmd.OutOrStdout(), "%s: valid, %s%s\n", path, plural(len(warnings), "warning"), beyond)
				}
				failed = failed || len(errs) > 0 || strict && len(warnings) > 0
			}
			if failed {
				return errSaid
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "fail on warnings as well")
	cmd.Flags().StringArrayVar(&names, "front", nil, "what is to enforce the policy: caddy, envoy or rls; may be given several times")
	cmd.Flags().BoolVar(&files, "files", false, "read the files and variables that the policies name, too")
	return cmd
}

func frontsOf(names []string) (fronts []policy.Front, err error) {
	for _, name := range names {
		front, ok := policy.FrontOf(name)
		if !ok {
			return nil, fmt.Errorf("--front %q is unknown; write caddy, envoy or rls", name)
		}
		fronts = append(fronts, front)
	}
	return fronts, nil
}

// validate returns what is wrong with the file and what is doubtful, a line each; and of a file that is right, which fronts
// would refuse it all the same, where none was named.
func validate(path string, in io.Reader, files bool, fronts []policy.Front) (errs, warnings []string, beyond string) {
	document, err := readPolicy(path, in)
	if err == nil {
		err = document.Check()
	}
	for _, front := range fronts {
		if err == nil {
			if problems := document.Beyond(front); len(problems) > 0 {
				err = problems
			}
		}
	}
	if err == nil && files {
		var opened io.Closer
		if _, opened, err = identity.OpenAll(document, identity.OpenOptions{Folder: filepath.Dir(path)}); err == nil {
			_ = opened.Close() // nothing was written
		}
	}
	if err != nil {
		return linesOf(err), nil, ""
	}
	for _, p := range document.Advise() {
		warnings = append(warnings, p.String())
	}
	if len(fronts) == 0 {
		beyond = refusers(document)
	}
	return nil, warnings, beyond
}

// refusers says which fronts refuse a policy that is right; "" if none does.
func refusers(d *policy.Document) string {
	var names []string
	for _, front := range []policy.Front{policy.FrontCaddy, policy.FrontEnvoy, policy.FrontRLS} {
		if len(d.Beyond(front)) > 0 {
			names = append(names, front.String())
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; " + strings.Join(names, " and ") + " would refuse it: --front " + names[0] + " says why"
}

// linesOf returns one line for each problem.
func linesOf(err error) []string {
	if problems, ok := err.(core.Problems); ok { //nolint:errorlint // wrapped, its own words matter more than the list
		lines := make([]string, len(problems))
		for i, p := range problems {
			lines[i] = p.String()
		}
		return lines
	}
	return []string{err.Error()}
}

func plural(n int, word string) string {
	switch n {
	case 0:
		return "no " + word + "s"
	case 1:
		return "1 " + word
	default:
		return fmt.Sprintf("%d %ss", n, word)
	}
}
