// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/listen"
	"github.com/penstock/penstock/internal/published"
)

// newControlPolicyKey returns the command that makes a pair of keys.
func newControlPolicyKey() *cobra.Command {
	return &cobra.Command{Use: "key FILE", Short: "Make the key that signs policies, or print the public key of a file that is there",
		Long: "Make a private key of Ed25519 in FILE, which only this user can read, and print its public key. The private key is for\n" +
			"penstock control serve --policy-key FILE, in every process of the control plane, and the public key for the nodes.\n" +
			"If FILE is there, it stays as it is. To replace a key, give the nodes both public keys first.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := makePolicyKey(args[0])
			if errors.Is(err, fs.ErrExist) {
				key, err = readPolicyKey(args[0], nil)
			}
			if err == nil {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), published.PublicText(key.Public().(ed25519.PublicKey)))
			}
			return err
		}}
}

// makePolicyKey writes a new private key to a file that must not exist yet.
func makePolicyKey(path string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = file.WriteString(published.PrivateText(key) + "\n")
	return key, errors.Join(err, file.Close())
}

// readPolicyKey reads a private key. An empty path stands for no key.
func readPolicyKey(path string, logger *slog.Logger) (ed25519.PrivateKey, error) {
	if path == "" {
		return nil, nil
	}
	text, err := listen.ReadSecret(path)
	if err != nil {
		return nil, fmt.Errorf("--policy-key: %w; make one with penstock control policy key FILE", err)
	}
	key, err := published.ParsePrivate(text)
	if err != nil {
		return nil, fmt.Errorf("--policy-key %q: %w", path, err)
	}
	if info, err := os.Stat(path); err == nil && logger != nil && info.Mode().Perm()&0o077 != 0 {
		logger.Warn("others on this machine can read the key that signs policies: chmod 600", "file", path)
	}
	return key, nil
}
