// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/policy"
)

// standardInput stands for the standard input in the place of a file.
const standardInput = "-"

// readPolicy reads a policy file, or the standard input: YAML then, or JSON, which a name would tell otherwise.
func readPolicy(path string, in io.Reader) (*policy.Document, error) {
	if path == "" {
		return nil, errors.New("--policy is missing; write --policy policy.yaml")
	}
	if path != standardInput {
		if err := refuseCaddyfile(path); err != nil {
			return nil, err
		}
		return policy.Load(path)
	}
	data, err := io.ReadAll(io.LimitReader(in, policy.SizeMax+1))
	if err != nil {
		return nil, fmt.Errorf("reading the standard input: %w", err)
	}
	format := policy.YAML
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		format = policy.JSON
	}
	return policy.Decode("standard input", format, data)
}

// refuseCaddyfile tells those who mean the policy in their Caddyfile where it would have to stand. Only Caddy can read
// Caddyfiles: they import and substitute.
func refuseCaddyfile(path string) error {
	if _, known := policy.FormatOf(path); known {
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

// noArgs refuses what is no flag, and says what to do instead.
func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) > 0 && cmd.HasSubCommands():
		return fmt.Errorf("%q is no command; see %s --help", args[0], cmd.CommandPath())
	case len(args) > 0:
		return fmt.Errorf("%s takes no %q; see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return nil
}
