// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// ReadEntries returns the entries of a keys file, one for each hash, in the order of their names.
// The hashes are written as in a keys file. The error is [policy.Problems] if the content is wrong.
func ReadEntries(path string) ([]Entry, error) {
	format, ok := syntax.FormatOf(path)
	if !ok {
		return nil, fmt.Errorf("keys file %q: the extension must be .yaml, .yml, .toml or .json", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, syntax.SizeMax+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > syntax.SizeMax:
		return nil, fmt.Errorf("keys file %q is larger than %d bytes: spread the keys over several files", path, syntax.SizeMax)
	}
	table, err := readKeys(filepath.Base(path), format, data)
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, 0, len(table.byHash))
	for hash, key := range table.byHash {
		entries = append(entries, entryOf(hash, key))
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Hash, b.Hash))
	})
	return entries, nil
}

// entryOf returns the entry of a key.
func entryOf(hash [32]byte, k *Key) Entry {
	id := &k.Identity
	return Entry{ID: id.ID, Hash: hashPrefix + hex.EncodeToString(hash[:]), User: id.User, Tenant: id.Tenant, Tier: id.Tier,
		Limits: textsOf(id.Overrides), NotBefore: timeOf(k.NotBefore), Expires: timeOf(k.Expires), Revoked: k.Revoked,
		Inactive: k.Inactive, Reason: k.Reason}
}

// timeOf returns an instant, or the zero time for 0.
func timeOf(m counter.Micros) time.Time {
	if m == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(m)).UTC()
}

// textsOf returns limits in the form of a keys file.
func textsOf(o *policy.Overrides) map[string][]string {
	var byRule map[string][]string
	for _, rule := range o.Rules() {
		set, _ := o.Of(rule)
		texts := []string{policy.Unlimited}
		if !set.Unlimited {
			texts = texts[:0]
			for i := range set.Limits {
				texts = append(texts, set.Limits[i].String())
			}
		}
		if byRule == nil {
			byRule = make(map[string][]string)
		}
		byRule[rule] = texts
	}
	return byRule
}

// Digits returns the 64 hexadecimal digits of a hash in the form of a keys file.
func Digits(hash string) string { return strings.TrimPrefix(hash, hashPrefix) }
