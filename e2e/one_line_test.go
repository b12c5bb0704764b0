// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

// awaitMinute waits until the current minute has some seconds left.
func awaitMinute(t *testing.T) {
	const needed = 5 * time.Second
	eventually.Until(t, 2*needed, "the next minute begins", func() bool {
		now := time.Now()
		return now.Truncate(time.Minute).Add(time.Minute).Sub(now) > needed
	})
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	p := startCaddy(t, `{
	admin ADMIN
}
:SITE {
	penstock 3/1m
	respond "ok"
}
`)
	awaitMinute(t)
	for i, status := range []int{200, 200, 200, 429} {
		a := p.get("/")
		if a.status != status {
			t.Fatalf("request %d: status %d, want %d", i+1, a.status, status)
		}
		remaining := strconv.Itoa(max(0, 2-i))
		for name, want := range map[string]string{"X-RateLimit-Limit": "3", "X-RateLimit-Remaining": remaining,
			"RateLimit-Policy": `"default";q=3;w=60`} {
			if got := a.header.Get(name); got != want {
				t.Errorf("request %d: %s: got %q, want %q", i+1, name, got, want)
			}
		}
		rest, ok := strings.CutPrefix(a.header.Get("RateLimit"), `"default";r=`+remaining+`;t=`)
		if seconds, err := strconv.Atoi(rest); !ok || err != nil || seconds < 1 || seconds > 120 {
			t.Errorf("request %d: RateLimit: %q", i+1, a.header.Get("RateLimit"))
		}
		if reset, err := strconv.ParseInt(a.header.Get("X-RateLimit-Reset"), 10, 64); err != nil || reset <= time.Now().Unix() {
			t.Errorf("request %d: X-RateLimit-Reset: %q", i+1, a.header.Get("X-RateLimit-Reset"))
		}
		if status == 429 {
			checkProblem(t, a)
		}
	}
}

func checkProblem(t *testing.T, a answer) {
	t.Helper()
	if wait, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || wait < 1 {
		t.Errorf("Retry-After: %q", a.header.Get("Retry-After"))
	}
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type: %q", got)
	}
	if !json.Valid([]byte(a.body)) {
		t.Errorf("the body is no JSON: %s", a.body)
	}
	for _, want := range []string{"quota-exceeded", `"status":429`, `"violated-policies":["default"]`,
		`"error":"Rate limit exceeded"`} {
		if !strings.Contains(a.body, want) {
			t.Errorf("the body lacks %s: %s", want, a.body)
		}
	}
}

func TestValidateAdaptAndReload(t *testing.T) {
	t.Parallel()
	p := startCaddy(t, `{
	admin ADMIN
}
:SITE {
	penstock 2/30d
	respond "ok"
}
`)
	if got := []int{p.get("/").status, p.get("/").status, p.get("/").status}; got[1] != 200 || got[2] != 429 {
		t.Fatalf("statuses %v", got)
	}
	p.write(`{
	admin ADMIN
}
:SITE {
	penstock 3/30d
	respond "ok"
}
`)
	for _, verb := range []string{"validate", "adapt"} {
		if out, err := exec.Command(caddyProgram(t), verb, "--config", p.file).CombinedOutput(); err != nil {
			t.Errorf("caddy %s: %v: %s", verb, err, out)
		}
	}
	if err := p.reload(); err != nil {
		t.Fatal(err)
	}
	if got := []int{p.get("/").status, p.get("/").status}; got[0] != 200 || got[1] != 429 {
		t.Errorf("after a reload that raised the limit by one: statuses %v, want 200 and 429", got)
	}
	p.write(":SITE {\n\tpenstock {\n\t\trule a 3/1x\n\t\trule b 0/1m\n\t}\n}\n")
	out, err := exec.Command(caddyProgram(t), "validate", "--config", p.file).CombinedOutput()
	if err == nil {
		t.Error("caddy validate takes two broken limits")
	}
	for _, want := range []string{"Caddyfile:3", "Caddyfile:4", "3/1x", "0/1m"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("caddy validate does not say %s: %s", want, out)
		}
	}
}

// TestExamplesStart tests that Caddy starts with every example. Only the port of an example is
// changed.
func TestExamplesStart(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../examples/*.caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "../examples/Caddyfile") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), ":8080 {") {
				t.Fatal("it does not listen at :8080")
			}
			p := startCaddy(t, strings.Replace(string(text), ":8080 {", ":SITE {", 1),
				"CADDY_ADMIN="+freeport.Address(t), "REDIS_PASSWORD=secret")
			a := p.get("/")
			if a.status != 200 || a.header.Get("RateLimit-Policy") == "" && !strings.Contains(string(text), "redis") {
				t.Errorf("status %d, header %v", a.status, a.header)
			}
		})
	}
}
