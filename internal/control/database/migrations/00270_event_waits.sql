-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- Two durations of the first decision of an event: how long the client should wait, and how long
-- the decision took.
ALTER TABLE penstock.rate_limit_events
	ADD COLUMN retry_after_ms bigint,
	ADD COLUMN latency_us     bigint;
