// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store"
)

// Directory configures the directory of clients: tiers, limits, blocks and exemptions that
// operators set (`penstock client …`) while the server runs. The records are kept in the store:
// in Redis, where all its processes share them, or in the memory of this process. A client's
// credential and the policy take precedence over its record, except that a block in the record
// always applies.
type Directory struct {
	// The maximum number of clients that are remembered, with or without a record. The same number
	// of API keys is remembered in addition. Clients beyond this number are read from Redis again
	// when they return. A client takes about 180 bytes without a record, and at least 370 with one.
	// Default: 65536.
	ClientsMax int `json:"clients_max,omitempty"`
}

// Directory.check returns an error if the settings are not valid.
func (d *Directory) check() error {
	if d.ClientsMax < 0 {
		return fmt.Errorf("directory: clients_max %d is negative; leave it out for the default", d.ClientsMax)
	}
	return nil
}

// Directory.open opens the directory over a store.
func (d *Directory) open(opened *store.Store, timeout time.Duration) (*directory.Directory, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	var source directory.Source = new(directory.Memory)
	if opened.Redis != nil {
		source = redisdir.New(opened.Redis)
	}
	return directory.Open(directory.Options{Source: source, ClientsMax: d.ClientsMax, Timeout: timeout, Logger: storeLogger(),
		KeyUsed: usageMeter.NoteKey})
}

// readDirectory reads "directory" with an optional block.
func (b *block) readDirectory() {
	if b.directory != nil {
		b.problem("directory", "is listed twice", "keep one")
		b.skip()
		return
	}
	b.directory = new(Directory)
	if len(b.d.RemainingArgs()) > 0 {
		b.problem("directory", "takes no arguments", "write directory alone, or directory { clients_max 100000 }")
	}
	for nesting := b.d.Nesting(); b.d.NextBlock(nesting); {
		word, args := b.d.Val(), b.d.RemainingArgs()
		n := 0
		if len(args) == 1 {
			n, _ = strconv.Atoi(args[0])
		}
		switch {
		case word != "clients_max":
			b.problem("directory."+word, "is an unknown field", "the only field is clients_max")
		case b.directory.ClientsMax != 0:
			b.problem("directory.clients_max", "is listed twice", "keep one")
		case n < 1:
			b.problem("directory.clients_max", fmt.Sprintf("%q is not a number above 0", args), "write clients_max 100000")
		}
		b.directory.ClientsMax = n
		b.noBlock(word)
	}
}

// applyDirectory applies the app's directory to a policy, or rejects a policy that needs one.
func (a *App) applyDirectory(d *policyfile.Document) error {
	if d.Directory && a.Directory == nil {
		return fmt.Errorf("%s: directory: is true, and this Caddy has no directory of clients; write directory in the penstock block "+
			"of the global options, or leave it out", cmp.Or(d.Place("directory"), "the policy"))
	}
	if d.KeysInDirectory() && a.Directory == nil {
		return fmt.Errorf("%s: identify: keys: directory needs a directory, and this Caddy has none; write directory in the penstock "+
			"block of the global options, or name a keys_file", cmp.Or(d.Place("identify"), "the policy"))
	}
	d.Directory = a.Directory != nil
	return nil
}

// useDirectory makes a plan look up clients, if there is a directory.
func useDirectory(p *core.Plan, d *directory.Directory) {
	if d != nil {
		p.UseDirectory(d)
	}
}

// scratchSpace.resolve makes the directory read the clients that a plan of the request does not
// know, and plans the request again.
func (s *scratchSpace) resolve(p *core.Plan, d *directory.Directory) {
	if len(p.Unresolved()) > 0 {
		d.Resolve(context.Background(), p, func() { s.addTo(p) })
	}
}

// addTo adds the request to a plan. For a client that has just become known, another version of a
// policy may apply.
func (s *scratchSpace) addTo(p *core.Plan) {
	for i, v := range s.versions {
		s.versions[i] = v.Add(p, &s.attrs)
	}
}
