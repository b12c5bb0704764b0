// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"

	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/status"
	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// Store types.
const (
	storeMemory = store.TypeMemory
	storeRedis  = store.TypeRedis
)

// Store configures where counters are kept. All fields except `type`, `counters_max` and
// `bytes_max` apply to `redis` only. Values may contain placeholders such as
// `{env.REDIS_PASSWORD}`, which are replaced when the configuration is loaded.
type Store struct {
	// The type: `memory` (the default) counts in this process. With `redis`, all processes that use
	// the same Redis and the same name share their counters.
	Type string `json:"type,omitempty"`

	// For `memory`: the maximum number of counters. Beyond it, new clients share counters, so that
	// no client gets a fresh allowance. Default: 1048576, about 100 MB.
	CountersMax int `json:"counters_max,omitempty"`

	// For `memory`: the maximum total size of the counters in bytes, at least 16777216. A counter
	// takes 100 bytes for a client name of 8 bytes, and up to 1,050 bytes for a name of 255. Beyond
	// the maximum, new clients share counters. Default: 256 bytes for each of `counters_max`, but
	// at least 268435456.
	BytesMax int `json:"bytes_max,omitempty"`

	// The server: `redis://user:password@host:6379/0`, `rediss://` for TLS, or
	// `unix:///path/to/socket?db=0`. Required unless addrs is set. The URL's user, password and TLS
	// apply to every server of a cluster and to the master that sentinels name. TLS applies to the
	// sentinels as well.
	URL string `json:"url,omitempty"`

	// The topology: `single` (the default), `sentinel`, `cluster`, or `ring`. A ring consists of
	// independent servers that divide the counters among themselves. Counters are read and charged
	// on masters only, never on replicas.
	Mode string `json:"mode,omitempty"`

	// The sentinels, some servers of the cluster, or all servers of the ring, as `host:port`. The
	// server in the URL, if any, is added to them. All nodes must list the servers of a ring with
	// the same spelling, in any order.
	Addrs []string `json:"addrs,omitempty"`

	// While the servers of a ring are being changed: the servers before the change. A counter that
	// moves is charged on both of its servers.
	AddrsBefore []string `json:"addrs_before,omitempty"`

	// The name of the master in the sentinels' configuration. Required with `sentinel`.
	Master string `json:"master,omitempty"`

	// The user name for the sentinels. Default: none.
	SentinelUsername string `json:"sentinel_username,omitempty"`

	// The password for the sentinels. Write `{env.NAME}`, or use sentinel_password_file.
	SentinelPassword string `json:"sentinel_password,omitempty"`

	// A file with the password for the sentinels. SentinelPasswordFile is read when the
	// configuration is loaded.
	SentinelPasswordFile string `json:"sentinel_password_file,omitempty"`

	// The user name. Username overrides the user name in the URL.
	Username string `json:"username,omitempty"`

	// The password. Password overrides the one in the URL. Caddy shows its configuration to anyone
	// with access to its admin endpoint, so write `{env.NAME}` here or use password_file.
	Password string `json:"password,omitempty"`

	// A file with the password. PasswordFile is read when the configuration is loaded.
	PasswordFile string `json:"password_file,omitempty"`

	// A PEM file with the CA certificates that must have issued the server's certificate. Default:
	// the certificates of the system.
	CA string `json:"ca,omitempty"`

	// A PEM file with the client certificate. Requires key.
	Cert string `json:"cert,omitempty"`

	// A PEM file with the key of the client certificate. Requires cert.
	Key string `json:"key,omitempty"`

	// The name that the server certificate must be valid for. Default: the host of the URL.
	ServerName string `json:"server_name,omitempty"`

	// The time within which Redis should answer a check: 1ms to 10s. A request waits longer for a
	// late answer, up to half a second. While Redis does not answer, or is always late, on_error
	// decides. Default: 50ms.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// The maximum number of checks that wait to be sent to one server. Requests beyond it are
	// answered 503. Default: 16384.
	QueueMax int `json:"queue_max,omitempty"`

	// Whether to cache a denial while it holds, for one second at most. A client over its limit
	// then costs the server nothing. A change that another process makes, such as a reset, takes
	// effect here within that second. Default: true.
	RememberDenials *bool `json:"remember_denials,omitempty"`
}

// isShared reports whether several processes count in the store.
func (s *Store) isShared() bool { return s.Type == storeRedis }

// storeSpelling is how a Caddyfile spells a store.
var storeSpelling = store.Spelling{Redis: "store redis URL", URL: "store redis redis://localhost:6379",
	Types: "store memory, or store redis redis://localhost:6379"}

// Store.settings returns the store's configuration as settings. It does not replace placeholders in
// them.
func (s *Store) settings() *store.Settings {
	return &store.Settings{Type: cmp.Or(s.Type, storeMemory), CountersMax: s.CountersMax, BytesMax: s.BytesMax,
		RememberDenials: s.RememberDenials,
		Redis: redisstore.Options{
			URL: s.URL, Mode: s.Mode, Addrs: s.Addrs, AddrsBefore: s.AddrsBefore, Master: s.Master,
			SentinelUsername: s.SentinelUsername, SentinelPassword: s.SentinelPassword,
			SentinelPasswordFile: s.SentinelPasswordFile,
			Username:             s.Username, Password: s.Password, PasswordFile: s.PasswordFile,
			CAFile: s.CA, CertFile: s.Cert, KeyFile: s.Key, ServerName: s.ServerName,
			Timeout: time.Duration(s.Timeout), QueueMax: s.QueueMax,
		}}
}

