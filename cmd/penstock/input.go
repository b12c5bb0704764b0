// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// standardInput names the standard input instead of a file.
const standardInput = "-"

// openInput opens a file, or the standard input.
func openInput(path string, standard io.Reader) (io.ReadCloser, error) {
	if path == standardInput {
		return io.NopCloser(standard), nil
	}
	return os.Open(path)
}

// readInput reads a file, or the standard input, up to one byte more than the maximum size of a
// policy.
func readInput(path string, standard io.Reader) ([]byte, error) {
	from, err := openInput(path, standard)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	data, err := io.ReadAll(io.LimitReader(from, syntax.SizeMax+1))
	if err != nil && path == standardInput {
		err = fmt.Errorf("reading the standard input: %w", err)
	}
	return data, err
}

// readPolicy reads a policy from a file, or from the standard input, which must be YAML or JSON.
func readPolicy(path string, in io.Reader) (*policyfile.Document, error) {
	if path == "" {
		return nil, errors.New("--policy is missing; write --policy policy.yaml")
	}
	if path != standardInput {
		if err := rejectCaddyfile(path); err != nil {
			return nil, err
		}
		return policyfile.Load(path)
	}
	data, err := readInput(path, in)
	if err != nil {
		return nil, err
	}
	format := policyfile.YAML
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		format = policyfile.JSON
	}
	return policyfile.Decode("standard input", format, data)
}

// readRedisPolicy reads a policy whose counters are in Redis. It sets the namespace of the
// counters, and the region whose limits apply.
func readRedisPolicy(path, name string, region regionFlag, in io.Reader) (*policyfile.Document, error) {
	d, err := readPolicy(path, in)
	if err != nil {
		return nil, err
	}
	return d, errors.Join(setName(d, name, true), region.choose(d))
}

// setName sets the namespace of a policy's counters to the value of the flag --name. The parameter
// required is true if the counters are read in Redis: without the right namespace, other counters
// would be read.
func setName(d *policyfile.Document, name string, required bool) error {
	switch {
	case name != "" && d.Name != "" && name != d.Name:
		return fmt.Errorf("--name %q is not the name %q in the policy file, which takes precedence; leave it out", name, d.Name)
	case name == "" && d.Name == "" && required:
		return errors.New("the policy file has no name, so its counters cannot be found in Redis; add --name with the name " +
			"in the Caddyfile")
	}
	d.Name = cmp.Or(d.Name, name)
	return nil
}

// rejectCaddyfile returns an error for a Caddyfile. The error explains where to put the policy.
// Only Caddy can read a Caddyfile, with its imports and substitutions.
func rejectCaddyfile(path string) error {
	if _, known := syntax.FormatOf(path); known {
		return nil
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return fmt.Errorf("%q is a folder; name the policy file in it", path)
	}
	base := strings.ToLower(filepath.Base(path))
	if strings.HasPrefix(base, "caddyfile") || strings.HasSuffix(base, ".caddyfile") {
		return fmt.Errorf("%q is a Caddyfile, which Caddy alone can read (caddy validate); put its rules into a policy file, "+
			"name that in the penstock block by \"policy FILE\", and give it here", path)
	}
	return nil
}

// noArgs rejects arguments that are not flags, and names the remedy.
func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) > 0 && cmd.HasSubCommands():
		return fmt.Errorf("unknown command %q; see %s --help", args[0], cmd.CommandPath())
	case len(args) > 0:
		return fmt.Errorf("%s takes no %q; see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return nil
}
