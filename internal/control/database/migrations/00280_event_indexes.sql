-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- Building the indexes of 100,000,000 events takes minutes. Meanwhile, batches wait on the nodes.
SET LOCAL statement_timeout = 0;

-- For the events of a client, or of a client under one rule: with rule in the index, rows of other
-- rules are not read.
CREATE INDEX ON penstock.rate_limit_events (client, at DESC, rule);

-- Nearly all events are denials by a limit. Queries find these by their time, and other events by
-- their decision or kind.
CREATE INDEX ON penstock.rate_limit_events (decision, at DESC) WHERE decision <> 'denied';
CREATE INDEX ON penstock.rate_limit_events (kind, at DESC) WHERE kind <> 'denied';

DROP INDEX penstock.rate_limit_events_client_at_idx, penstock.rate_limit_events_decision_at_idx;
