// SPDX-License-Identifier: Apache-2.0

package store

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// The types of a store.
const (
	TypeMemory = "memory" // counts in this process
	TypeRedis  = "redis"  // counts in Redis
)

// Settings are the settings of a store in the configuration of a front.
type Settings struct {
	Type                  string // TypeMemory or TypeRedis; "" means TypeMemory
	CountersMax, BytesMax int    // for TypeMemory
	RememberDenials       *bool  // for TypeRedis, like all fields below; nil means true
	Redis                 redisstore.Options
}

// Spelling is how the configuration of a front spells a store. Errors of [Settings.Check] use it.
type Spelling struct {
	Redis string // the spelling of a store in Redis
	URL   string // the URL of Redis
	Types string // the types of a store
}

// Check returns an error for each setting that is invalid or does not apply to the store's type.
func (s *Settings) Check(spelling Spelling) (problems []error) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	switch s.Type {
	case "", TypeMemory:
		if s.RememberDenials != nil || !s.Redis.IsZero() {
			problem("store memory: it takes only counters_max and bytes_max; the other fields need %s", spelling.Redis)
		}
		if s.BytesMax != 0 && s.BytesMax < memstore.BytesMaxLeast {
			problem("store memory: bytes_max %d is too little; write %d or more, or leave it out for the default", s.BytesMax,
				memstore.BytesMaxLeast)
		}
		if s.CountersMax < 0 {
			problem("store memory: counters_max %d is negative; leave it out for the default", s.CountersMax)
		}
	case TypeRedis:
		if s.Redis.URL == "" && len(s.Redis.Addrs) == 0 {
			problem("store redis: url is missing; write %s", spelling.URL)
		}
		if s.CountersMax != 0 || s.BytesMax != 0 {
			problem("store redis: counters_max and bytes_max belong to store memory; Redis is bounded by its own maxmemory")
		}
	default:
		// Operators sometimes write a URL with a password in place of the type, so the message does
		// not repeat the value.
		problem("the store's type is neither memory nor redis; write %s", spelling.Types)
	}
	return problems
}

// Fill replaces the placeholders in all texts. The function named replace returns a text in which
// each placeholder is replaced by its value. replace must pass each value through escape, unless
// escape is nil. If a placeholder has no value, replace must fail, because an empty password would
// protect nothing. Values that are inserted into the user and the password of the URL are escaped.
// The errors name the fields.
func (s *Settings) Fill(replace func(text string, escape func(string) string) (string, error)) (problems []error) {
	r := &s.Redis
	fill := func(field string, text *string) {
		filled, err := replace(*text, nil)
		if at := strings.LastIndexByte(*text, '@'); field == "url" && at >= 0 {
			var user, server string
			var errOfServer error
			user, err = replace((*text)[:at], escapeUserinfo)
			server, errOfServer = replace((*text)[at:], nil)
			filled, err = user+server, errors.Join(err, errOfServer)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("store %s: %s: %w", s.Type, field, err))
			return
		}
		*text = filled
	}
	for _, field := range [...]struct {
		name string
		text *string
	}{{"url", &r.URL}, {"mode", &r.Mode}, {"master", &r.Master}, {"username", &r.Username}, {"password", &r.Password},
		{"password_file", &r.PasswordFile}, {"sentinel_username", &r.SentinelUsername},
		{"sentinel_password", &r.SentinelPassword}, {"sentinel_password_file", &r.SentinelPasswordFile}, {"ca", &r.CAFile},
		{"cert", &r.CertFile}, {"key", &r.KeyFile}, {"server_name", &r.ServerName}} {
		fill(field.name, field.text)
	}
	r.Addrs, r.AddrsBefore = slices.Clone(r.Addrs), slices.Clone(r.AddrsBefore)
	for i := range r.Addrs {
		fill("addrs", &r.Addrs[i])
	}
	for i := range r.AddrsBefore {
		fill("addrs_before", &r.AddrsBefore[i])
	}
	return problems
}

// escapeUserinfo escapes a user or a password for a URL.
func escapeUserinfo(value string) string {
	return strings.ReplaceAll(url.QueryEscape(value), "+", "%20")
}

// Options returns the options of the store. The options share nothing with the settings.
func (s *Settings) Options() Options {
	o := Options{CountersMax: s.CountersMax, BytesMax: int64(s.BytesMax),
		ForgetDenials: s.RememberDenials != nil && !*s.RememberDenials}
	if s.Type == TypeRedis {
		r := s.Redis
		o.Redis = &r
	}
	return o
}

// Key returns a text that is the same for equal settings. Configurations whose settings have equal
// keys can share a store. Key covers the contents of the files that the settings name: a replaced
// password or certificate changes the key. A file that cannot be read is reported when the store
// opens.
func (s *Settings) Key() (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("store %s: %w", s.Type, err)
	}
	files := sha256.New()
	r := &s.Redis
	for _, name := range [...]string{r.PasswordFile, r.SentinelPasswordFile, r.CAFile, r.CertFile, r.KeyFile} {
		var content []byte
		if name != "" {
			content, _ = os.ReadFile(name)
		}
		fmt.Fprintf(files, "%d ", len(content))
		files.Write(content)
	}
	return fmt.Sprintf("%s%x", text, files.Sum(nil)), nil
}
