// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policy"
	"github.com/penstock/penstock/internal/tally"
)

// enforced is a policy in force. While it is, an edited file may replace its edition: a request is decided by the one it
// finds. Safe for concurrent use.
type enforced struct {
	current atomic.Pointer[edition]
}

// edition is one version of a policy, with its counters of outcomes. It does not change.
type edition struct {
	document    *policy.Document
	ruleset     *core.Ruleset
	outcomes    *tally.Rules
	credentials *tally.Credentials
	verifiers   *verifiers // of its credentials; closed when it is in force no longer
}

func newEnforced(first *edition) *enforced {
	e := new(enforced)
	e.current.Store(first)
	return e
}

func newEdition(d *policy.Document, rs *core.Ruleset, v *verifiers) *edition {
	return &edition{document: d, ruleset: rs, outcomes: common.Rules(d.Name, rs), credentials: common.CredentialsOf(d, rs), verifiers: v}
}

// warn says once, when the edition comes into force, what is allowed but unwise.
func (e *edition) warn(logger *zap.Logger) {
	logger = logger.With(zap.String("policy", e.document.Name))
	e.document.Warn(func(line string) { logger.Warn(line) })
}
