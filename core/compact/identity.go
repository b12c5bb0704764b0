// SPDX-License-Identifier: Apache-2.0

package compact

import (
	"github.com/penstock/penstock/core/internal/codec"
	"github.com/penstock/penstock/core/policy"
)

// AppendIdentity appends the identity in compact form.
func AppendIdentity(dst []byte, id *policy.Identity) []byte {
	c := codec.Coder{Data: dst}
	own := *id
	var sets map[string]policy.LimitSet
	if rules := id.Overrides.Rules(); len(rules) > 0 {
		sets = make(map[string]policy.LimitSet, len(rules))
		for _, rule := range rules {
			sets[rule], _ = id.Overrides.Of(rule)
		}
	}
	codeIdentity(&c, &own, &sets)
	return c.Data
}

// ReadIdentity decodes the output of [AppendIdentity]. The identity shares no memory with data.
// ReadIdentity returns an error if data is not in compact form or its limits are not valid for a
// client.
func ReadIdentity(data []byte) (id policy.Identity, err error) {
	c := codec.Coder{Data: data, Reading: true}
	var sets map[string]policy.LimitSet
	codeIdentity(&c, &id, &sets)
	if c.Broken || len(c.Data) > 0 {
		return policy.Identity{}, codec.ErrMalformed
	}
	if id.Overrides, err = policy.NewOverrides(sets); err != nil {
		return policy.Identity{}, err
	}
	return id, nil
}

func codeIdentity(c *codec.Coder, id *policy.Identity, overrides *map[string]policy.LimitSet) {
	c.Text(&id.Kind)
	c.Text(&id.ID)
	c.Text(&id.User)
	c.Text(&id.APIKey)
	c.Text(&id.Tier)
	c.Text(&id.Tenant)
	codeTiers(c, overrides)
}
