// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/credential"
)

// keyLineBytesMax bounds the key that is read; a valid key is shorter.
const keyLineBytesMax = 4096

func newHashKey() *cobra.Command {
	var entry credential.Entry
	var limits []string
	var expires, notBefore string
	var given bool
	cmd := &cobra.Command{
		Use:   "hash-key ID",
		Short: "Generate or read an API key and print its entry for a keys file",
		Long: "Make an API key and print its entry for a keys file on the standard output, and the key itself, this once, on the\n" +
			"standard error. With --stdin the key is the first line of the standard input: a key on the command line would stay\n" +
			"in the shell's history. The file holds the key's hash only. With --stdin and --revoked the entry rejects a key\n" +
			"that another service knows, such as a published one.",
		Example: "  penstock hash-key acme-prod --tier premium --expires 2027-12-31 >> keys.toml",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("hash-key takes one ID, the name of the key; write penstock hash-key acme-prod")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			entry.ID = args[0]
			if entry.Expires, err = parseDate("expires", expires); err != nil {
				return err
			}
			if entry.NotBefore, err = parseDate("not-before", notBefore); err != nil {
				return err
			}
			if entry.Limits, err = parseLimits(limits); err != nil {
				return err
			}
			if err = sayWhy(&entry, given); err != nil {
				return err
			}
			key := credential.GenerateKey()
			if given {
				if key, err = readKey(cmd.InOrStdin()); err != nil {
					return err
				}
			}
			if entry.Hash, err = credential.HashKey(key); err != nil {
				return err
			}
			text, err := credential.NewEntry(entry)
			if err != nil {
				return err
			}
			if !given {
				fmt.Fprintf(cmd.ErrOrStderr(), "the key, shown this once: %s\n", key)
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&given, "stdin", false, "take the key from the standard input")
	flags.StringVar(&entry.User, "user", "", "the user that the key belongs to")
	flags.StringVar(&entry.Tenant, "tenant", "", "the tenant that the key belongs to")
	flags.StringVar(&entry.Tier, "tier", "", "the tier of the key")
	flags.StringArrayVar(&limits, "limit", nil, `a limit of its own, as RULE=LIMIT or "*=LIMIT"; may be given several times`)
	flags.StringVar(&expires, "expires", "", "when it ends: 2027-12-31 or 2027-12-31T12:00:00Z")
	flags.StringVar(&notBefore, "not-before", "", "when it begins")
	flags.BoolVar(&entry.Revoked, "revoked", false, "reject the key with 401, for good")
	flags.BoolVar(&entry.Inactive, "inactive", false, "reject the key with 401 until the entry is edited")
	flags.StringVar(&entry.Reason, "reason", "", "why it is revoked or inactive, for logs and explanations")
	return cmd
}

// sayWhy checks the reason given for a revoked key.
func sayWhy(entry *credential.Entry, given bool) error {
	switch {
	case entry.Revoked && !given:
		return errors.New("--revoked is for an existing key; add --stdin and send the key on the standard input")
	case entry.Reason != "" && !entry.Revoked && !entry.Inactive:
		return fmt.Errorf("--reason %q has no effect on a valid key; add --revoked or --inactive, or leave it out", entry.Reason)
	}
	return nil
}

func readKey(in io.Reader) (string, error) {
	line, err := bufio.NewReader(io.LimitReader(in, keyLineBytesMax+1)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("reading the key: %w", err)
	}
	key := strings.TrimRight(line, "\r\n")
	if key == "" || len(key) > keyLineBytesMax {
		return "", fmt.Errorf("the first line of the standard input is not a key: it is empty, or has more than %d bytes; send the key on it", keyLineBytesMax)
	}
	return key, nil
}
