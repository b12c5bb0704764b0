// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/controlclient"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/listen"
	"github.com/penstock/penstock/internal/operator"
)

// tokenVariable may hold the token of the control plane.
const tokenVariable = "PENSTOCK_TOKEN"

// controlDefault is the address of a control plane on the same machine.
const controlDefault = "http://127.0.0.1:7070"

// controlClient calls the API of a control plane.
type controlClient struct{ url, tokenFile string }

func (c *controlClient) register(flags *pflag.FlagSet) {
	flags.StringVar(&c.url, "control", "", "call this control plane instead of a running Caddy: http://127.0.0.1:7070")
	flags.StringVar(&c.tokenFile, "control-token-file", "", "a `FILE` that holds the token of the control plane ($"+tokenVariable+")")
}

// controlCommand holds what the commands that call nothing but a control plane have in common.
type controlCommand struct {
	controlClient
	reason string
}

// controlCommand.command returns a command whose flags name the control plane.
func (c *controlCommand) command(use, short string, args cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: args, RunE: run}
	cmd.Flags().StringVar(&c.url, "control", controlDefault, "the control plane")
	cmd.Flags().StringVar(&c.tokenFile, "control-token-file", "", "a `FILE` that holds the token of the control plane ($"+tokenVariable+")")
	return cmd
}

// addReasonFlag adds the flag for the reason of a change.
func (c *controlCommand) addReasonFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&c.reason, "reason", "", "why, for the history; required")
	return cmd
}

// controlClient.given reports whether the flags name a control plane.
func (c *controlClient) given() bool { return c.url != "" }

// controlClient.check returns an error if the flags contradict each other.
func (c *controlClient) check(flags *pflag.FlagSet) error {
	switch {
	case !c.given() && c.tokenFile != "":
		return errors.New("--control-token-file goes with --control: give that as well, or leave it out")
	case !c.given():
		return nil
	case flags.Changed("redis") || flags.Changed("bridge") || flags.Changed("admin"):
		return errors.New("--control calls the control plane, and --admin, --bridge and --redis call others: keep one")
	case flags.Changed("actor"):
		return errors.New("--actor has no effect with --control: the name of the token is in the history")
	}
	return nil
}

// controlClient.token returns the token of the file or the environment.
func (c *controlClient) token() (string, error) {
	if c.tokenFile != "" {
		token, err := listen.ReadSecret(c.tokenFile)
		if err != nil {
			return "", fmt.Errorf("--control-token-file: %w", err)
		}
		return token, nil
	}
	if token := os.Getenv(tokenVariable); token != "" {
		return token, nil
	}
	return "", fmt.Errorf("the control plane needs a token: set %s, or write --control-token-file FILE", tokenVariable)
}

// controlClient.apply makes an edit.
func (c *controlClient) apply(ctx context.Context, edit directory.Edit) (*directory.Change, error) {
	body := struct {
		directory.Edit
		Client *struct{} `json:"client,omitempty"` // the path names the client
		Actor  *struct{} `json:"actor,omitempty"`  // the token names the actor
	}{Edit: edit}
	change := new(directory.Change)
	_, err := c.sendJSON(ctx, http.MethodPost, clientPath(edit.Client)+"/edits", body, change)
	return change, err
}

func clientPath(client string) string { return "/v1/clients/" + url.PathEscape(client) }

// lookUp returns a client's record and its latest changes, or the latest changes of all clients.
func (c *controlClient) lookUp(ctx context.Context, client string, n int) (*operator.ClientEntry, error) {
	entry, path := &operator.ClientEntry{History: []directory.Entry{}}, "/v1/changes"
	if client != "" {
		name, err := directory.ParseName(client)
		if err != nil {
			return nil, err
		}
		entry.Client, path = name.String(), clientPath(client)+"/changes"
		var found ledger.Client
		status, err := c.send(ctx, http.MethodGet, clientPath(client), nil, &found)
		if err != nil && status != http.StatusNotFound {
			return nil, err
		}
		entry.Record = found.Record
	}
	var changes struct{ Changes []ledger.Change }
	if _, err := c.send(ctx, http.MethodGet, fmt.Sprintf("%s?limit=%d", path, cmp.Or(n, 20)), nil, &changes); err != nil {
		return nil, err
	}
	for _, change := range changes.Changes {
		e := directory.Entry{At: change.At, Name: change.Subject, Actor: change.Actor, Action: change.Action, Reason: change.Reason}
		if change.Before != nil {
			e.Before = *change.Before
		}
		if change.After != nil {
			e.After = *change.After
		}
		entry.History = append(entry.History, e)
	}
	return entry, nil
}

// sendJSON encodes a value as the body of a request, and sends the request as the method send does.
func (c *controlClient) sendJSON(ctx context.Context, method, path string, body, answer any, header ...string) (status int, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	return c.send(ctx, method, path, text, answer, header...)
}

// controlClient.send sends a request and decodes the answer. The parameter header holds further
// header fields: each name is followed by its value. If the control plane reports an error, the
// result status is the status of its answer.
func (c *controlClient) send(ctx context.Context, method, path string, body []byte, answer any, header ...string) (status int, err error) {
	caller, err := c.open()
	if err != nil {
		return 0, err
	}
	fields := http.Header{}
	for i := 0; i < len(header); i += 2 {
		fields.Set(header[i], header[i+1])
	}
	err = caller.Do(ctx, method, path, fields, body, answer)
	var problem *controlclient.Error
	if errors.As(err, &problem) {
		status = problem.Status
	}
	return status, err
}

// controlClient.open returns a client of the control plane's API.
func (c *controlClient) open() (*controlclient.Client, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	caller, err := controlclient.New(c.url, controlclient.Options{Token: token, HTTP: &http.Client{Timeout: adminTimeout}})
	if err != nil {
		return nil, fmt.Errorf("--control: %w", err)
	}
	return caller, nil
}
