-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- Whether the share of a candidate is a share of the clients, on all nodes. Otherwise it is a share
-- of the nodes.
ALTER TABLE penstock.policies ADD COLUMN share_of_clients boolean NOT NULL DEFAULT false,
	ADD CHECK (NOT share_of_clients OR share IS NOT NULL);