// misplacedSettings returns an error for each setting that is invalid or does not apply to the
// store's type.
func (s *Store) misplacedSettings() []error { return s.settings().Check(storeSpelling) }

// Store.resolve returns the settings of the store with their placeholders replaced. The error
// lists all problems.
func (s *Store) resolve() (*store.Settings, error) {
	settings := s.settings()
	return settings, errors.Join(append(s.misplacedSettings(), settings.Fill(fillIn)...)...)
}

// Store.texts returns pointers to the string settings, by name.
func (s *Store) texts() map[string]*string {
	return map[string]*string{"url": &s.URL, "username": &s.Username, "password": &s.Password, "password_file": &s.PasswordFile,
		"ca": &s.CA, "cert": &s.Cert, "key": &s.Key, "server_name": &s.ServerName, "mode": &s.Mode, "master": &s.Master,
		"sentinel_username": &s.SentinelUsername, "sentinel_password": &s.SentinelPassword,
		"sentinel_password_file": &s.SentinelPasswordFile}
}

// fillIn replaces placeholders, and escapes their values unless escape is nil. A variable that is
// not set is an error, because an empty password would protect nothing.
func fillIn(text string, escape func(string) string) (string, error) {
	if !strings.Contains(text, "{") {
		return text, nil
	}
	replacer := caddy.NewReplacer()
	if _, err := replacer.ReplaceOrErr(text, true, true); err != nil {
		return "", fmt.Errorf("%w; set the variable, or write the value", err)
	}
	if escape == nil {
		return replacer.ReplaceAll(text, ""), nil
	}
	return replacer.ReplaceFunc(text, func(_ string, value any) (any, error) { return escape(caddy.ToString(value)), nil })
}

// literalSecret reports whether the configuration contains a literal password, which Caddy would
// show.
func (s *Store) literalSecret() bool {
	for _, password := range []string{s.Password, s.SentinelPassword} {
		if password != "" && !strings.Contains(password, "{") {
			return true
		}
	}
	if parsed, err := url.Parse(s.URL); err == nil && parsed.User != nil {
		password, given := parsed.User.Password()
		return given && password != "" && !strings.Contains(password, "{")
	}
	return false
}

// openStore returns a store with the settings, and its key in the pool. If a store with the same
// settings and file contents is in use, openStore returns that store. The caller deletes the key
// from the pool when it is done.
func openStore(s *store.Settings, d *Directory) (string, *pooledStore, error) {
	key, err := s.Key()
	if err != nil {
		return "", nil, err
	}
	if d != nil {
		key += fmt.Sprintf(" with a directory %+v", *d)
	}
	value, _, err := stores.LoadOrNew(key, func() (caddy.Destructor, error) { return buildStore(s, d) })
	if err != nil {
		return "", nil, err
	}
	return key, value.(*pooledStore), nil
}

// buildStore opens a new store with the settings.
func buildStore(s *store.Settings, d *Directory) (*pooledStore, error) {
	outageLog := enforce.NewOutages(storeLogger())
	options := s.Options()
	options.Logger, options.Pool = storeLogger(), &outages
	options.Failed = func(err error) {
		common.StoreFailed(err)
		outageLog.Failed(err)
	}
	opened, err := store.Open(options)
	if err != nil {
		return nil, err
	}
	enforcer := enforce.New(opened.Requests, common)
	enforcer.WaitForLoans(opened.Loans)
	enforcer.Log(outageLog)
	enforcer.Report(eventLog)
	enforcer.CountDenials(topDenied)
	enforcer.Measure(usageMeter)
	pooled := &pooledStore{Store: opened.Requests, opened: opened, close: opened.Close, enforcer: enforcer, statuses: status.NewBounds(),
		settler: newSettler(opened.Corrections), inflating: &inflating, exiting: caddy.Exiting}
	if d == nil {
		return pooled, nil
	}
	if pooled.directory, err = d.open(opened, s.Redis.Timeout); err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	pooled.close = func() error { return errors.Join(pooled.directory.Close(), opened.Close()) }
	return pooled, nil
}

// storeLogger returns a logger for objects that outlive their configuration. The result looks up
// the logger of the running configuration for each message.
func storeLogger() *slog.Logger { return slog.New(currentLog{}) }

type currentLog struct{ attrs []slog.Attr }

func (currentLog) now() slog.Handler {
	return zapslog.NewHandler(caddy.Log().Named("penstock").Core(), zapslog.WithName("penstock"),
		zapslog.AddStacktraceAt(slog.Level(127)))
}

func (currentLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (l currentLog) Handle(ctx context.Context, record slog.Record) error {
	record.AddAttrs(l.attrs...)
	return l.now().Handle(ctx, record)
}

func (l currentLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return currentLog{attrs: append(l.attrs[:len(l.attrs):len(l.attrs)], attrs...)}
}

// WithGroup ignores the group, because the stores use none.
func (l currentLog) WithGroup(string) slog.Handler { return l }

// warnOfSecrets warns once per load if the configuration contains a literal password.
func (s *Store) warnOfSecrets(logger *zap.Logger) {
	if s.literalSecret() {
		logger.Warn("the password of the store is in the configuration, which Caddy shows to everyone that can reach its admin "+
			"endpoint; write {env.NAME} instead, or use password_file", zap.String("store", s.Type))
	}
}
