-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- What a node knows of the first of an event's decisions: how long the client should wait, and how
-- long the decision took.
ALTER TABLE penstock.rate_limit_events
	ADD COLUMN retry_after_ms bigint,
	ADD COLUMN latency_us     bigint;
