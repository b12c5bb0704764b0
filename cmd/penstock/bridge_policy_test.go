// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/freeport"
)

// TestFlagsOfPublishedPolicies tests that each contradiction of the flags is described.
func TestFlagsOfPublishedPolicies(t *testing.T) {
	const key = "ed25519:C7rIEtVPXA4AbgVTZJzOjZtT7U0HeOqkCeymZLmfqnM"
	nobody := "http://" + freeport.Address(t)
	for want, f := range map[string]bridgeFlags{
		"give --policy http:NAME and --policy-url URL":        {policy: "https://control:7070/shop"},
		"go with --policy redis:NAME or http:NAME":            {policy: "p.yaml", published: publishedFlags{keys: []string{key}}},
		"go with --policy http:NAME: give":                    {policy: "redis:shop", published: publishedFlags{url: nobody}},
		"--policy http:NAME needs --policy-key":               {policy: "http:shop", published: publishedFlags{url: nobody, token: "t"}},
		"--policy http:shop needs --policy-url":               {policy: "http:shop", published: publishedFlags{keys: []string{key}}},
		"--policy http:shop needs --policy-token-file":        {policy: "http:shop", published: publishedFlags{keys: []string{key}, url: nobody}},
		"--policy http:shop needs --policy-token-file: name":  {policy: "http:shop", published: publishedFlags{keys: []string{key}, url: nobody}, feed: feedFlags{tokenFile: "other"}},
		`--policy-url: the control plane "control" is no URL`: {policy: "http:shop", published: publishedFlags{keys: []string{key}, url: "control", token: "t"}},
		`--policy-key: the key "rsa:x" is not of the form`:    {policy: "http:shop", published: publishedFlags{keys: []string{"rsa:x"}, url: nobody, token: "t"}},
		"the policy has no name":                              {policy: "http:", published: publishedFlags{keys: []string{key}, url: nobody, token: "t"}},
		"the token of the control plane: open":                {policy: "http:shop", published: publishedFlags{keys: []string{key}, url: nobody, token: "/nowhere/token"}},
		"give --redis, or --policy http:shop":                 {policy: "redis:shop", published: publishedFlags{keys: []string{key}}},
	} {
		f.listen, f.socketMode, f.remember = "127.0.0.1:0", "0660", true
		ctx, end := context.WithCancel(t.Context())
		end()
		if f.feed.tokenFile != "" {
			f.feed.url, f.feed.folder = "http://other", t.TempDir()
		}
		if err := f.run(ctx, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", f, err, want)
		}
	}
}

// TestThePolicyIsThatOfControl tests that --control is the default of --policy-url, and that the
// token for --control is not sent to another URL.
func TestThePolicyIsThatOfControl(t *testing.T) {
	f := publishedFlags{keys: []string{"ed25519:C7rIEtVPXA4AbgVTZJzOjZtT7U0HeOqkCeymZLmfqnM"}, folder: t.TempDir(), node: "n"}
	told := &feedFlags{url: "https://control:7070", tokenFile: "token"}
	source, err := f.source("http:shop", nil, told, slog.New(slog.DiscardHandler))
	if err != nil || source.String() != "http:shop" {
		t.Fatal(err)
	}
	f.url = "https://other:7070"
	if _, err := f.source("http:shop", nil, told, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "--policy-token-file") {
		t.Errorf("a token goes to another control plane: %v", err)
	}
}
