// SPDX-License-Identifier: Apache-2.0

package front

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/envoy-module/console"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/feed"
	"github.com/penstock/penstock/internal/meter"
	"github.com/penstock/penstock/internal/test/eventually"
)

// spoolSettings returns settings that name a control plane, which accepts every batch of the spool.
func spoolSettings(t *testing.T) *Settings {
	t.Helper()
	plane := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(plane.Close)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a token of the role node\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return &Settings{Control: &Control{URL: plane.URL, TokenFile: token, Spool: filepath.Join(t.TempDir(), "spool")}}
}

// TestASpoolOfAnotherProcess tests a hot restart, during which the previous process still has the
// spool. The configuration is accepted, usage is gathered, and the spool is opened as soon as it is
// free.
func TestASpoolOfAnotherProcess(t *testing.T) {
	settings, said := spoolSettings(t), new(eventually.Journal)
	before, err := feed.Open(settings.Control.options(nil, nil, slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	r := newReports(said.Logger())
	end, err := r.open(settings)
	if err != nil {
		t.Fatal(err)
	}
	if !r.meter.On() || r.feeds[settings.Control.Spool].value.get() != nil || !strings.Contains(said.String(), "another process has the spool") {
		t.Errorf("while another process has the spool, the meter is on: %v; the log: %s", r.meter.On(), said)
	}
	r.meter.Count(&meter.Key{Policy: "shop", Rule: "api", Kind: "user", Client: "ann"}, meter.Sum{Admitted: 3})
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	eventually.Until(t, time.Minute, "the spool is open", func() bool { return r.feeds[settings.Control.Spool].value.get() != nil })
	if err := end(); err != nil || r.meter.On() || len(r.feeds) != 0 {
		t.Errorf("after the end: %v, the meter is on: %v, %d feeds", err, r.meter.On(), len(r.feeds))
	}
	if rows := r.meter.Take(); len(rows) != 0 {
		t.Errorf("usage that nobody was told: %+v", rows)
	}
}

// TestASpoolThatCannotBeOpenedYet tests errors while a configuration waits for its spool. They do
// not end the wait, and only the first is logged.
func TestASpoolThatCannotBeOpenedYet(t *testing.T) {
	settings, said := spoolSettings(t), new(eventually.Journal)
	spool := settings.Control.Spool
	before, err := feed.Open(settings.Control.options(nil, nil, slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	r := newReports(said.Logger())
	end, err := r.open(settings)
	if err != nil {
		t.Fatal(err)
	}
	shared := r.feeds[spool].value
	shared.mu.Lock() // so that the spool is not opened before a file is in its place
	shared.again.Stop()
	err = errors.Join(before.Close(), os.Rename(spool, spool+".away"), os.WriteFile(spool, nil, 0o600))
	shared.mu.Unlock()
	if err != nil || shared.get() != nil {
		t.Fatalf("the spool is open, or was not replaced: %v", err)
	}
	shared.retry()
	shared.retry()
	if n := strings.Count(said.String(), "told nothing yet"); n != 1 {
		t.Errorf("%d lines about the spool, want 1: %s", n, said)
	}
	if err := errors.Join(os.Remove(spool), os.Rename(spool+".away", spool)); err != nil {
		t.Fatal(err)
	}
	eventually.Until(t, time.Minute, "the spool is open", func() bool { return shared.get() != nil })
	if err := end(); err != nil {
		t.Error(err)
	}
}

// TestConfigurationsShareReports tests that configurations share a sink or a spool, and that the
// last of them closes it.
func TestConfigurationsShareReports(t *testing.T) {
	r := newReports(slog.New(slog.DiscardHandler))
	settings := spoolSettings(t)
	var ends []func() error
	for range 2 {
		end, err := r.open(settings)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	file := filepath.Join(t.TempDir(), "events.ndjson")
	for _, to := range []string{file, file, events.ToNone} {
		end, err := r.open(&Settings{EventsTo: to})
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	if len(r.feeds) != 1 || len(r.sinks) != 2 {
		t.Errorf("%d feeds and %d sinks", len(r.feeds), len(r.sinks))
	}
	for _, end := range ends {
		if err := end(); err != nil {
			t.Error(err)
		}
	}
	if len(r.feeds) != 0 || len(r.sinks) != 0 || r.meter.On() {
		t.Errorf("at the end, %d feeds and %d sinks, the meter is on: %v", len(r.feeds), len(r.sinks), r.meter.On())
	}
	if _, err := r.open(&Settings{EventsTo: filepath.Dir(file)}); err == nil || !strings.Contains(err.Error(), "events_to") {
		t.Errorf("a folder for events: %v", err)
	}
}

// TestARejectedConfigurationChangesNoReports tests that a configuration with an invalid setting
// admin does not redirect the feed of the configuration in force. The spool belongs to another
// process, so that the test can read the target of the feed.
func TestARejectedConfigurationChangesNoReports(t *testing.T) {
	control := spoolSettings(t).Control
	before, err := feed.Open(control.options(nil, nil, slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	p := NewProcess(slog.New(slog.DiscardHandler))
	settings := func(change func(*Settings)) *Settings {
		s, err := ReadSettings([]byte(three))
		if err != nil {
			t.Fatal(err)
		}
		own := *control
		s.Control = &own
		change(s)
		return s
	}
	first, err := p.Open(settings(func(*Settings) {}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Open(settings(func(s *Settings) {
		s.Control.URL = "http://127.0.0.1:1"
		s.Admin = &console.Settings{Listen: "unix:" + filepath.Join(t.TempDir(), "none", "s")}
	}))
	if err == nil || !strings.Contains(err.Error(), "write another address") {
		t.Errorf("a socket in a folder that does not exist: %v", err)
	}
	users, shared := p.reports.feeds[control.Spool].users, p.reports.feeds[control.Spool].value
	shared.mu.Lock()
	if got := shared.options.Target.URL; got != control.URL || users != 1 {
		t.Errorf("the feed of the configuration in force sends to %q, want %q; it has %d users", got, control.URL, users)
	}
	shared.mu.Unlock()
	if err := first.Close(); err != nil || len(p.reports.feeds) != 0 {
		t.Errorf("at the end: %v, %d feeds", err, len(p.reports.feeds))
	}
}

// TestAnotherSizeOfAnOpenSpool tests configurations that set a different size for a spool that is
// open. The log says that the spool keeps its first size. A configuration that writes out the
// default sets no different size.
func TestAnotherSizeOfAnOpenSpool(t *testing.T) {
	settings, said := spoolSettings(t), new(eventually.Journal)
	r := newReports(said.Logger())
	for _, one := range []struct {
		bytes int64
		lines int // in all
	}{{0, 0}, {feed.SpoolBytesDefault, 0}, {feed.SpoolBytesMin, 1}} {
		own := *settings.Control
		own.SpoolBytes = one.bytes
		end, err := r.open(&Settings{Control: &own})
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		if n := strings.Count(said.String(), "spool_bytes of control has no effect"); n != one.lines {
			t.Errorf("after spool_bytes %d: %d lines, want %d: %s", one.bytes, n, one.lines, said)
		}
	}
}
