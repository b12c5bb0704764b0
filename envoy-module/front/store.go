// SPDX-License-Identifier: Apache-2.0

package front

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// Store types.
const (
	storeMemory = "memory"
	storeRedis  = "redis"
)

// Store configures where counters are kept. Its fields are named as in Caddy's store. A text may
// contain {env.NAME}, which is replaced by an environment variable of Envoy.
type Store struct {
	Type                 string           `json:"type,omitempty"`
	CountersMax          int              `json:"counters_max,omitempty"`
	BytesMax             int              `json:"bytes_max,omitempty"`
	URL                  string           `json:"url,omitempty"`
	Mode                 string           `json:"mode,omitempty"`
	Addrs                policyfile.Words `json:"addrs,omitempty"`
	AddrsBefore          policyfile.Words `json:"addrs_before,omitempty"`
	Master               string           `json:"master,omitempty"`
	SentinelUsername     string           `json:"sentinel_username,omitempty"`
	SentinelPassword     string           `json:"sentinel_password,omitempty"`
	SentinelPasswordFile string           `json:"sentinel_password_file,omitempty"`
	Username             string           `json:"username,omitempty"`
	Password             string           `json:"password,omitempty"`
	PasswordFile         string           `json:"password_file,omitempty"`
	CA                   string           `json:"ca,omitempty"`
	Cert                 string           `json:"cert,omitempty"`
	Key                  string           `json:"key,omitempty"`
	ServerName           string           `json:"server_name,omitempty"`
	Timeout              string           `json:"timeout,omitempty"`
	QueueMax             int              `json:"queue_max,omitempty"`
	RememberDenials      *bool            `json:"remember_denials,omitempty"`
}

// Directory configures the directory of clients.
type Directory struct {
	// The maximum number of clients that are remembered. Default: 65536.
	ClientsMax int `json:"clients_max,omitempty"`
}

// check returns an error for each setting that is invalid or does not apply to the store's type.
func (s *Store) check() (problems []error) {
	switch s.Type {
	case "", storeMemory:
		rest := *s
		rest.Type, rest.CountersMax, rest.BytesMax = "", 0, 0
		if !reflect.ValueOf(rest).IsZero() {
			problems = append(problems, errors.New("store memory: it takes only counters_max and bytes_max; the other fields need "+
				"type: redis"))
		}
		if s.BytesMax != 0 && s.BytesMax < memstore.BytesMaxLeast {
			problems = append(problems, fmt.Errorf("store memory: bytes_max %d is too little; write %d or more, or leave it out "+
				"for the default", s.BytesMax, memstore.BytesMaxLeast))
		}
		if s.CountersMax < 0 {
			problems = append(problems, fmt.Errorf("store memory: counters_max %d is negative; leave it out for the default",
				s.CountersMax))
		}
	case storeRedis:
		if s.URL == "" && len(s.Addrs) == 0 {
			problems = append(problems, errors.New("store redis: url is missing; write url: redis://localhost:6379"))
		}
		if s.CountersMax != 0 || s.BytesMax != 0 {
			problems = append(problems, errors.New("store redis: counters_max and bytes_max belong to store memory; Redis is "+
				"bounded by its own maxmemory"))
		}
	default:
		// The type may be a URL with a password by mistake, so the message does not repeat it.
		problems = append(problems, errors.New("the store's type is neither memory nor redis; write type: redis"))
	}
	return problems
}

// options returns the options of the store.
func (s *Store) options() (o store.Options, err error) {
	if s == nil {
		return o, nil
	}
	o = store.Options{CountersMax: s.CountersMax, BytesMax: int64(s.BytesMax),
		ForgetDenials: s.RememberDenials != nil && !*s.RememberDenials}
	if s.Type != storeRedis {
		return o, nil
	}
	var problems []error
	text := func(field, value string) string {
		filled, err := fillIn(value)
		if err != nil {
			problems = append(problems, fmt.Errorf("store redis: %s: %w", field, err))
		}
		return filled
	}
	r := &redisstore.Options{URL: text("url", s.URL), Mode: s.Mode, Master: text("master", s.Master),
		SentinelUsername: text("sentinel_username", s.SentinelUsername), SentinelPassword: text("sentinel_password", s.SentinelPassword),
		SentinelPasswordFile: s.SentinelPasswordFile, Username: text("username", s.Username), Password: text("password", s.Password),
		PasswordFile: s.PasswordFile, CAFile: s.CA, CertFile: s.Cert, KeyFile: s.Key, ServerName: s.ServerName, QueueMax: s.QueueMax}
	for _, addr := range s.Addrs {
		r.Addrs = append(r.Addrs, text("addrs", addr))
	}
	for _, addr := range s.AddrsBefore {
		r.AddrsBefore = append(r.AddrsBefore, text("addrs_before", addr))
	}
	if s.Timeout != "" {
		if r.Timeout, err = policyfile.Span(s.Timeout); err != nil {
			problems = append(problems, fmt.Errorf("store redis: timeout %q: %w", s.Timeout, err))
		}
	}
	o.Redis = r
	return o, errors.Join(problems...)
}

// fillIn replaces each {env.NAME} in a text. A variable that is not set is an error, because an
// empty password would protect nothing.
func fillIn(text string) (string, error) {
	var filled strings.Builder
	for {
		before, rest, found := strings.Cut(text, "{env.")
		filled.WriteString(before)
		if !found {
			return filled.String(), nil
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			return "", errors.New("{env. has no closing brace: write {env.NAME}")
		}
		value := os.Getenv(name)
		if value == "" {
			return "", fmt.Errorf("environment variable %q is not set: set it for Envoy", name)
		}
		filled.WriteString(value)
		text = after
	}
}

// open opens the directory over a store.
func (d *Directory) open(p *Process, opened *store.Store, timeout time.Duration) (*directory.Directory, error) {
	var source directory.Source = new(directory.Memory)
	if opened.Redis != nil {
		source = redisdir.New(opened.Redis)
	}
	return directory.Open(directory.Options{Source: source, ClientsMax: d.ClientsMax, Timeout: timeout, Logger: p.logger})
}
