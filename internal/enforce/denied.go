// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"unsafe"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/enforce/topk"
)

// nameBytesUsual is the length up to which a client's name is put together without an allocation.
// No identifier is longer than 255 bytes.
const nameBytesUsual = 320

// CountDenials makes the enforcer count the clients of denied requests in a sketch. CountDenials
// must be called before the first request. Another enforcer may use the same sketch.
func (e *Enforcer) CountDenials(s *topk.Sketch) { e.denied = s }

// countDenial counts the client of a denied request, under the policy that denies it. countDenial
// does not allocate for a client that is already counted.
func (e *Enforcer) countDenial(plan *core.Plan) {
	if e.denied == nil {
		return
	}
	outcomes := plan.Outcomes()
	for i := range outcomes {
		if !metrics.Denies(outcomes[i].Outcome) {
			continue
		}
		client := plan.Identity()
		if client.Kind == "" {
			return
		}
		var room [nameBytesUsual]byte
		name := append(append(append(room[:0], client.Kind...), ':'), client.ID...)
		e.denied.Add(outcomes[i].Ruleset.Name(), unsafe.String(unsafe.SliceData(name), len(name))) // Add copies the text that it keeps
		return
	}
}
