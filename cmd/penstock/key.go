// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/directory"
)

// keyEdits are the commands that read and change the API keys of the directory: "penstock key
// create …".
type keyEdits struct{ clientEdits }

func newKey() *cobra.Command {
	k := &keyEdits{clientEdits{admin: new(admin)}}
	parent := &cobra.Command{Use: "key", Short: "Create, rotate, revoke and list the API keys of the directory", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	parent.AddCommand(k.create(), k.rotate(), k.revoke(),
		k.commandOfName(directory.KeyDisable, "disable NAME", "Switch the keys of a name off: they are denied with 401"),
		k.commandOfName(directory.KeyEnable, "enable NAME", "Switch the keys of a name on again"),
		k.commandOfName(directory.KeyForget, "forget NAME", "Remove the keys of a name that are revoked or have expired"),
		k.show(), k.list(), k.importKeys())
	for _, cmd := range parent.Commands() {
		flags := cmd.Flags()
		k.admin.registerTargets(flags)
		k.control.register(flags)
		cmd.PreRunE = func(*cobra.Command, []string) error { return k.control.check(flags) }
		flags.BoolVar(&k.asJSON, "json", false, "print JSON")
	}
	return parent
}

// addReasonFlags adds the flags for the actor and the reason in the history.
func addReasonFlags(cmd *cobra.Command, edit *directory.KeyEdit) {
	cmd.Flags().StringVar(&edit.Reason, "reason", "", "why, for the history; required")
	cmd.Flags().StringVar(&edit.Actor, "actor", currentUser(), "who makes the change, for the history")
}

// newKeyOptions are the flags of commands that make a key.
type newKeyOptions struct {
	given           bool
	expiresAt, span string
}

func (o *newKeyOptions) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&o.given, "stdin", false, "take the key from the standard input")
	flags.StringVar(&o.expiresAt, "expires-at", "", "when the key ends: 2027-12-31 or 2027-12-31T12:00:00Z; never by default")
	flags.StringVar(&o.span, "for", "", "when the key ends, as a span from now, such as 12h or 90d")
}

// newKeyOptions.end returns the time at which the key ends, or the zero time.
func (o *newKeyOptions) end() (time.Time, error) {
	if o.expiresAt != "" && o.span != "" {
		return time.Time{}, errors.New("--expires-at and --for both state the end; keep one")
	}
	if o.expiresAt != "" {
		return parseDate("expires-at", o.expiresAt)
	}
	return parseEnd("", o.span, time.Now())
}

// newKeyOptions.make returns a key and its SHA-256.
func (o *newKeyOptions) make(in io.Reader) (key, hash string, err error) {
	key = credential.GenerateKey()
	if o.given {
		if key, err = readKey(in); err != nil {
			return "", "", err
		}
	}
	hash, err = credential.HashKey(key)
	return key, credential.Digits(hash), err
}

// keyEdits.create returns the command that makes a key.
func (k *keyEdits) create() *cobra.Command {
	edit := directory.KeyEdit{Action: directory.KeyCreate, Record: new(directory.KeyRecord)}
	var options newKeyOptions
	var notBefore string
	var limits []string
	cmd := &cobra.Command{Use: "create --client CLIENT", Short: "Make an API key for a client and print it, this once", Args: noArgs,
		Example: "  penstock key create --client api_key:acme --tier premium --reason contract\n" +
			"  penstock key create --client user:u_42 --name u_42-ci --for 90d --reason \"for the pipeline\""}
	r := edit.Record
	flags := cmd.Flags()
	flags.StringVar(&r.Client, "client", "", "the client that the key identifies: api_key:NAME or user:ID; required")
	flags.StringVar(&r.Name, "name", "", "the name of the key (the identifier of the client)")
	flags.StringVar(&r.User, "user", "", "the user that the key belongs to, if the client is not a user")
	flags.StringVar(&r.Tenant, "tenant", "", "the tenant that the key belongs to")
	flags.StringVar(&r.Tier, "tier", "", "the tier of the key")
	flags.StringArrayVar(&limits, "limit", nil, `a limit of its own, as RULE=LIMIT or "*=LIMIT"; may be given several times`)
	flags.StringVar(&notBefore, "not-before", "", "when the key begins")
	options.register(cmd)
	addReasonFlags(cmd, &edit)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if r.Client == "" {
			return errors.New("--client is missing; write --client api_key:acme or --client user:u_42")
		}
		if r.ExpiresAt, err = options.end(); err != nil {
			return err
		}
		if r.NotBefore, err = parseDate("not-before", notBefore); err != nil {
			return err
		}
		if r.Limits, err = parseLimits(limits); err != nil {
			return err
		}
		_, id, _ := strings.Cut(r.Client, ":")
		r.Name = cmp.Or(r.Name, id)
		edit.Name = r.Name
		return k.make(cmd, edit, &options)
	}
	return cmd
}

// keyEdits.rotate returns the command that replaces a key.
func (k *keyEdits) rotate() *cobra.Command {
	edit := directory.KeyEdit{Action: directory.KeyRotate}
	var options newKeyOptions
	var overlap string
	cmd := &cobra.Command{Use: "rotate NAME --overlap SPAN", Short: "Make a key like the one of a name, which ends after the overlap",
		Args: cobra.ExactArgs(1), Example: "  penstock key rotate acme --overlap 24h --reason \"yearly\""}
	cmd.Flags().StringVar(&overlap, "overlap", "", "how long the previous keys stay valid, such as 24h, or 0s; required")
	options.register(cmd)
	addReasonFlags(cmd, &edit)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		edit.Name = args[0]
		switch overlap {
		case "":
			return errors.New("--overlap is missing; write --overlap 24h, or --overlap 0s to end the previous keys at once")
		case "0s", "0":
		default:
			span, err := parseSpan("overlap", overlap)
			if err != nil {
				return err
			}
			edit.Until = time.Now().Add(span).UTC().Truncate(time.Second)
		}
		if edit.ExpiresAt, err = options.end(); err != nil {
			return err
		}
		return k.make(cmd, edit, &options)
	}
	return cmd
}

