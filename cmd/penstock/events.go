// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/operator"
)

const (
	// followEvery is the time between two calls for events. Nodes write them once a second.
	followEvery = time.Second
	// joinWithin is how long the command waits for other nodes to send their first events.
	joinWithin = 5 * time.Second
	// retryWithin is how long a follower goes on if the target does not answer, as during a
	// restart.
	retryWithin = time.Minute
)

// follower prints the events of a node or of all nodes.
type follower struct {
	admin    *admin
	query    url.Values
	number   int
	follow   bool
	asJSON   bool
	out, err io.Writer

	told  map[string]bool // the notes that were printed
	nodes string          // the nodes whose events are printed
	table bool            // the head of the table was printed
}

// eventsReply is the answer to a request for events.
type eventsReply struct {
	fleet.EventPage
	Notes []string
}

// eventsCommand returns the command that prints events.
func (a *admin) eventsCommand() *cobra.Command {
	f := &follower{admin: a, query: url.Values{}, told: map[string]bool{}}
	cmd := &cobra.Command{Use: "events", Short: "Print the latest denials and outages of all nodes, and follow them", Args: noArgs,
		Long: "Print the latest events that the policies in force report: denials, sampled admissions, and outages, of all nodes that count in\n" +
			"the same Redis. Each node remembers its latest 2,048 events. With --follow, print further events as they happen, until the\n" +
			"command is interrupted, which is no error. Nothing waits for this command: it is told how many events it has missed.\n\n" +
			"The exit status is 0 also if there are no events. It is 1 if the target does not answer, with --follow for a minute.",
		Example: "  penstock events --follow\n  penstock events --follow --client user:u_42 --rule api --json"}
	flags := cmd.Flags()
	client := flags.String("client", "", "only decisions about this client, as KIND:ID; an address or a network includes what it overlaps")
	rule := flags.String("rule", "", "only decisions of the rule of this name")
	flags.BoolVarP(&f.follow, "follow", "f", false, "go on with further events, until interrupted")
	flags.IntVarP(&f.number, "number", "n", 20, "how many of the latest events to print first")
	flags.BoolVar(&f.asJSON, "json", false, "print one JSON object on each line")
	thisNode := scopeFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.number < 0 {
			return fmt.Errorf("--number %d is negative; write 0 for none of the earlier events", f.number)
		}
		maps.Copy(f.query, scope(*thisNode))
		for name, value := range map[string]string{"client": *client, "rule": *rule} {
			if flags.Changed(name) && value == "" {
				return fmt.Errorf("--%s is empty; name one, or leave it out", name)
			}
			if value != "" {
				f.query.Set(name, value)
			}
		}
		f.out, f.err = cmd.OutOrStdout(), cmd.ErrOrStderr()
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		return f.run(ctx)
	}
	return cmd
}

// follower.run prints the latest events that nodes remember. With --follow, it then prints new
// events until it is interrupted.
func (f *follower) run(ctx context.Context) error {
	done, err := f.admin.keepOpen(ctx)
	if err != nil {
		return err
	}
	defer done()
	page, err := f.begin(ctx)
	if err == nil {
		page.Events = page.Events[max(0, len(page.Events)-f.number):]
		err = f.print(page)
	}
	if err != nil || !f.follow {
		return ignoreInterrupt(ctx, err)
	}
	answered := time.Now()
	for pause(ctx, followEvery) {
		next, err := f.ask(ctx)
		switch {
		case err == nil:
			answered = time.Now()
			if err := f.print(next); err != nil {
				return ignoreInterrupt(ctx, err)
			}
		case ctx.Err() == nil && time.Since(answered) > retryWithin:
			return err
		case ctx.Err() == nil:
			f.note("no answer, trying again for a minute: " + err.Error())
		}
	}
	return nil
}

