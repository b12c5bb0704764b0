// SPDX-License-Identifier: Apache-2.0

package storetest

import "testing"

func openModel(testing.TB) Subject { return (&Model{}).Subject() }

func TestModelPassesTheExam(t *testing.T) { Run(t, openModel) }
