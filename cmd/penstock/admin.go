// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/operator"
)

// Limits for requests to a Caddy: it is on this machine or near it, and its replies are for people
// to read.
const (
	adminTimeout       = 10 * time.Second
	adminReplyBytesMax = 16 << 20
)

// admin is the admin endpoint of a running Caddy.
type admin struct{ address string }

// adminCommands returns the commands that ask a running Caddy.
func adminCommands() []*cobra.Command {
	a := new(admin)
	commands := []*cobra.Command{
		a.command("rules", "Print the policies and rules in force", func(*cobra.Command) request {
			return func() (string, string, url.Values) { return http.MethodGet, "rules", nil }
		}),
		a.clientCommand("client", "Print a client's counters and penalty, without spending anything"),
		a.clientCommand("reset", "Delete a client's counters: its full limits are available again"),
		a.clientCommand("lift", "Lift a client's penalty and forget its violations"),
		a.topCommand(),
		a.reloadCommand(),
	}
	for _, cmd := range commands {
		cmd.Flags().StringVar(&a.address, "admin", adminDefault, adminUsage)
		if cmd.Name() == "client" {
			addClientEdits(cmd, a)
		}
	}
	return commands
}

// The flag --admin.
const (
	adminDefault = "localhost:2019"
	adminUsage   = "the admin endpoint of Caddy: host:port, or unix//path/to/socket"
)

// request returns what a command asks; it is called once the flags are parsed.
type request func() (method, path string, query url.Values)

func (a *admin) command(name, short string, prepare func(*cobra.Command) request) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: short, Args: noArgs}
	ask := prepare(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		method, path, query := ask()
		reply, err := a.ask(cmd.Context(), method, path, query)
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(reply)
		return err
	}
	return cmd
}

// reloadCommand prints one line on success, or with --json the policies in force, as "rules" does.
func (a *admin) reloadCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "reload", Short: "Read the policy files again", Args: noArgs}
	asJSON := cmd.Flags().Bool("json", false, "print the policies now in force as JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		reply, err := a.ask(cmd.Context(), http.MethodPost, "reload", nil)
		if err != nil {
			return err
		}
		if !*asJSON {
			if reply, err = summarizeReload(reply); err != nil {
				return err
			}
		}
		_, err = cmd.OutOrStdout().Write(reply)
		return err
	}
	return cmd
}

// summarizeReload returns one line that names each policy file with its policy and version.
// Policies written in the Caddyfile itself are left out, because a reload does not read them.
func summarizeReload(reply []byte) ([]byte, error) {
	var rules struct {
		Policies []struct{ Name, Version, File string }
	}
	if err := json.Unmarshal(reply, &rules); err != nil {
		return nil, fmt.Errorf("reading the policies in force: %w", err)
	}
	var files []string
	for _, p := range rules.Policies {
		if p.File != "" {
			files = append(files, fmt.Sprintf("%s (policy %q, version %s)", p.File, p.Name, p.Version))
		}
	}
	if len(files) == 0 {
		return []byte("no policy file is in use; \"caddy reload\" reads the Caddyfile again\n"), nil
	}
	return []byte("in force: " + strings.Join(files, ", ") + "\n"), nil
}

// ask returns the reply as indented JSON.
func (a *admin) ask(ctx context.Context, method, path string, query url.Values) ([]byte, error) {
	return a.send(ctx, method, path, query, http.NoBody)
}

// send is ask with a body.
func (a *admin) send(ctx context.Context, method, path string, query url.Values, sent io.Reader) ([]byte, error) {
	if scheme, rest, ok := strings.Cut(a.address, "://"); ok {
		return nil, fmt.Errorf("--admin %q begins with %s://, but it must be host:port or unix//path; write --admin %s", a.address, scheme,
			strings.TrimSuffix(rest, "/"))
	}
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	host, client := a.address, new(http.Client)
	if socket, ok := strings.CutPrefix(a.address, "unix/"); ok {
		host = "localhost"
		client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}
	}
	target := url.URL{Scheme: "http", Host: host, Path: "/penstock/" + path, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(ctx, method, target.String(), sent)
	if err != nil {
		return nil, fmt.Errorf("the admin endpoint %q is not host:port or unix//path: %w", a.address, err)
	}
	response, err := client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("asking Caddy: %w; is it running, and is its admin endpoint on?", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, adminReplyBytesMax))
	if err != nil {
		return nil, fmt.Errorf("reading Caddy's response: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		var refusal struct{ Error, Reason string }
		if json.Unmarshal(body, &refusal) != nil || refusal.Error == "" {
			refusal.Error = strings.TrimSpace(string(body))
		}
		if refusal.Reason == operator.ReasonNobody {
			return nil, &nobodyError{refusal.Error}
		}
		return nil, fmt.Errorf("caddy at %s answered %s: %s", a.address, response.Status, refusal.Error)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, bytes.TrimSpace(body), "", "  "); err != nil {
		return nil, fmt.Errorf("the response from %s is not JSON, so it is not Caddy's admin endpoint: %w; --admin takes "+
			"the address that \"admin\" has in the Caddyfile", a.address, err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}
