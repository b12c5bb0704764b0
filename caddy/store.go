// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"

	"github.com/penstock/penstock/internal/leasestore"
	"github.com/penstock/penstock/internal/memstore"
	"github.com/penstock/penstock/internal/redisstore"
)

// The types of stores.
const (
	storeMemory = "memory"
	storeRedis  = "redis"
)

// Store says where counters are kept. The fields beside `type`, `counters_max` and `bytes_max` are for `redis`. Values may hold
// placeholders such as `{env.REDIS_PASSWORD}`, which are replaced when the configuration is loaded.
type Store struct {
	// Where: `memory` (the default) counts in this process, `redis` counts for every process that uses the same Redis and
	// the same name.
	Type string `json:"type,omitempty"`

	// For `memory`: how many counters to hold at most. Beyond it, newcomers are counted together, so that nobody gets a
	// fresh allowance. Default: 1048576, about 100 MB.
	CountersMax int `json:"counters_max,omitempty"`

	// For `memory`: how many bytes the counters take at most, 16777216 or more. A counter takes 100 bytes if its client's
	// name has 8 and up to 1,050 if it has 255. Beyond it newcomers are counted together too. Default: 256 for each of
	// `counters_max`, and 268435456 at least.
	BytesMax int `json:"bytes_max,omitempty"`

	// The server: `redis://user:password@host:6379/0`, `rediss://` for TLS, or `unix:///path/to/socket?db=0`. Required,
	// unless there are addrs. Its user, password and TLS hold for every server of a cluster, and for the master that
	// sentinels name; TLS for the sentinels as well.
	URL string `json:"url,omitempty"`

	// How servers stand together: `single` (the default), `sentinel`, `cluster`, or `ring`: independent servers, each with its
	// share of the counters. Counters are read and charged on masters alone, never on replicas.
	Mode string `json:"mode,omitempty"`

	// The sentinels, some servers of the cluster, or all of the ring, as `host:port`, beside the one of the URL if there is one.
	// In a ring every node must write them alike, in any order.
	Addrs []string `json:"addrs,omitempty"`

	// The name by which sentinels know the master. Required with `sentinel`.
	Master string `json:"master,omitempty"`

	// The user of the sentinels. Default: they are asked without one.
	SentinelUsername string `json:"sentinel_username,omitempty"`

	// The password of the sentinels: write `{env.NAME}`, or use sentinel_password_file.
	SentinelPassword string `json:"sentinel_password,omitempty"`

	// A file that holds the password of the sentinels. It is read when the configuration is loaded.
	SentinelPasswordFile string `json:"sentinel_password_file,omitempty"`

	// The user, instead of the one in the URL.
	Username string `json:"username,omitempty"`

	// The password, instead of the one in the URL. Caddy shows its configuration to whoever can reach its admin endpoint:
	// write `{env.NAME}` here, or use password_file.
	Password string `json:"password,omitempty"`

	// A file that holds the password. It is read when the configuration is loaded.
	PasswordFile string `json:"password_file,omitempty"`

	// A PEM file with the certificates that the server's must descend from. Default: those of the system.
	CA string `json:"ca,omitempty"`

	// A PEM file with the client's certificate. It needs key.
	Cert string `json:"cert,omitempty"`

	// A PEM file with the client's key. It needs cert.
	Key string `json:"key,omitempty"`

	// The name that the server's certificate must have. Default: the host of the URL.
	ServerName string `json:"server_name,omitempty"`

	// How long a check may take before on_error decides: 1ms to 10s. Default: 50ms.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How many checks may wait at once; one more is decided by on_error. Default: 8192.
	QueueMax int `json:"queue_max,omitempty"`

	// Whether a refusal is remembered, for as long as it holds and a second at most, so that a client over its limit
	// costs the server nothing. What other proxies do for a client, such as a reset, is felt here within that second.
	// Default: true.
	RememberDenials *bool `json:"remember_denials,omitempty"`
}

// shared reports whether other processes count in the same store.
func (s *Store) shared() bool { return s.Type == storeRedis }

// resolve returns the store with defaults and placeholders filled in. The error lists everything that is wrong.
func (s *Store) resolve() (Store, error) {
	resolved := *s
	if resolved.Type == "" {
		resolved.Type = storeMemory
	}
	problems := resolved.misplaced()
	fill := func(name string, value *string) {
		text, err := fillIn(*value, name == "url")
		if err != nil {
			problems = append(problems, fmt.Errorf("store %s: %s: %w; set the variable, or write the value", resolved.Type,
				name, err))
			return
		}
		*value = text
	}
	for name, value := range resolved.texts() {
		fill(name, value)
	}
	resolved.Addrs = slices.Clone(s.Addrs)
	for i := range resolved.Addrs {
		fill("addrs", &resolved.Addrs[i])
	}
	return resolved, errors.Join(problems...)
}

// texts are the words that are texts, by name.
func (s *Store) texts() map[string]*string {
	return map[string]*string{"url": &s.URL, "username": &s.Username, "password": &s.Password, "password_file": &s.PasswordFile,
		"ca": &s.CA, "cert": &s.Cert, "key": &s.Key, "server_name": &s.ServerName, "mode": &s.Mode, "master": &s.Master,
		"sentinel_username": &s.SentinelUsername, "sentinel_password": &s.SentinelPassword,
		"sentinel_password_file": &s.SentinelPasswordFile}
}

