// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/control/localpg"
)

// planePatience bounds each wait for the control plane.
const planePatience = 60 * time.Second

// startPostgreSQL starts a PostgreSQL with its default settings, so commits wait for the disk.
func (c *controlBench) startPostgreSQL() error {
	// PostgreSQL runs as another user, which may not enter the benchmark's folder, so it gets a
	// folder elsewhere.
	folder, err := os.MkdirTemp("", "pg")
	if err != nil {
		return err
	}
	c.closers = append(c.closers, func() { _ = os.RemoveAll(folder) })
	if c.server, err = localpg.Start(context.Background(), localpg.Options{Folder: folder}); err != nil {
		return fmt.Errorf("the control plane needs PostgreSQL: run make setup: %w", err)
	}
	c.closers = append([]func(){func() { _ = c.server.Kill() }}, c.closers...)
	return nil
}

// plane is a control plane with a database of its own.
type plane struct {
	c              *controlBench
	process        *process
	database       string // the URL of the database
	rows           *pgx.Conn
	address, token string
	client         *http.Client
}

// controlBench.plane starts a control plane that publishes in the given Redis. The argument args
// holds further flags.
func (c *controlBench) plane(redis string, args ...string) (*plane, error) {
	ctx := context.Background()
	c.databases++
	name := fmt.Sprintf("bench_%d", c.databases)
	if err := c.administer("CREATE DATABASE " + name); err != nil {
		return nil, err
	}
	c.closers = append(c.closers, func() { _ = c.administer("DROP DATABASE " + name + " WITH (FORCE)") })
	port, err := laterPort()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(c.dir, name+"-token")
	p := &plane{c: c, database: c.server.Database(name), address: fmt.Sprintf("127.0.0.1:%d", port),
		client: &http.Client{Timeout: 60 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: callers}}}
	args = append([]string{"control", "serve", "--listen", p.address, "--first-token-file", file, "--redis", "redis://" + redis}, args...)
	if p.process, err = c.start("control", []string{"PENSTOCK_DATABASE=" + p.database}, penstockProgram, args...); err != nil {
		return nil, err
	}
	if err := p.process.until(planePatience, "is ready", func() bool {
		answer, err := http.Get("http://" + p.address + "/readyz")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	p.token = strings.TrimSpace(string(text))
	if p.rows, err = pgx.Connect(ctx, p.database); err != nil {
		return nil, err
	}
	c.closers = append(c.closers, func() { _ = p.rows.Close(ctx) })
	// The control plane creates all partitions in one transaction after it has started.
	if err := p.process.until(planePatience, "makes partitions", func() bool {
		var made bool
		err := p.rows.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'penstock.client_minutes'::regclass)").Scan(&made)
		return err == nil && made
	}); err != nil {
		return nil, err
	}
	// With this setting, the control plane does not treat the benchmark's rows as changes by hand.
	return p, p.sql("SET search_path = penstock", "SET timezone = 'UTC'", "SET penstock.writer = 'control'")
}

// planeAlone starts a control plane with a Redis that nothing else uses.
func (c *controlBench) planeAlone() (*plane, error) {
	_, address, err := c.bench.redis()
	if err != nil {
		return nil, err
	}
	return c.plane(address)
}

// controlBench.administer runs a statement in the server's first database.
func (c *controlBench) administer(statement string) error {
	ctx := context.Background()
	connection, err := pgx.Connect(ctx, c.server.URL())
	if err != nil {
		return err
	}
	defer connection.Close(ctx)
	_, err = connection.Exec(ctx, statement)
	return err
}

// plane.sql runs statements.
func (p *plane) sql(statements ...string) error {
	for _, statement := range statements {
		if _, err := p.rows.Exec(context.Background(), statement); err != nil {
			return fmt.Errorf("%.200s: %w", statement, err)
		}
	}
	return nil
}

// plane.send sends a request to the API, and returns the body of a successful answer. The argument
// headers holds names and values alternately.
func (p *plane) send(method, path string, body any, headers ...string) ([]byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return p.sendText(method, path, text, append(headers, "Content-Type", "application/json", "Authorization", "Bearer "+p.token)...)
}

func (p *plane) sendText(method, path string, body []byte, headers ...string) ([]byte, error) {
	request, err := http.NewRequest(method, "http://"+p.address+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	answer, err := p.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, answer.Status, text)
	}
	return text, err
}

// plane.limit sets a customer's own limit.
func (p *plane) limit(customer string, limit int) error {
	_, err := p.send("POST", "/v1/clients/"+ofHeader(customer)+"/edits",
		map[string]any{"action": "set-limit", "rule": "api", "limits": []string{hourly(limit)}, "reason": "bench"})
	return err
}

// ofHeader returns the name that the directory uses for the client whose X-User header has the
// given value.
func ofHeader(user string) string { return customerKind + ":" + user }

const customerKind = "header.x-user"

// nodeToken makes a token for nodes.
func (p *plane) nodeToken() (secret string, err error) {
	text, err := p.send("POST", "/v1/tokens", map[string]any{"name": "nodes", "role": "node", "reason": "bench",
		"expires_at": time.Now().Add(24 * time.Hour).UTC().Format(time.RFC3339)})
	if err != nil {
		return "", err
	}
	var made struct{ Secret string }
	return made.Secret, json.Unmarshal(text, &made)
}

// putPolicy writes a revision of the policy named shop and publishes it.
func (p *plane) putPolicy(revision int, text string) error {
	condition := []string{"If-None-Match", "*"}
	if revision > 1 {
		condition = []string{"If-Match", fmt.Sprintf(`"%d"`, revision-1)}
	}
	if _, err := p.send("PUT", "/v1/policies/shop", map[string]any{"text": text, "format": "yaml", "reason": "bench"}, condition...); err != nil {
		return err
	}
	_, err := p.send("POST", "/v1/policies/shop/publication", map[string]any{"step": "all", "reason": "bench"})
	return err
}

// command runs penstock, and returns what it prints.
func command(environment []string, args ...string) (string, error) {
	run := exec.Command(penstockProgram, args...)
	run.Env = append(os.Environ(), environment...)
	var out, diagnostics bytes.Buffer
	run.Stdout, run.Stderr = &out, &diagnostics
	if err := run.Run(); err != nil {
		text := diagnostics.String()
		return "", fmt.Errorf("penstock %s: %w: %s", strings.Join(args, " "), err, text[max(0, len(text)-500):])
	}
	return out.String(), nil
}

// node is a Caddy that receives the requests of a measurement.
type node struct {
	url    string
	client *http.Client
}

func newNode(url string) *node {
	return &node{url, &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: callers}}}
}

// node.ask sends a request as a customer, and returns the status and the limit of the answer.
func (n *node) ask(user string) (status int, limit string, err error) {
	request, err := http.NewRequest(http.MethodGet, n.url, nil)
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("X-User", user)
	answer, err := n.client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, answer.Header.Get("X-RateLimit-Limit"), err
}
