-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- Building the indexes of 100,000,000 events takes minutes. Meanwhile, batches wait on the nodes.
SET LOCAL statement_timeout = 0;

-- Events of a client, also under one rule: the index leaves out the client's other rows.
CREATE INDEX ON penstock.rate_limit_events (client, at DESC, rule);

-- Nearly all events are denials by a limit. They are found by their time, and the others by what
-- they are.
CREATE INDEX ON penstock.rate_limit_events (decision, at DESC) WHERE decision <> 'denied';
CREATE INDEX ON penstock.rate_limit_events (kind, at DESC) WHERE kind <> 'denied';

DROP INDEX penstock.rate_limit_events_client_at_idx, penstock.rate_limit_events_decision_at_idx;
