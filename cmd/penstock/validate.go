// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/lint"
)

func newValidate() *cobra.Command {
	var strict, files bool
	var names []string
	cmd := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Print the errors of policy files, and warnings",
		Long: "Print the errors of policy files, and warnings about settings that are probably not intended.\n" +
			"The file - is YAML or JSON on the standard input. Files and variables that a policy names, such as keys_file, are\n" +
			"read with --files only: a policy may be checked where its keys are not. The exit status is 1 if there is an error,\n" +
			"or with --strict a warning. With --front, a policy that this front cannot enforce is an error: caddy, envoy\n" +
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
	cmd.Flags().StringArrayVar(&names, "front", nil, "the front that enforces the policy: caddy, envoy or rls; may be given several times")
	cmd.Flags().BoolVar(&files, "files", false, "also read the files and variables that the policies name")
	return cmd
}

func frontsOf(names []string) (fronts []lint.Front, err error) {
	for _, name := range names {
		front, ok := lint.FrontOf(name)
		if !ok {
			return nil, fmt.Errorf("--front %q is unknown; write caddy, envoy or rls", name)
		}
		fronts = append(fronts, front)
	}
	return fronts, nil
}

// validate returns the errors and warnings about a file, one line each. If the file is valid and no
// front was named, the result beyond lists the fronts that would reject it.
func validate(path string, in io.Reader, files bool, fronts []lint.Front) (errs, warnings []string, beyond string) {
	document, err := readPolicy(path, in)
	if err == nil {
		err = document.Check()
	}
	for _, front := range fronts {
		if err == nil {
			if problems := lint.Beyond(document, front); len(problems) > 0 {
				err = problems
			}
		}
	}
	if err == nil && files {
		var opened io.Closer
		if _, opened, err = credential.OpenAll(document, credential.OpenOptions{Folder: filepath.Dir(path)}); err == nil {
			_ = opened.Close() // nothing was written
		}
	}
	if err != nil {
		return linesOf(err), nil, ""
	}
	for _, p := range lint.Advise(document) {
		warnings = append(warnings, p.String())
	}
	if len(fronts) == 0 {
		beyond = rejectingFronts(document)
	}
	if !files {
		beyond += unreadFiles(document)
	}
	return nil, warnings, beyond + busiestSample(document) + loggedCredentials(document, fronts)
}

// unreadFiles names the files of keys and secrets that a policy needs and that were not read. The
// result is "" if the policy needs no such files.
func unreadFiles(d *policyfile.Document) string {
	var names []string
	for i := range d.Identify {
		if key := d.Identify[i].APIKey; key != nil {
			names = append(names, key.KeysFile)
		}
		if jwt := d.Identify[i].JWT; jwt != nil {
			names = append(names, jwt.JWKSFile, jwt.SecretFile)
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	slices.Sort(names)
	switch names = slices.Compact(names); len(names) {
	case 0:
		return ""
	case 1:
		return "; " + names[0] + " was not read: --files reads it"
	}
	return "; " + strings.Join(names, " and ") + " were not read: --files reads them"
}

// loggedCredentials lists the credentials of the policy that Caddy's access log would show. The
// result is "" if the log would show no credential, or if Caddy is not one of the fronts.
func loggedCredentials(d *policyfile.Document, fronts []lint.Front) string {
	places := d.LoggedCredentials()
	if len(places) == 0 || !slices.Contains(fronts, lint.FrontCaddy) {
		return ""
	}
	return fmt.Sprintf("; an access log of Caddy shows credentials in clear (%s) unless its format leaves them out: see "+
		"docs/guides/tiers-and-keys.md", strings.Join(places, ", "))
}

// busiestFrom is the least number of limits for which validate describes a request that is subject
// to them: half of the maximum for one call of the store.
const busiestFrom = counter.ChecksMax / 2

// busiestSample describes a sample request that has nearly too many limits to be admitted. If no
// request has at least busiestFrom limits, busiestSample returns "".
func busiestSample(d *policyfile.Document) string {
	checks, request := d.Busiest()
	if checks < busiestFrom {
		return ""
	}
	return fmt.Sprintf("; %s meets %d limits, and a request of more than %d is denied", request, checks, counter.ChecksMax)
}

// rejectingFronts names the fronts that reject a valid policy, or returns "" if none does.
func rejectingFronts(d *policyfile.Document) string {
	var names []string
	for _, front := range []lint.Front{lint.FrontCaddy, lint.FrontEnvoy, lint.FrontRLS} {
		if len(lint.Beyond(d, front)) > 0 {
			names = append(names, front.String())
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; " + strings.Join(names, " and ") + " cannot enforce it: --front " + names[0] + " explains"
}
