-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- A view for psql. For each client that has a record, and each rule in force that applies to the
-- client's tier, it shows the limits, the source of these limits, and the client's usage in this
-- month. The units that the client can still use now are in the counters in Redis: penstock usage
-- CLIENT.
CREATE VIEW penstock.client_quotas AS
	SELECT c.kind, c.id, c.tier, r.policy, r.rule_name,
		coalesce(own.limits, each.limits,
			CASE jsonb_typeof(r.more->'tiers'->c.tier)
				WHEN 'array' THEN ARRAY(SELECT jsonb_array_elements_text(r.more->'tiers'->c.tier))
				WHEN 'string' THEN ARRAY[r.more->'tiers'->>c.tier]
			END, r.limits) AS limits,
		CASE
			WHEN own.limits IS NOT NULL OR each.limits IS NOT NULL THEN 'client'
			WHEN r.more->'tiers' ? c.tier THEN 'tier'
			ELSE 'rule'
		END AS source,
		coalesce(own.until, each.until) AS until,
		(SELECT coalesce(sum(u.units), 0) FROM penstock.client_usage u WHERE u.client = c.kind || ':' || c.id AND u.policy = r.policy
			AND u.rule = r.rule_name AND u.day >= date_trunc('month', now() AT TIME ZONE 'UTC')::date) AS units_this_month,
		EXISTS (SELECT FROM penstock.blocks b WHERE b.kind = c.kind AND b.id = c.id AND (b.until IS NULL OR b.until > now())) AS blocked,
		EXISTS (SELECT FROM penstock.exemptions e WHERE e.kind = c.kind AND e.id = c.id AND (e.until IS NULL OR e.until > now())) AS exempt
	FROM penstock.clients c
	JOIN penstock.rules_in_force r ON r.enabled IS NOT FALSE AND r.limits IS NOT NULL AND (r.plan_tiers IS NULL OR c.tier = ANY (r.plan_tiers))
	LEFT JOIN penstock.overrides own ON own.kind = c.kind AND own.id = c.id AND own.rule = r.rule_name AND (own.until IS NULL OR own.until > now())
	LEFT JOIN penstock.overrides each ON own.limits IS NULL AND each.kind = c.kind AND each.id = c.id AND each.rule = '*'
		AND (each.until IS NULL OR each.until > now()) AND (r.subject IS NULL OR r.subject && ARRAY['client', c.kind]);
