// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/redistest"
)

func TestRedisHealth(t *testing.T) {
	c := redistest.StartCluster(t)
	out, _, err := run(t, "", "redis", "health", "--redis", c.Nodes[0].URL())
	if err != nil || !strings.Contains(out, "16384 of 16384 slots are served") || strings.Count(out, "\n") != 8 {
		t.Errorf("%v\n%s", err, out)
	}
	c.Nodes[5].Kill()
	out, _, err = run(t, "", "redis", "health", "--redis", c.Nodes[0].URL())
	if !errors.Is(err, errSaid) || !strings.Contains(out, "wrong: "+c.Nodes[5].Addr+" cannot be reached") {
		t.Errorf("a node is gone: %v\n%s", err, out)
	}
}

func TestRedisCommandsRefuseWhatMeansNothing(t *testing.T) {
	for want, args := range map[string][]string{
		`"heal" is no command; see penstock redis --help`: {"redis", "heal"},
		"--redis is missing; write --redis redis://":      {"redis", "health"},
		`redis health takes no "x"`:                       {"redis", "health", "x"},
		`environment variable "PENSTOCK_NONE" is not set`: {"redis", "health", "--redis", "redis://a:{env.PENSTOCK_NONE}@localhost"},
		"goes with sentinels":                             {"redis", "health", "--master", "m", "--redis", redistest.Start(t).URL()},
	} {
		if _, _, err := run(t, "", args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

func TestRedisDoctor(t *testing.T) {
	s := redistest.Start(t)
	out, _, err := run(t, "", "redis", "doctor", "--redis", s.URL())
	if err != nil || !strings.Contains(out, "ok     script") {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, err = run(t, "", "redis", "doctor", "--redis", s.URL(), "--redis-timeout", "1ns")
	if !errors.Is(err, errSaid) || !strings.Contains(out, "wrong  script") {
		t.Errorf("a script slower than the timeout: %v\n%s", err, out)
	}
}
