// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"fmt"
	"net/http"
	"strconv"
	"unsafe"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/refusals"
)

// topRefused are the clients refused most, of all configurations of this process.
var topRefused = refusals.New(refusals.Options{})

// noteRefusal remembers who was refused. It does not allocate for a client that is known.
func (s *scratch) noteRefusal(d *core.Decision) {
	if d.Client.Kind == "" {
		return
	}
	policy := ""
	for _, o := range s.plan.Outcomes() {
		if o.Outcome == d.Outcome {
			policy = o.Ruleset.Name()
			break
		}
	}
	s.body = append(append(append(s.body[:0], d.Client.Kind...), ':'), d.Client.ID...)
	topRefused.Add(policy, unsafe.String(unsafe.SliceData(s.body), len(s.body))) // which copies what it keeps
}

// clientRefused is what the endpoint tells of a client that is refused often.
type clientRefused struct {
	Policy  string `json:"policy"`
	Client  string `json:"client"`
	Refused uint64 `json:"refused"` // about, and at most
	Over    uint64 `json:"over"`    // by how much that may be too high
}

// topMax bounds how many clients can be asked for; the sketch holds no more.
const topMax = 1024

func (a *App) tellTop(r *http.Request) (any, error) {
	query, err := readQuery(r, []string{"n"})
	if err != nil {
		return nil, err
	}
	n := 20
	if text := query.Get("n"); text != "" {
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > topMax {
			return nil, refusal(http.StatusBadRequest, fmt.Errorf("n %q is no number from 1 to %d", text, topMax))
		}
	}
	told := []clientRefused{}
	for _, e := range topRefused.Top(n) {
		told = append(told, clientRefused(e))
	}
	return map[string]any{"clients": told}, nil
}