// madeKey is the result of a command that makes a key.
type madeKey struct {
	Key string `json:"key"`
	*directory.KeysShown
}

// keyEdits.make makes a key, and prints it after its record has been written.
func (k *keyEdits) make(cmd *cobra.Command, edit directory.KeyEdit, options *newKeyOptions) error {
	key, hash, err := options.make(cmd.InOrStdin())
	if err != nil {
		return err
	}
	edit.Hash = hash
	shown, err := k.applyKey(cmd.Context(), edit)
	if err != nil {
		return err
	}
	return k.print(cmd.OutOrStdout(), madeKey{key, shown}, func(w io.Writer) {
		fmt.Fprintf(w, "the key, shown this once: %s\n", key)
		k.writeKeys(w, shown)
	})
}

// commandOfName returns the command of an action that takes a name only.
func (k *keyEdits) commandOfName(action directory.KeyAction, use, short string) *cobra.Command {
	edit := &directory.KeyEdit{Action: action}
	return k.change(edit, use, short)
}

// keyEdits.revoke returns the command that revokes keys.
func (k *keyEdits) revoke() *cobra.Command {
	edit := &directory.KeyEdit{Action: directory.KeyRevoke}
	cmd := k.change(edit, "revoke NAME", "Withdraw the keys of a name for good: they are denied with 401")
	cmd.Flags().StringVar(&edit.Hash, "hash", "", "only the key whose hash begins with this, as penstock key show prints it")
	return cmd
}

// keyEdits.change returns the command for an edit that changes the keys of a name.
func (k *keyEdits) change(edit *directory.KeyEdit, use, short string) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.ExactArgs(1)}
	addReasonFlags(cmd, edit)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		edit.Name = args[0]
		shown, err := k.applyKey(cmd.Context(), *edit)
		if err != nil {
			return err
		}
		return k.print(cmd.OutOrStdout(), shown, func(w io.Writer) { k.writeKeys(w, shown) })
	}
	return cmd
}

// keyEdits.show returns the command that prints the keys of a name.
func (k *keyEdits) show() *cobra.Command {
	return &cobra.Command{Use: "show NAME", Short: "Print the keys of a name in the directory, without the keys themselves",
		Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
			shown, err := k.lookUpKeys(cmd.Context(), args[0], directory.KeyQuery{})
			if err != nil {
				return err
			}
			return k.print(cmd.OutOrStdout(), shown, func(w io.Writer) { k.writeKeys(w, shown) })
		}}
}

// keyEdits.list returns the command that prints a page of all keys, or of the keys of one client.
func (k *keyEdits) list() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "Print the keys of the directory by name, page by page", Args: noArgs}
	var query directory.KeyQuery
	flags := cmd.Flags()
	flags.StringVar(&query.Client, "client", "", "only the keys that identify this client: api_key:NAME or user:ID")
	flags.IntVarP(&query.Most, "number", "n", 100, "about how many keys")
	flags.StringVar(&query.After, "after", "", "begin after this name, which the previous page printed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if flags.Changed("client") && query.Client == "" {
			return errors.New("--client is empty; write --client api_key:acme or --client user:u_42, or leave it out for all keys")
		}
		if err := directory.CheckUTF8("client", query.Client); err != nil {
			return err
		}
		shown, err := k.lookUpKeys(cmd.Context(), "", query)
		if err != nil {
			return err
		}
		return k.print(cmd.OutOrStdout(), shown, func(w io.Writer) { k.writeKeyPage(w, shown) })
	}
	return cmd
}

// writeKeyPage prints a page of keys for people. A page of one client's keys may be empty although
// more keys follow.
func (k *keyEdits) writeKeyPage(w io.Writer, shown *directory.KeysShown) {
	if len(shown.Keys) > 0 || shown.After == "" {
		k.writeKeys(w, shown)
	}
	if shown.After != "" {
		fmt.Fprintf(w, "there are more: --after %q\n", shown.After)
	}
}

// applyKey makes an edit of keys.
func (k *keyEdits) applyKey(ctx context.Context, edit directory.KeyEdit) (*directory.KeysShown, error) {
	if err := directory.CheckUTF8("the key", edit.Name); err != nil {
		return nil, err
	}
	if edit.Record != nil {
		if err := directory.CheckUTF8("client", edit.Record.Client); err != nil {
			return nil, err
		}
	}
	if k.control.given() {
		return k.control.applyKey(ctx, edit)
	}
	return decodeReply[directory.KeysShown](k.admin.post(ctx, "key", edit))
}

// lookUpKeys returns the keys of a name, or a page of those that the query selects.
func (k *keyEdits) lookUpKeys(ctx context.Context, name string, page directory.KeyQuery) (*directory.KeysShown, error) {
	if k.control.given() {
		return k.control.keys(ctx, name, page)
	}
	query := url.Values{}
	for word, value := range map[string]string{"name": name, "client": page.Client, "after": page.After} {
		if value != "" {
			query.Set(word, value)
		}
	}
	if page.Most != 0 {
		query.Set("n", fmt.Sprint(page.Most))
	}
	return decodeReply[directory.KeysShown](k.admin.ask(ctx, http.MethodGet, "keys", query))
}
