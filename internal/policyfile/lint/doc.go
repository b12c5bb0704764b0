// SPDX-License-Identifier: Apache-2.0

// Package lint examines valid policies and describes what their authors should know. The package
// reports settings that are probably not intended ([Advise]), settings that a front cannot enforce
// ([Beyond]), and the effects of an edit ([Diff]). The package never rejects a policy by itself.
package lint