// fillIn replaces placeholders. An empty secret would be no secret, so a variable that is not set is an error and not an
// empty word. In a URL, what stands before the host is escaped: passwords hold any character.
func fillIn(text string, isURL bool) (string, error) {
	if !strings.Contains(text, "{") {
		return text, nil
	}
	replacer := caddy.NewReplacer()
	if _, err := replacer.ReplaceOrErr(text, true, true); err != nil {
		return "", err
	}
	at := strings.LastIndexByte(text, '@')
	if !isURL || at < 0 {
		return replacer.ReplaceAll(text, ""), nil
	}
	user, err := replacer.ReplaceFunc(text[:at], func(_ string, value any) (any, error) {
		return strings.ReplaceAll(url.QueryEscape(caddy.ToString(value)), "+", "%20"), nil
	})
	return user + replacer.ReplaceAll(text[at:], ""), err
}

// misplaced returns what does not belong to the store's type.
func (s *Store) misplaced() []error {
	var problems []error
	switch s.Type {
	case storeMemory:
		rest := *s
		rest.Type, rest.CountersMax, rest.BytesMax = "", 0, 0
		if !reflect.ValueOf(rest).IsZero() {
			problems = append(problems, errors.New("store memory: only counters_max and bytes_max can stand here; the other "+
				"words are those of \"store redis URL\""))
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
			problems = append(problems, errors.New("store redis: the URL is missing; write store redis redis://localhost:6379"))
		}
		if s.CountersMax != 0 || s.BytesMax != 0 {
			problems = append(problems, errors.New("store redis: counters_max and bytes_max belong to store memory; Redis is "+
				"bounded by its own maxmemory"))
		}
	default:
		// What stands here may be a URL with a password, so it is not repeated.
		problems = append(problems, errors.New("the store's type is neither memory nor redis; write store memory, or store "+
			"redis redis://localhost:6379"))
	}
	return problems
}

// literalSecret reports whether the configuration itself holds a password, which Caddy would show.
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

// open returns the key under which the store is in the pool, and the store: the one that is in use already if there is
// one with the same settings, and the same in its files. The caller gives the key back to the pool when it is done.
func (s *Store) open() (string, *pooledStore, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", nil, fmt.Errorf("store %s: %w", s.Type, err)
	}
	key := string(text) + s.contents()
	value, _, err := stores.LoadOrNew(key, func() (caddy.Destructor, error) {
		if s.shared() {
			return s.openRedis()
		}
		return s.openMemory()
	})
	if err != nil {
		return "", nil, err
	}
	return key, value.(*pooledStore), nil
}

// contents returns a hash of what is in the files that the store's words name, so that a password or a certificate that was
// exchanged in its file is another setting. One that cannot be read is told of by who opens the store.
func (s *Store) contents() string {
	all := sha256.New()
	for _, name := range []string{s.PasswordFile, s.SentinelPasswordFile, s.CA, s.Cert, s.Key} {
		var content []byte
		if name != "" {
			content, _ = os.ReadFile(name)
		}
		fmt.Fprintf(all, "%d ", len(content))
		all.Write(content)
	}
	return hex.EncodeToString(all.Sum(nil))
}

func (s *Store) openMemory() (caddy.Destructor, error) {
	store, err := memstore.New(memstore.Options{CountersMax: s.CountersMax, BytesMax: int64(s.BytesMax), Logger: storeLogger()})
	if err != nil {
		return nil, fmt.Errorf("store memory: %w", err)
	}
	return &pooledStore{Store: store, counters: store.Len, overflows: store.Overflows, close: store.Close,
		settler: newSettler(store)}, nil
}

func (s *Store) openRedis() (caddy.Destructor, error) {
	store, err := redisstore.New(redisstore.Options{
		URL: s.URL, Mode: s.Mode, Addrs: s.Addrs, Master: s.Master, SentinelUsername: s.SentinelUsername,
		SentinelPassword: s.SentinelPassword, SentinelPasswordFile: s.SentinelPasswordFile, Username: s.Username, Password: s.Password, PasswordFile: s.PasswordFile,
		CAFile: s.CA, CertFile: s.Cert, KeyFile: s.Key, ServerName: s.ServerName,
		Timeout: time.Duration(s.Timeout), QueueMax: s.QueueMax, Logger: storeLogger(),
	})
	if err != nil {
		return nil, err
	}
	leases, err := leasestore.New(store, s.leasing())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store redis: %w", err), store.Close())
	}
	memory, err := memstore.New(memstore.Options{Logger: storeLogger()})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store redis: %w", err), giveBack(leases), store.Close())
	}
	return &pooledStore{Store: standIn(leases, memory, store), leases: leases, redis: store, settler: newSettler(leases),
		close: func() error { return errors.Join(giveBack(leases), store.Close(), memory.Close()) }}, nil
}

// leasing returns what stands between the handlers and a store that others share.
func (s *Store) leasing() leasestore.Options {
	o := leasestore.Options{Timeout: time.Duration(s.Timeout)}
	if s.RememberDenials != nil && !*s.RememberDenials {
		o.DenialsMax = -1
	}
	return o
}

// giveBackTime is how long a store that is closed may take to give back what was taken in advance and is not used. What is
// not given back by then stands as charged.
const giveBackTime = 2 * time.Second

func giveBack(leases *leasestore.Store) error {
	ctx, cancel := context.WithTimeout(context.Background(), giveBackTime)
	defer cancel()
	return leases.Close(ctx)
}

// storeLogger returns a logger for something that outlives the configuration it was made in: it asks Caddy for the
// logger of the configuration that runs when there is something to say.
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

// WithGroup is not needed by the stores; their attributes stay at the top.
func (l currentLog) WithGroup(string) slog.Handler { return l }

// warnOfSecrets says once per load that the configuration shows a password.
func (s *Store) warnOfSecrets(logger *zap.Logger) {
	if s.literalSecret() {
		logger.Warn("the password of the store is in the configuration, which Caddy shows to whoever can reach its admin "+
			"endpoint; write {env.NAME} instead, or use password_file", zap.String("store", s.Type))
	}
}
