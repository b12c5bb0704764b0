// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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

// controlCommand is what the commands that call nothing but a control plane have in common.
type controlCommand struct {
	controlClient
	reason string
}

// command returns a command whose flags name the control plane.
func (c *controlCommand) command(use, short string, args cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: args, RunE: run}
	cmd.Flags().StringVar(&c.url, "control", controlDefault, "the control plane")
	cmd.Flags().StringVar(&c.tokenFile, "control-token-file", "", "a `FILE` that holds the token of the control plane ($"+tokenVariable+")")
	return cmd
}

// reasoned adds the flag for the reason of a change.
func (c *controlCommand) reasoned(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&c.reason, "reason", "", "why, for the history; required")
	return cmd
}

// given reports whether the flags name a control plane.
func (c *controlClient) given() bool { return c.url != "" }

// check returns an error if the flags contradict each other.
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

// token returns the token of the file or the environment.
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

// apply makes an edit.
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

// sendJSON encodes a value as the body of a request, and sends the request as send does.
func (c *controlClient) sendJSON(ctx context.Context, method, path string, body, answer any, header ...string) (status int, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	return c.send(ctx, method, path, text, answer, header...)
}

// send sends a request with further header fields, names and values in turn, and decodes the
// answer. The status is 0 if there is no answer.
func (c *controlClient) send(ctx context.Context, method, path string, body []byte, answer any, header ...string) (status int, err error) {
	token, err := c.token()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	base, err := url.Parse(c.url)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return 0, fmt.Errorf("--control %q is no URL: write http://127.0.0.1:7070", c.url)
	}
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.url, "/")+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := (&http.Client{Timeout: adminTimeout + time.Second}).Do(r)
	if err != nil {
		return 0, fmt.Errorf("asking the control plane: %w; is it running?", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, adminReplyBytesMax))
	if err != nil {
		return response.StatusCode, fmt.Errorf("reading the answer of the control plane: %w", err)
	}
	if response.StatusCode >= http.StatusBadRequest {
		return response.StatusCode, problemOf(response.Status, text)
	}
	if response.StatusCode == http.StatusNoContent {
		return response.StatusCode, nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return response.StatusCode, fmt.Errorf("the answer from %s is not that of a control plane: %w", c.url, err)
	}
	return response.StatusCode, nil
}

// problemOf returns the error of a problem document.
func problemOf(status string, text []byte) error {
	var problem struct {
		Detail string
		Errors []struct{ Message, Location string }
	}
	if json.Unmarshal(text, &problem) != nil || problem.Detail == "" {
		problem.Detail = strings.TrimSpace(string(text))
	}
	for _, e := range problem.Errors {
		problem.Detail += "; " + e.Location + ": " + e.Message
	}
	return fmt.Errorf("the control plane answered %s: %s", status, problem.Detail)
}
