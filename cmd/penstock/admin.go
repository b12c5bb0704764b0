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
)

// Bounds of a conversation with a Caddy: it is on this machine or near, and what it says is for people to read.
const (
	adminTimeout       = 10 * time.Second
	adminReplyBytesMax = 16 << 20
)

// admin is the admin endpoint of a running Caddy.
type admin struct{ address string }

// adminCommands are those that ask a running Caddy.
func adminCommands() []*cobra.Command {
	a := new(admin)
	commands := []*cobra.Command{
		a.command("rules", "Print the policies and rules in force", func(*cobra.Command) request {
			return func() (string, string, url.Values) { return http.MethodGet, "rules", nil }
		}),
		a.command("client", "Print a client's counters and penalty, without spending anything", a.aboutClient("client")),
		a.command("reset", "Forget a client's counters: it has its whole limits again", a.aboutClient("reset")),
		a.command("lift", "Lift a client's penalty and forget its violations", a.aboutClient("lift")),
		a.command("top", "Print the clients refused most", func(cmd *cobra.Command) request {
			n := cmd.Flags().IntP("number", "n", 20, "how many clients")
			return func() (string, string, url.Values) {
				return http.MethodGet, "top", url.Values{"n": {fmt.Sprint(*n)}}
			}
		}),
		a.command("reload", "Read the policy files again", func(*cobra.Command) request {
			return func() (string, string, url.Values) { return http.MethodPost, "reload", nil }
		}),
	}
	for _, cmd := range commands {
		cmd.Flags().StringVar(&a.address, "admin", "localhost:2019",
			"the admin endpoint of Caddy: host:port, or unix//path/to/socket")
	}
	return commands
}

// request is what a command asks, known once its flags have been read.
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

// aboutClient adds the flags that say which client is meant.
func (a *admin) aboutClient(path string) func(*cobra.Command) request {
	return func(cmd *cobra.Command) request {
		flags := map[string]*string{
			"client": cmd.Flags().String("client", "", "who: KIND:ID as in keys, such as user:u_42, api_key:acme or ip:192.0.2.7"),
			"policy": cmd.Flags().String("policy", "", "only the policy of this name"),
			"rule":   cmd.Flags().String("rule", "", "only the rule of this name"),
			"user":   cmd.Flags().String("user", "", "the client's user, if it is known by something else and rules count per user"),
			"tier":   cmd.Flags().String("tier", "", "the client's tier, if rules have limits by tier"),
			"tenant": cmd.Flags().String("tenant", "", "the client's tenant, if rules count per tenant"),
			"host":   cmd.Flags().String("host", "", "the host, if rules count per host"),
		}
		if err := cmd.MarkFlagRequired("client"); err != nil {
			panic(err) // the flag is defined three lines above
		}
		cmd.Example = "  penstock " + path + " --client user:u_42"
		method := http.MethodGet
		if path != "client" {
			method = http.MethodPost
		}
		return func() (string, string, url.Values) {
			query := url.Values{}
			for name, value := range flags {
				if *value != "" {
					query.Set(name, *value)
				}
			}
			return method, path, query
		}
	}
}

// ask returns the reply as indented JSON.
func (a *admin) ask(ctx context.Context, method, path string, query url.Values) ([]byte, error) {
	if scheme, rest, ok := strings.Cut(a.address, "://"); ok {
		return nil, fmt.Errorf("--admin %q begins with %s://, and is host:port or unix//path; write --admin %s", a.address, scheme,
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
	r, err := http.NewRequestWithContext(ctx, method, target.String(), http.NoBody)
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
		return nil, fmt.Errorf("reading what Caddy said: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		var refusal struct {
			Error string `json:"error"`
		}
		if json.Unmarshal(body, &refusal) != nil || refusal.Error == "" {
			refusal.Error = strings.TrimSpace(string(body))
		}
		return nil, fmt.Errorf("caddy at %s answered %s: %s", a.address, response.Status, refusal.Error)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, bytes.TrimSpace(body), "", "  "); err != nil {
		return nil, fmt.Errorf("what answers at %s is not the admin endpoint of Caddy, whose answers are JSON: %w; --admin takes "+
			"the address that \"admin\" has in the Caddyfile", a.address, err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}
