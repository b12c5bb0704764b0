// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/internal/controlcall"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/envoy/bridge"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/feed"
	"github.com/penstock/penstock/internal/meter"
)

// feedFlags are the flags, as written, for sending events and usage to a control plane.
type feedFlags struct {
	url, tokenFile, folder string
	bytesMax               int64
}

func (f *feedFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "control", "", "tell this control plane what happens, in place of --events: https://control:7070")
	flags.StringVar(&f.tokenFile, "control-token-file", "", "a `FILE` that holds a token of the role node")
	flags.StringVar(&f.folder, "spool", "", "the `FOLDER` in which that waits until the control plane has it; of this process alone")
	flags.Int64Var(&f.bytesMax, "spool-bytes", 0, "the most bytes that the folder takes (268435456)")
}

// feedFlags.open returns a feed, and adds its meter to the bridge's options. It returns nil if no
// control plane is named.
func (f *feedFlags) open(o *bridge.Options, eventsTo string) (*feed.Feed, error) {
	switch {
	case f.url == "" && (f.tokenFile != "" || f.folder != "" || f.bytesMax != 0):
		return nil, errors.New("--control-token-file, --spool and --spool-bytes go with --control: give that as well, or leave them out")
	case f.url == "":
		return nil, nil
	case eventsTo != "":
		return nil, errors.New("--events and --control both say where events go: keep one")
	case f.tokenFile == "":
		return nil, errors.New("--control needs --control-token-file: name a file with a token of penstock control token --role node")
	case f.folder == "":
		return nil, errors.New("--control needs --spool: name a folder on this machine's disk")
	}
	node, _ := os.Hostname() // "" is shown as an unnamed node
	o.Meter = meter.New()
	opened, err := feed.Open(feed.Options{Target: controlcall.Target{URL: f.url, Token: controlcall.TokenFile(f.tokenFile)}, Folder: f.folder, BytesMax: f.bytesMax,
		Node: node, Region: func() string { return o.Region }, Meter: o.Meter, Logger: o.Logger})
	if err != nil {
		return nil, fmt.Errorf("--control: %w", err)
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	o.Registry.MustRegister(metrics.FeedOf(opened.Figures)...)
	return opened, nil
}

// openSink returns the sink of events: the control plane, or the one that --events or its
// environment variable names.
func (f *bridgeFlags) openSink(o *bridge.Options, to, place string) (events.Sink, interface{ Close() error }, error) {
	told, err := f.feed.open(o, to)
	if err != nil {
		return nil, nil, err
	}
	if told != nil {
		return told, told, nil
	}
	if to == "" {
		to = events.ToStdout
	}
	sink, closer, err := events.Open(to)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", place, err)
	}
	return sink, closer, nil
}
