-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- Lines of a feed that no node would send, which were left out, and lines with a text or a number
-- that was changed to fit into a row. Lines of usage of clients without a record that are in the row
-- with an empty client, because too many of them were new.
ALTER TABLE penstock.feeds ADD COLUMN unread bigint NOT NULL DEFAULT 0, ADD COLUMN altered bigint NOT NULL DEFAULT 0,
	ADD COLUMN unnamed bigint NOT NULL DEFAULT 0;
