// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/region/loan"
)

func newRegions() *cobra.Command {
	var address string
	var asJSON bool
	cmd := &cobra.Command{Use: "regions", Short: "Show what a region borrowed, lent and told, and write off a lost region", Args: noArgs,
		Long: "Show what the agent of a region borrowed and lent since its start, and when each other region last answered.\n" +
			"TOLD is how many counters a region was told, and HEARD when it told this one last, for rules with across: gossip.\n" +
			"--agent is the --admin-listen of penstock region. The exit status is 1 if the agent does not answer.",
		Example: "  penstock regions --agent 127.0.0.1:7444",
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := readAgent(cmd.Context(), address)
			if err != nil {
				return err
			}
			var status loan.Status
			if err := json.Unmarshal(text, &status); err != nil {
				return fmt.Errorf("%s is not the agent of a region: %w; write the --admin-listen of penstock region", address, err)
			}
			if asJSON {
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			return printRegions(cmd.OutOrStdout(), &status)
		}}
	cmd.AddCommand(newRegionsForget(), newRegionsRestore())
	cmd.Flags().StringVar(&address, "agent", "", "the agent: `host:port`, or unix:PATH")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// readAgent reads the status of an agent.
func readAgent(ctx context.Context, address string) ([]byte, error) {
	if address == "" {
		return nil, errors.New("--agent is missing; write the --admin-listen of penstock region")
	}
	client, at := &http.Client{Timeout: adminTimeout}, url.URL{Scheme: "http", Host: address, Path: "/v1/region"}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		client.Transport, at.Host = overSocket(path).Transport, "localhost"
	} else if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("--agent %q is no address; write host:port or unix:PATH", address)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("--agent %q is no address; write host:port or unix:PATH: %w", address, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("asking the agent: %w; is penstock region running, with --admin-listen %s?", err, address)
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	const bytesMax = 64 << 10
	text, err := io.ReadAll(io.LimitReader(response.Body, bytesMax))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s, so it is not the agent of a region; write the --admin-listen of penstock region", address, response.Status)
	}
	return text, err
}

func printRegions(out io.Writer, s *loan.Status) error {
	heard := "hears its proxies"
	if !s.Listening {
		heard = "does not hear its proxies: Redis does not answer"
	}
	fmt.Fprintf(out, "%s %s. It lent %d units and asked %d questions; %d borrowed units came too late.\n\n", quoteUnprintable(s.Region), heard, s.Lent, s.Questions, s.Lost)
	for _, name := range slices.Sorted(maps.Keys(s.Writeoffs)) {
		if e := s.Writeoffs[name]; e.Forgotten() {
			fmt.Fprintf(out, "%s is written off since %s; %s lends its part.\n\n", quoteUnprintable(name),
				time.UnixMicro(int64(e.Since)).UTC().Format(time.RFC3339), quoteUnprintable(e.Steward))
		}
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "REGION\tASKED\tFAILED\tBORROWED\tANSWERED\tTOLD\tHEARD")
	for i := range s.Peers {
		p := &s.Peers[i]
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%s\t%d\t%s\n", quoteUnprintable(p.Region), p.Asked, p.Failed, p.Borrowed, instantOrNever(p.Answered),
			p.Told, instantOrNever(p.Heard))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range s.Peers {
		if p := &s.Peers[i]; p.Failure != "" {
			fmt.Fprintf(out, "\n%s did not answer the last message: %s\n", quoteUnprintable(p.Region), quoteUnprintable(p.Failure))
		}
	}
	return nil
}

func instantOrNever(at *time.Time) string {
	if at == nil {
		return "never"
	}
	return at.Format(time.RFC3339)
}
