// SPDX-License-Identifier: Apache-2.0

// Code generated from docs/reference/control.openapi.json; DO NOT EDIT.

package controlclient

import (
	"context"
	"io"
	"strconv"
)

// PutBatchOptions are the optional parameters of [Client.PutBatch].
type PutBatchOptions struct {
	// PenstockNode: the name of the node, for people
	PenstockNode string
	// ContentEncoding: gzip or identity; one of gzip, identity
	ContentEncoding string
}

// PutBatch calls PUT /v1/batches/{feed}/{number}: Take what happened on a node, once. Needs
// a token of the role node.
func (c *Client) PutBatch(ctx context.Context, feed string, number int64, o PutBatchOptions, body io.Reader) (*BatchAnswer, error) {
	r := newRequest("PUT")
	r.path = "/v1/batches/"
	r.segment("feed", feed, "/")
	r.segment("number", strconv.FormatInt(number, 10), "")
	r.field("Penstock-Node", o.PenstockNode)
	r.field("Content-Encoding", o.ContentEncoding)
	r.field("Content-Type", "application/x-ndjson")
	r.body = body
	answer, _, err := call[BatchAnswer](ctx, c, r)
	return answer, err
}

// BatchAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema BatchAnswerBody.
type BatchAnswer struct {
	// Repeated: the batch was in the database before
	Repeated bool `json:"repeated"`
	// Unread: lines that were left out, because no node would send them
	Unread int64 `json:"unread,omitempty"`
}
