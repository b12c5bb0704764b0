-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- How a tier is sold, for display and for bills. It has no effect on limits.
ALTER TABLE penstock.tiers
	ADD COLUMN display_name text NOT NULL DEFAULT '' CHECK (octet_length(display_name) <= 255),
	ADD COLUMN price_cents  bigint NOT NULL DEFAULT 0 CHECK (price_cents >= 0),
	ADD COLUMN currency     text NOT NULL DEFAULT '' CHECK (currency ~ '^([A-Z]{3})?$'),
	ADD CHECK (price_cents = 0 OR currency <> '');
