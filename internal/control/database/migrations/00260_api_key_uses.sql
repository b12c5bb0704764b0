-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- When a node last saw a request with an API key, to within ten minutes. A key that was never used
-- has no row. The times are not in api_keys, because the triggers of api_keys publish each change.
CREATE TABLE penstock.api_key_uses (
	hash         bytea PRIMARY KEY REFERENCES penstock.api_keys ON DELETE CASCADE,
	last_used_at timestamptz NOT NULL
) WITH (fillfactor = 70);
