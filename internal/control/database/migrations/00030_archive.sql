-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- Whether months of events and usage go to the archive. If so, none is dropped that is not there.
CREATE TABLE penstock.archiving (
	one    boolean PRIMARY KEY DEFAULT true CHECK (one),
	wanted boolean NOT NULL DEFAULT false
);
INSERT INTO penstock.archiving DEFAULT VALUES;

-- A month of a table in the archive. stale means that rows changed after they were written.
CREATE TABLE penstock.archives (
	partition   text PRIMARY KEY CHECK (partition ~ '^[a-z_]{1,50}_[0-9]{4}_[0-9]{2}$'),
	state       text NOT NULL DEFAULT 'writing' CHECK (state IN ('writing', 'written', 'verified', 'dropped', 'restored')),
	attempt     text NOT NULL,         -- each writes objects of other names
	stale       boolean NOT NULL DEFAULT false,
	totals      jsonb,
	began_at    timestamptz NOT NULL,
	verified_at timestamptz,
	dropped_at  timestamptz,
	until       timestamptz,           -- of a month that is restored
	CHECK ((state = 'restored') = (until IS NOT NULL))
);

-- The objects of a month. last is the key of the last row in an object, where the next continues.
CREATE TABLE penstock.archive_objects (
	partition text NOT NULL REFERENCES penstock.archives,
	number    int NOT NULL CHECK (number > 0),
	key       text NOT NULL UNIQUE,
	bytes     bigint NOT NULL,
	sha256    bytea NOT NULL CHECK (octet_length(sha256) = 32),
	digest    bytea NOT NULL CHECK (octet_length(digest) = 32),
	totals    jsonb NOT NULL,
	last      text[] NOT NULL,
	PRIMARY KEY (partition, number)
);
