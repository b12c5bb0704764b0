// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import "github.com/penstock/penstock/internal/enforce/topk"

// topDenied counts the clients that were denied most often, across all configurations of this
// process.
var topDenied = topk.New(topk.Options{})
