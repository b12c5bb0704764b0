// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/http"
)

// Readiness is the answer of /readyz. A text is "ok", or describes what is wrong.
type Readiness struct {
	Ready    bool   `json:"ready"`
	Schema   string `json:"schema"`
	Database string `json:"database"`
	Redis    string `json:"redis"`
	// Publisher is "publishes", "stands by", or "is interrupted; see the log". It does not affect
	// readiness, because another process may publish.
	Publisher string `json:"publisher"`
	// OIDC tells whether the keys of the issuer for people have arrived. It does not affect
	// readiness, because tokens of the control plane work without them. It is "" without an issuer.
	OIDC string `json:"oidc,omitempty"`
	// Unpublished is the number of changes that are not in Redis yet.
	Unpublished int64 `json:"unpublished"`
	// Invalid is the number of clients, keys and policies that are not published because their rows
	// are not valid. It does not affect readiness: what is in Redis stays in force.
	Invalid int64 `json:"invalid"`
}

func (a *API) readyz(w http.ResponseWriter, r *http.Request) {
	ready := a.ready(r.Context())
	w.Header().Set("Content-Type", "application/json")
	if !ready.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(ready)
}
