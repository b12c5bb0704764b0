// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"fmt"
	"net/http"
	"strconv"
	"unsafe"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/enforce/topk"
)

// topDenied counts the clients that were denied most often, across all configurations of this
// process.
var topDenied = topk.New(topk.Options{})

// noteDenial counts the denied client. It does not allocate for a client that is already counted.
func (s *scratch) noteDenial(d *core.Decision) {
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
	topDenied.Add(policy, unsafe.String(unsafe.SliceData(s.body), len(s.body))) // Add copies what it keeps
}

// deniedClient describes a client that is denied often.
type deniedClient struct {
	Policy string `json:"policy"`
	Client string `json:"client"`
	Denied uint64 `json:"refused"` // an upper bound
	Over   uint64 `json:"over"`    // the most by which Denied may be too high
}

// topMax bounds the number of clients in a response. The sketch holds no more.
const topMax = 1024

func (a *App) listTop(r *http.Request) (any, error) {
	query, err := readQuery(r, []string{"n"})
	if err != nil {
		return nil, err
	}
	n := 20
	if text := query.Get("n"); text != "" {
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > topMax {
			return nil, apiError(http.StatusBadRequest, fmt.Errorf("n %q is not a number from 1 to %d", text, topMax))
		}
	}
	told := []deniedClient{}
	for _, e := range topDenied.Top(n) {
		told = append(told, deniedClient(e))
	}
	return map[string]any{"clients": told}, nil
}
