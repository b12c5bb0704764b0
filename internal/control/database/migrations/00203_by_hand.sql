-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- Clients and API keys whose rows were changed by SQL and not by a control plane. The publisher
-- removes the rows of this table when it handles them. A key has the kind '~key', and its id is its
-- SHA-256. An operator's statement only adds rows here. If it changed existing rows, it would wait
-- for the publisher, and the publisher can wait for rows of clients.
CREATE TABLE penstock.touched (
	n    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	kind text NOT NULL,
	id   text NOT NULL,
	by   text NOT NULL                -- the user of the database
);
CREATE INDEX touched_names ON penstock.touched (kind, id);

-- Clients, keys and policies that are not published because their rows are not valid. A policy has
-- the kind '~policy'.
CREATE TABLE penstock.unpublished (
	kind    text NOT NULL,
	id      text NOT NULL,
	problem text NOT NULL,
	since   timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (kind, id)
);

-- A control plane sets penstock.writer in its transactions, so these triggers ignore its changes.
-- +goose StatementBegin
CREATE FUNCTION penstock.touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('penstock.writer', true) = 'control' THEN
		RETURN NULL;
	END IF;
	INSERT INTO penstock.touched (kind, id, by) SELECT DISTINCT kind, id, session_user FROM changed;
	NOTIFY penstock_changes;
	RETURN NULL;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION penstock.touch_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('penstock.writer', true) = 'control' THEN
		RETURN NULL;
	END IF;
	INSERT INTO penstock.touched (kind, id, by) SELECT DISTINCT '~key', encode(hash, 'hex'), session_user FROM changed;
	NOTIFY penstock_changes;
	RETURN NULL;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
DECLARE t text; f text;
BEGIN
	FOREACH t IN ARRAY ARRAY['clients', 'overrides', 'grants', 'blocks', 'exemptions', 'api_keys'] LOOP
		f := CASE t WHEN 'api_keys' THEN 'touch_key' ELSE 'touch' END;
		EXECUTE format('CREATE TRIGGER touched_new AFTER INSERT ON penstock.%I REFERENCING NEW TABLE AS changed
			FOR EACH STATEMENT EXECUTE FUNCTION penstock.%I()', t, f);
		EXECUTE format('CREATE TRIGGER touched_old AFTER DELETE ON penstock.%I REFERENCING OLD TABLE AS changed
			FOR EACH STATEMENT EXECUTE FUNCTION penstock.%I()', t, f);
		EXECUTE format('CREATE TRIGGER touched_before AFTER UPDATE ON penstock.%I REFERENCING OLD TABLE AS changed
			FOR EACH STATEMENT EXECUTE FUNCTION penstock.%I()', t, f);
		EXECUTE format('CREATE TRIGGER touched_after AFTER UPDATE ON penstock.%I REFERENCING NEW TABLE AS changed
			FOR EACH STATEMENT EXECUTE FUNCTION penstock.%I()', t, f);
	END LOOP;
END $$;
-- +goose StatementEnd
