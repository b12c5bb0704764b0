-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- Units that a client may use once in addition to a limit, in the window that contains at. A
-- window_label of NULL stands for the longest window that the client has under the rule.
CREATE TABLE penstock.grants (
	kind         text NOT NULL,
	id           text NOT NULL,
	position     int NOT NULL CHECK (position >= 0),
	rule         text NOT NULL CHECK (octet_length(rule) BETWEEN 1 AND 255),
	units        bigint NOT NULL CHECK (units > 0),
	window_label text CHECK (octet_length(window_label) BETWEEN 1 AND 100),
	at           timestamptz NOT NULL,
	reason       text NOT NULL CHECK (octet_length(reason) <= 500),
	PRIMARY KEY (kind, id, position),
	FOREIGN KEY (kind, id) REFERENCES penstock.clients ON DELETE CASCADE
);
