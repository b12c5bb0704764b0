// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"

	"go.uber.org/zap"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policy"
)

// panicking is a store that does nothing else.
type panicking struct{}

func (panicking) Take(context.Context, []core.Check, []core.Result) error { panic("the store") }

func editionOf(t *testing.T, text string) *enforced {
	t.Helper()
	d, err := policy.Decode("policy.yaml", policy.YAML, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	rs, err := d.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return newEnforced(newEdition(d, rs, new(verifiers)))
}

// TestAPanicInATrialEndsTheTrial: nobody waits for it, and in its goroutine it would end the process.
func TestAPanicInATrialEndsTheTrial(t *testing.T) {
	s := &shadows{store: panicking{}, queue: make(chan *trial, 1)}
	s.try(editionOf(t, "name: candidate\nrules: [{name: a, limit: 1/1m}]"), httptest.NewRequest("GET", "/", nil), false)
	s.run(<-s.queue)
}

// TestAPanicOverAnEditRefusesIt: the policy before stays in force.
func TestAPanicOverAnEditRefusesIt(t *testing.T) {
	a := &App{logger: zap.NewNop()}
	f := &policyFile{enforced: editionOf(t, "name: shop\nrules: [{name: a, limit: 1/1m}]"),
		complete: func(*policy.Document) error { panic("complete") }}
	before := f.enforced.current.Load()
	a.edited(f, new(policy.Document), nil)
	if refused := f.refused.Load(); refused == nil || !errors.Is(*refused, errEditPanicked) || f.enforced.current.Load() != before {
		t.Errorf("refused: %v", refused)
	}
}
