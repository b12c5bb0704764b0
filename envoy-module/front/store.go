// SPDX-License-Identifier: Apache-2.0

package front

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// Store configures where counters are kept. Its fields have the same names as in Caddy. A text may
// contain {env.NAME}, which is replaced by the value of an environment variable of Envoy.
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

// storeRedis is the type of a store that several processes share.
const storeRedis = store.TypeRedis

// spelling says how the filter's configuration spells a store, for use in messages.
var spelling = store.Spelling{Redis: "type: redis", URL: "url: redis://localhost:6379", Types: "type: memory, or type: redis"}

// Store.settings returns the settings of the store, without defaults.
func (s *Store) settings() (*store.Settings, error) {
	settings := &store.Settings{Type: s.Type, CountersMax: s.CountersMax, BytesMax: s.BytesMax, RememberDenials: s.RememberDenials,
		Redis: redisstore.Options{URL: s.URL, Mode: s.Mode, Addrs: s.Addrs, AddrsBefore: s.AddrsBefore, Master: s.Master,
			SentinelUsername: s.SentinelUsername, SentinelPassword: s.SentinelPassword, SentinelPasswordFile: s.SentinelPasswordFile,
			Username: s.Username, Password: s.Password, PasswordFile: s.PasswordFile,
			CAFile: s.CA, CertFile: s.Cert, KeyFile: s.Key, ServerName: s.ServerName, QueueMax: s.QueueMax}}
	if s.Timeout == "" {
		return settings, nil
	}
	var err error
	if settings.Redis.Timeout, err = policyfile.Span(s.Timeout); err != nil {
		err = fmt.Errorf("store: timeout %q: %w", s.Timeout, err)
	}
	return settings, err
}

// Store.check returns an error for each setting that is invalid or does not apply to the store's
// type.
func (s *Store) check() []error {
	settings, err := s.settings()
	problems := settings.Check(spelling)
	if err != nil {
		problems = append(problems, err)
	}
	return problems
}

// Store.resolve returns the settings of the store with the variables in their texts replaced.
func (s *Store) resolve() (*store.Settings, error) {
	settings, err := s.settings()
	problems := settings.Fill(fillIn)
	return settings, errors.Join(append(problems, err)...)
}

// Store.options returns the options of the store.
func (s *Store) options() (store.Options, error) {
	if s == nil {
		return store.Options{}, nil
	}
	settings, err := s.resolve()
	return settings.Options(), err
}

// storeKey returns a text that is the same for configurations that share a store. These have equal
// settings for the store and for the directory, and the files with passwords and certificates have
// not changed between them. Configurations without settings for a store share a store only with
// each other.
func (s *Settings) storeKey() (key string, err error) {
	if s.Store != nil {
		settings, err := s.Store.resolve()
		if err != nil {
			return "", err
		}
		if key, err = settings.Key(); err != nil {
			return "", err
		}
	}
	if s.Directory != nil {
		key += fmt.Sprintf(" with a directory %+v", *s.Directory)
	}
	return key, nil
}

// fillIn replaces each {env.NAME} in a text. fillIn escapes the values unless the argument escape
// is nil. A variable that is not set is an error, because an empty password would protect nothing.
func fillIn(text string, escape func(string) string) (string, error) {
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
		if escape != nil {
			value = escape(value)
		}
		filled.WriteString(value)
		text = after
	}
}

// Directory.open opens the directory that is kept in the given store.
func (d *Directory) open(p *Process, opened *store.Store, timeout time.Duration) (*directory.Directory, error) {
	var source directory.Source = new(directory.Memory)
	if opened.Redis != nil {
		source = redisdir.New(opened.Redis)
	}
	return directory.Open(directory.Options{Source: source, ClientsMax: d.ClientsMax, Timeout: timeout, Logger: p.logger,
		KeyUsed: p.reports.meter.NoteKey})
}