// ignoreInterrupt returns an error, or nil if the command was interrupted.
func ignoreInterrupt(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// pause waits, and reports false if the command is interrupted.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// follower.ask asks for the next events.
func (f *follower) ask(ctx context.Context) (*eventsReply, error) {
	return decodeReply[eventsReply](f.admin.ask(ctx, http.MethodGet, "events", f.query))
}

// follower.begin waits until all nodes have sent the events that they remember, but at most for
// joinWithin, and returns these events.
func (f *follower) begin(ctx context.Context) (page *eventsReply, err error) {
	for began := time.Now(); ; {
		if page, err = f.ask(ctx); err != nil {
			return nil, err
		}
		if page.Awaited == 0 || time.Since(began) > joinWithin || !pause(ctx, followEvery/2) {
			return page, nil
		}
	}
}

// follower.print prints the events of a page, and notes about it.
func (f *follower) print(page *eventsReply) error {
	f.query.Set("after", page.After)
	f.query.Set("wait", fmt.Sprint(operator.WaitMax))
	f.printNotes(page)
	for i := range page.Events {
		if err := f.printEvent(&page.Events[i]); err != nil {
			return err
		}
	}
	if page.Missed == 0 {
		return nil
	}
	return f.printEvent(&events.Event{Time: time.Now(), Kind: "missed", Reason: "this reader was too slow", Count: page.Missed})
}

// printNotes prints to the standard error which nodes send events, and each note once.
func (f *follower) printNotes(page *eventsReply) {
	var names []string
	for _, n := range page.Nodes {
		names = append(names, quoteUnprintable(n.Name)+" ("+quoteUnprintable(n.Front)+")")
		if n.Mute {
			f.note(fmt.Sprintf("no policy in force at %s reports events: write events in a policy", quoteUnprintable(n.Name)))
		}
	}
	slices.Sort(names)
	if all := strings.Join(names, ", "); f.follow && all != f.nodes {
		f.nodes = all
		fmt.Fprintln(f.err, "events of: "+cmp.Or(all, "no node"))
	}
	for _, note := range page.Notes {
		f.note(note)
	}
	if page.Problem != "" {
		f.note("the events are those of one node: " + page.Problem)
	}
	for _, others := range []struct {
		n    int
		what string
	}{{page.Awaited, "nodes send no events; are they of an earlier release?"}, {page.LeftOut, "further nodes are left out"},
		{page.Unreadable, "nodes send events that cannot be read; are they of a later release?"}} {
		if others.n > 0 {
			f.note(fmt.Sprintf("%d %s", others.n, others.what))
		}
	}
}

// follower.note prints a line for people, unless it has printed the same line before.
func (f *follower) note(line string) {
	if !f.told[line] {
		f.told[line] = true
		fmt.Fprintln(f.err, "note: "+escapeLines(line))
	}
}

// printEvent prints one event on a line.
func (f *follower) printEvent(e *events.Event) error {
	if f.asJSON {
		_, err := f.out.Write(append(e.AppendJSON(nil), '\n'))
		return err
	}
	const form = "%-24s %-12s %7v  %-28s %-16s %-20s %s\n"
	if !f.table {
		f.table = true
		if _, err := fmt.Fprintf(f.out, form, "TIME", "DECISION", "COUNT", "CLIENT", "RULE", "LIMIT", "REQUEST"); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(f.out, form, e.Time.UTC().Format(events.TimeForm), quoteUnprintable(cmp.Or(e.Decision, e.Kind)), e.Count, quoteUnprintable(e.Client),
		quoteUnprintable(e.Rule), quoteUnprintable(e.Limit), f.rest(e))
	return err
}

// follower.rest returns the last column: the request, or the text of an event that is not about a
// request.
func (f *follower) rest(e *events.Event) string {
	parts := []string{e.Method, e.Path}
	if e.Kind != events.KindDenied && e.Kind != events.KindAdmitted {
		parts = []string{e.State, e.Reason}
		if e.Seconds > 0 {
			parts = append(parts, fmt.Sprintf("after %g s", e.Seconds))
		}
	}
	if e.Tier != "" {
		parts = append(parts, "tier "+e.Tier)
	}
	if e.Node != "" {
		parts = append(parts, "at "+e.Node)
	}
	text := strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), " ")
	return quoteUnprintable(text)
}
