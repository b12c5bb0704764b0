// SPDX-License-Identifier: Apache-2.0

package core

// AppendCompact appends the identity in its compact form, which [ReadIdentity] reads.
func (id *Identity) AppendCompact(dst []byte) []byte {
	c := coder{data: dst}
	own := *id
	var sets map[string]LimitSet
	if id.Overrides != nil {
		sets = id.Overrides.sets
	}
	c.identity(&own, &sets)
	return c.data
}

// ReadIdentity reads what [Identity.AppendCompact] wrote. The identity shares no memory with data. The error says that data
// is something else, or that its limits could not be a client's own.
func ReadIdentity(data []byte) (id Identity, err error) {
	c := coder{data: data, reading: true}
	var sets map[string]LimitSet
	c.identity(&id, &sets)
	if c.broken || len(c.data) > 0 {
		return Identity{}, errCompact
	}
	if id.Overrides, err = NewOverrides(sets); err != nil {
		return Identity{}, err
	}
	return id, nil
}

func (c *coder) identity(id *Identity, overrides *map[string]LimitSet) {
	c.text(&id.Kind)
	c.text(&id.ID)
	c.text(&id.User)
	c.text(&id.APIKey)
	c.text(&id.Tier)
	c.text(&id.Tenant)
	c.tiers(overrides)
}
