// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
)

// foundRecord is a record that was read for an explanation.
type foundRecord struct {
	Name   string          `json:"name" doc:"KIND:ID of the client or network, or ~key: and the SHA-256 of the API key"`
	Record json.RawMessage `json:"record"`
}

// recordSource reads records from the tables, for one request. Of the networks, it reads only those
// that contain an address of the request.
type recordSource struct {
	directory.Memory
	ledger    *ledger.Ledger
	addresses []netip.Addr

	mu     sync.Mutex
	found  map[policy.ClientName][]byte
	failed error // the error of the last read that failed
}

// recordSource.open returns a directory over the source. The caller closes the directory.
func (s *recordSource) open() (*directory.Directory, error) {
	return directory.Open(directory.Options{Source: s, Timeout: recordsWait, Logger: slog.New(slog.DiscardHandler)})
}

// recordSource.read returns the records of names, and keeps them for the method list.
func (s *recordSource) read(ctx context.Context, names []policy.ClientName) (map[policy.ClientName][]byte, error) {
	found, err := s.ledger.Records(ctx, names)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found == nil {
		s.found = map[policy.ClientName][]byte{}
	}
	maps.Copy(s.found, found)
	if err != nil {
		s.failed = err
	}
	return found, err
}

// recordSource.failure returns the error of the last read that failed, or nil. After a failed read,
// a directory continues without records.
func (s *recordSource) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Read implements [directory.Source].
func (s *recordSource) Read(ctx context.Context, names []policy.ClientName, texts [][]byte) error {
	found, err := s.read(ctx, names)
	for i, name := range names {
		texts[i] = found[name]
	}
	return err
}

// Networks implements [directory.Source].
func (s *recordSource) Networks(ctx context.Context) (map[string][]byte, error) {
	var names []policy.ClientName
	for _, addr := range s.addresses {
		names = append(names, directory.NetworksOf(addr)...)
	}
	if len(names) == 0 {
		return nil, nil
	}
	found, err := s.read(ctx, names)
	texts := make(map[string][]byte, len(found))
	for name, text := range found {
		texts[name.ID] = text
	}
	return texts, err
}

// KeyHashes implements [directory.Source].
func (s *recordSource) KeyHashes(ctx context.Context, name string) ([]string, error) {
	if len(checkStorable("client", name)) > 0 { // no key has such a name
		return nil, nil
	}
	keys, err := s.ledger.KeysNamed(ctx, name)
	if err != nil && !errors.Is(err, ledger.ErrNone) {
		s.mu.Lock()
		s.failed = err
		s.mu.Unlock()
	}
	var hashes []string
	for i := range keys {
		hashes = append(hashes, keys[i].Hash)
	}
	return hashes, err
}

// recordSource.list returns the records that were found, sorted by name.
func (s *recordSource) list() []foundRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []foundRecord{}
	for name, text := range s.found {
		if text != nil {
			all = append(all, foundRecord{name.String(), text})
		}
	}
	slices.SortFunc(all, func(a, b foundRecord) int { return strings.Compare(a.Name, b.Name) })
	return all
}
