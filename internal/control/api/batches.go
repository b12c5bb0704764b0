// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/internal/control/ingest"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/feed"
)

type putBatch struct {
	Feed     string `path:"feed" pattern:"^[0-9a-f]{32}$" doc:"identifies the process of a node"`
	Number   int64  `path:"number" minimum:"1" doc:"the numbers of a feed rise; a number that is not higher than the last is not taken again"`
	Node     string `header:"Penstock-Node" maxLength:"255" doc:"the name of the node, for people"`
	Encoding string `header:"Content-Encoding" enum:"gzip,identity" doc:"gzip or identity"`
	RawBody  []byte `contentType:"application/x-ndjson"`
}

// Resolve implements [huma.Resolver].
func (b *putBatch) Resolve(huma.Context) []error { return checkStorable("Penstock-Node", b.Node) }

type batchAnswer struct {
	Body struct {
		Repeated bool  `json:"repeated" doc:"the batch was in the database before"`
		Unread   int64 `json:"unread,omitempty" doc:"lines that were left out, because no node would send them"`
	}
}

// batchOperations registers the operations of nodes.
func (a *API) batchOperations() {
	o := operation(http.MethodPut, "/v1/batches/{feed}/{number}", "put-batch", "Take what happened on a node, once", ledger.Node)
	o.MaxBodyBytes = feed.BytesMax
	huma.Register(a.huma, o, func(ctx context.Context, in *putBatch) (*batchAnswer, error) {
		content, err := ingest.Read(in.RawBody, in.Encoding == "gzip")
		if unreadable := (*ingest.Unreadable)(nil); errors.As(err, &unreadable) {
			a.o.Logger.Warn("a batch is rejected: no line can be read; the node keeps it aside", "node", in.Node, "feed", in.Feed, "number", in.Number, "error", err)
			return nil, huma.Error422UnprocessableEntity("the batch cannot be read, and changes nothing", &huma.ErrorDetail{Message: err.Error(), Location: "body"})
		}
		repeated, err := a.o.Ingester.Take(ctx, &ingest.Batch{Feed: in.Feed, Number: in.Number, Node: in.Node, Lines: content.Lines,
			Unread: content.Unread, Altered: content.Altered})
		if err != nil {
			return nil, a.problem(err)
		}
		answer := new(batchAnswer)
		answer.Body.Repeated = repeated
		if answer.Body.Unread = content.Unread; content.Unread > 0 && !repeated {
			a.o.Logger.Warn("lines of a batch cannot be read, and are left out", "node", in.Node, "feed", in.Feed, "number", in.Number, "lines", content.Unread,
				"first", content.First.Error())
		}
		return answer, nil
	})
}
