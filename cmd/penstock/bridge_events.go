// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"os"

	"github.com/penstock/penstock/internal/envoy/bridge"
	"github.com/penstock/penstock/internal/events"
)

// eventsVariable is the environment variable that is read if --events is not given.
const eventsVariable = "PENSTOCK_EVENTS"

// openEvents adds a log of events to the bridge's options. The caller must close the bridge before
// it calls closeAll.
func (f *bridgeFlags) openEvents(o *bridge.Options) (closeAll func(), err error) {
	to, place := f.events, "--events"
	if to == "" {
		to, place = os.Getenv(eventsVariable), eventsVariable
	}
	sink, closer, err := f.openSink(o, to, place)
	if err != nil {
		return nil, err
	}
	node, _ := os.Hostname() // if it is "", events have no node
	o.Events = events.New(events.Options{Node: node, Failed: func(err error, lost uint64) {
		o.Logger.Warn("events could not be written, and are only counted", "decisions", lost, "error", err)
	}})
	o.Events.SetRegion(o.Region)
	if sink == nil {
		return func() {}, nil
	}
	detach := o.Events.Attach(sink)
	return func() {
		detach()
		if err := closer.Close(); err != nil {
			o.Logger.Warn("closing the events", slog.Any("error", err))
		}
	}, nil
}
