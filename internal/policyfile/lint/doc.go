// SPDX-License-Identifier: Apache-2.0

// Package lint says of a valid policy what its author may want to know: settings that are probably
// not intended ([Advise]), settings that a front cannot enforce ([Beyond]), and what an edit changes
// ([Diff]). It decides nothing and never rejects a policy.
package lint
