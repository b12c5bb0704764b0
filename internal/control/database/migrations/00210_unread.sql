-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- Numbers of lines of a feed. Unread lines were left out, because no node would send them. Altered
-- lines had a text or a number that was changed to fit into a row. Unnamed lines report usage of
-- clients without a record that is in the row with an empty client, because too many of these
-- clients were new.
ALTER TABLE penstock.feeds ADD COLUMN unread bigint NOT NULL DEFAULT 0, ADD COLUMN altered bigint NOT NULL DEFAULT 0,
	ADD COLUMN unnamed bigint NOT NULL DEFAULT 0;
