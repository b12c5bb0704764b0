// SPDX-License-Identifier: Apache-2.0

// Package fallback stands in for a store that cannot be asked, where a rule says on_error: local.
//
// # Promise
//
// While the store does not answer, this process counts in its own memory and lets through its share of each such limit: the
// count over the number of nodes, by the limit's own algorithm and window. A request that fits into the whole limit fits
// into the share, so that a limit smaller than the number of nodes is not a closed door. The share begins unused: what the
// store had counted is not known here. When the store answers again it decides, and what was let through meanwhile is not
// counted there.
//
// A call that a rule with on_error: deny is part of fails as before. Rules with on_error: allow let it pass.
//
// # Price
//
// Nothing while the store answers; a decision in memory, some 0.3 µs for a limit, when it does not. So a limit may be
// exceeded in an outage, by as much as had been used of it; and under it, where the load is not spread evenly over the nodes.
//
// # When not to use it
//
// For limits that protect something that breaks: on_error: deny. Over a store in memory, which always answers.
package fallback
