-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- API keys, by their SHA-256. Several keys may have the same name, for example during a rotation.
CREATE TABLE penstock.api_keys (
	hash          bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
	name          text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 255),
	client        text NOT NULL CHECK (octet_length(client) BETWEEN 1 AND 600),   -- user:ID or api_key:NAME
	user_id       text CHECK (octet_length(user_id) BETWEEN 1 AND 255),           -- the owner, if the client is not a user
	tenant        text CHECK (octet_length(tenant) BETWEEN 1 AND 255),
	tier          text REFERENCES penstock.tiers,
	limits        jsonb CHECK (jsonb_typeof(limits) = 'object'),                  -- {"api": ["500/1h"]}, by rule
	disabled      boolean NOT NULL DEFAULT false,
	not_before    timestamptz,
	expires_at    timestamptz,
	revoked_at    timestamptz,
	revoked_by    text,
	revoke_reason text CHECK (octet_length(revoke_reason) <= 500),
	created_at    timestamptz NOT NULL,
	created_by    text NOT NULL,
	revision      bigint NOT NULL CHECK (revision > 0),
	updated_at    timestamptz NOT NULL,
	UNIQUE (name, hash),
	CHECK ((revoked_at IS NULL) = (revoked_by IS NULL) AND (revoked_at IS NULL) = (revoke_reason IS NULL))
);
CREATE INDEX ON penstock.api_keys (client, name, hash);
CREATE INDEX ON penstock.api_keys (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX ON penstock.api_keys (tier) WHERE tier IS NOT NULL;
CREATE INDEX ON penstock.api_keys (expires_at) WHERE revoked_at IS NULL;

-- The regions from whose Redis the existing keys were imported. A control plane without regions has
-- only the region ''.
CREATE TABLE penstock.key_imports (
	region text PRIMARY KEY CHECK (octet_length(region) <= 255),
	at     timestamptz NOT NULL DEFAULT now()
);
