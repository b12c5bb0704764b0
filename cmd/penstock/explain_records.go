// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/policyfile"
)

// question.records returns the source of the records of clients and keys in Redis. The source is
// nil if the policy needs no records, or if no Redis is named. The result unread is true if the
// policy needs records but no Redis is named.
func (q *question) records(d *policyfile.Document, store *lookedAt) (source directory.Source, unread bool) {
	needed := d.Directory || d.KeysInDirectory()
	if !needed || store.redis == nil {
		return nil, needed
	}
	return redisdir.New(store.redis), false
}
