// SPDX-License-Identifier: Apache-2.0

package redispolicy

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock/penstock/internal/published/follow"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// readTime bounds how long one read may take.
const readTime = 2 * time.Second

// Origin reads the text of one policy from Redis. It implements [follow.Origin].
type Origin struct {
	Store  *redisstore.Store
	Policy string
}

var _ follow.Origin = (*Origin)(nil)

// String implements [follow.Origin].
func (o *Origin) String() string { return "redis:" + o.Policy }

// Read implements [follow.Origin].
func (o *Origin) Read(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	text, err := Read(ctx, o.Store, o.Policy)
	switch {
	case err != nil:
		return nil, &follow.AwayError{Err: fmt.Errorf("redis did not answer for the policy: %w", err)}
	case text == nil:
		return nil, follow.ErrNone
	}
	return text, nil
}

// Listen implements [follow.Origin]. It also calls changed when the subscription begins.
func (o *Origin) Listen(ctx context.Context, changed func()) {
	_ = o.Store.Listen(ctx, keyOf(o.Policy), channel, changed, func(name string) {
		if name == o.Policy {
			changed()
		}
	})
}
