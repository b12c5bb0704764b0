// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/ledger"
)

// adopt adds what was changed by SQL to the audit trail, which the next step publishes.
func (l *lockedPublisher) adopt(ctx context.Context) error {
	for {
		step, cancel := context.WithTimeout(ctx, stepTime)
		more, err := l.Ledger.AdoptEdits(step)
		cancel()
		if err != nil || !more {
			return err
		}
	}
}

// judge records the reason why the rows of a client or a key are not published, or that they are
// valid again if the reason is "".
func (l *lockedPublisher) judge(ctx context.Context, name policy.ClientName, problem string) error {
	if l.invalid == nil {
		var err error
		if l.invalid, err = ledger.UnpublishedNames(ctx, l.c); err != nil {
			return err
		}
	}
	if l.invalid[name] == problem {
		return nil
	}
	if err := ledger.SetUnpublished(ctx, l.c, name, problem); err != nil {
		return err
	}
	if l.invalid[name] = problem; problem == "" {
		delete(l.invalid, name)
		l.Logger.Info("rows that were not valid are published", "client", name.String())
		return nil
	}
	l.Logger.Warn("the rows of a client or a key are not valid and are not published; the record in Redis stays", "client", name.String(), "problem", problem)
	return nil
}
