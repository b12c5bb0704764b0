// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/directory"
)

// importResult is the result of an import.
type importResult struct {
	Imported int `json:"imported"`
	Known    int `json:"known"` // entries that the directory already had with the same record
}

// importKeys returns the command that copies the entries of a keys file to the directory of clients
// and keys.
func (k *keyEdits) importKeys() *cobra.Command {
	edit := directory.KeyEdit{Action: directory.KeyCreate, Import: true}
	cmd := &cobra.Command{Use: "import FILE", Short: "Copy the entries of a keys file to the directory", Args: cobra.ExactArgs(1),
		Long: "Copy the entries of a keys file to the directory. An entry is of the client api_key:ID, as in the file. An import that\n" +
			"was interrupted may be repeated: entries that are in the directory already are left as they are.",
		Example: "  penstock key import keys.toml --reason \"keys are in the directory now\""}
	addReasonFlags(cmd, &edit)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		entries, err := credential.ReadEntries(args[0])
		if err != nil {
			return err
		}
		var total importResult
		for i := range entries {
			one := edit
			one.Name, one.Hash = entries[i].ID, credential.Digits(entries[i].Hash)
			one.Record = recordOf(&entries[i], edit.Actor)
			shown, err := k.applyKey(cmd.Context(), one)
			if err != nil {
				return fmt.Errorf("%s: the entry of %q: %w; %d entries before it were imported, %d existed already", args[0], one.Name, err,
					total.Imported, total.Known)
			}
			total.Imported += shown.Changed
			total.Known += 1 - shown.Changed
		}
		return k.print(cmd.OutOrStdout(), total, func(w io.Writer) {
			fmt.Fprintf(w, "%d keys imported, %d were in the directory already\n", total.Imported, total.Known)
		})
	}
	return cmd
}

// recordOf returns the record of an entry of a keys file.
func recordOf(e *credential.Entry, actor string) *directory.KeyRecord {
	r := &directory.KeyRecord{Name: e.ID, Client: "api_key:" + e.ID, User: e.User, Tenant: e.Tenant, Tier: e.Tier, Limits: e.Limits,
		NotBefore: e.NotBefore, ExpiresAt: e.Expires}
	if e.Inactive {
		r.State = directory.KeyInactive
	}
	if e.Revoked {
		r.Revoked = &directory.Revocation{At: time.Now().UTC().Truncate(time.Second), By: actor,
			Reason: cmp.Or(e.Reason, "revoked in the keys file")}
	}
	return r
}
