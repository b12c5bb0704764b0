// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/policy"
)

// instantMax is the end of the year 9999 in seconds. A later value is probably in milliseconds, and
// such a token would never expire.
const instantMax = 253_402_300_799

// span is the validity of a token, including the leeway: from <= now < until, in microseconds since
// the epoch.
type span struct{ from, until int64 }

const (
	always = math.MinInt64
	never  = math.MaxInt64
)

// claims are the signed claims of a token.
type claims map[string]any

// claims.at finds a claim by its path. It first tries the whole path as a name, so that
// "https://example.com/tier" needs no escaping. Then the method tries the part before each dot as
// an object, beginning with the first dot.
func (c claims) at(path string) (value any, ok bool) {
	if value, ok = c[path]; ok {
		return value, value != nil
	}
	for i := range len(path) {
		if path[i] != '.' {
			continue
		}
		if inner, isObject := c[path[:i]].(map[string]any); isObject {
			if value, ok = claims(inner).at(path[i+1:]); ok {
				return value, true
			}
		}
	}
	return nil, false
}

// claims.text returns a claim that is a name: a string, or an integer as written. The result ""
// means that the claim is missing. Any other value is an error, because ignoring it would count the
// client as a different one.
func (c claims) text(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	value, ok := c.at(path)
	if !ok {
		return "", nil
	}
	switch v := value.(type) {
	case string:
		if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return "", fmt.Errorf("claim %q has control characters", path)
		}
		return v, nil
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil && strconv.FormatInt(n, 10) == v.String() {
			return v.String(), nil
		}
		return "", fmt.Errorf("claim %q is a number but not a whole one of at most 64 bits", path)
	}
	return "", fmt.Errorf("claim %q is neither a word nor a whole number", path)
}

// claims.texts returns a claim that is one text or a list of texts; nil if it is missing.
func (c claims) texts(path string) ([]string, error) {
	value, ok := c.at(path)
	if !ok {
		return nil, nil
	}
	items, isList := value.([]any)
	if !isList {
		items = []any{value}
	}
	texts := make([]string, len(items))
	for i, item := range items {
		if texts[i], ok = item.(string); !ok {
			return nil, fmt.Errorf("claim %q is neither a text nor a list of texts", path)
		}
	}
	return texts, nil
}

// claims.instant returns a NumericDate in microseconds. The result ok is false if the claim is
// missing.
func (c claims) instant(name string) (micros int64, ok bool, err error) {
	value, ok := c[name]
	if !ok {
		return 0, false, nil
	}
	number, isNumber := value.(json.Number)
	if !isNumber {
		return 0, true, fmt.Errorf("claim %q is not a number of seconds", name)
	}
	seconds, err := number.Float64()
	if err != nil || seconds > instantMax {
		return 0, true, fmt.Errorf("claim %q is after the year 9999: it counts seconds, not milliseconds", name)
	}
	return int64(max(seconds, -instantMax) * 1e6), true, nil
}

// JWT.times returns the span in which the token is valid.
func (j *JWT) times(c claims) (span, error) {
	when := span{always, never}
	until, ok, err := c.instant("exp")
	switch {
	case err != nil:
		return when, err
	case ok:
		when.until = until + j.leeway
	case !j.noExpiry:
		return when, fmt.Errorf(`claim "exp" is missing: the token would be good for ever`)
	}
	from, ok, err := c.instant("nbf")
	if ok {
		when.from = from - j.leeway
	}
	return when, err
}

// checkIssuerAndAudience checks the token's issuer and audience.
func (j *JWT) checkIssuerAndAudience(c claims) error {
	if j.issuer != "" && c["iss"] != j.issuer {
		return fmt.Errorf(`claim "iss" is not the issuer`)
	}
	if len(j.audience) == 0 {
		return nil
	}
	named, _ := c["aud"].([]any)
	if one, ok := c["aud"].(string); ok {
		named = []any{one}
	}
	for _, audience := range named {
		if text, ok := audience.(string); ok && slices.Contains(j.audience, text) {
			return nil
		}
	}
	return fmt.Errorf(`claim "aud" does not name this service`)
}

// JWT.identify returns the identity that the token's claims describe.
func (j *JWT) identify(c claims) (*policy.Identity, error) {
	user, err := c.text(j.claim)
	if err != nil {
		return nil, err
	}
	if user == "" {
		return nil, fmt.Errorf("claim %q is missing", j.claim)
	}
	who := policy.IdentityOf("user", user)
	id := &who
	// a name that is too long is an error, because its hash could be another client's name
	id.User = user
	if id.Tenant, err = c.text(j.tenantClaim); err != nil {
		return nil, err
	}
	if id.Tier, err = j.tier(c); err != nil {
		return nil, err
	}
	if j.limitsClaim == "" {
		return id, nil
	}
	value, ok := c.at(j.limitsClaim)
	if !ok {
		return id, nil
	}
	if id.Overrides, err = readOverrides(value); err != nil {
		return nil, fmt.Errorf("claim %q: %w", j.limitsClaim, err)
	}
	return id, nil
}

// JWT.tier returns the tier of the client that the claim for tiers names.
func (j *JWT) tier(c claims) (string, error) {
	if j.chooseTier == nil {
		return c.text(j.tierClaim)
	}
	values, err := c.texts(j.tierClaim)
	if err != nil {
		return "", err
	}
	return j.chooseTier(values), nil
}

// readOverrides reads limits by rule name. The value of each name is a limit, a list of limits, or
// "unlimited".
func readOverrides(value any) (*policy.Overrides, error) {
	byRule, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("is not an object of limits by rule")
	}
	if len(byRule) > policy.OverridesMax {
		return nil, fmt.Errorf("names %d rules, more than %d", len(byRule), policy.OverridesMax)
	}
	sets := make(map[string]policy.LimitSet, len(byRule))
	for rule, value := range byRule {
		texts, err := limitTexts(value)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", cut(rule), err)
		}
		if sets[rule], err = policy.ParseLimitSet(texts); err != nil {
			return nil, fmt.Errorf("%q: %w", cut(rule), err)
		}
	}
	return policy.NewOverrides(sets)
}

func limitTexts(value any) ([]string, error) {
	items, isList := value.([]any)
	if !isList {
		items = []any{value}
	}
	texts := make([]string, len(items))
	for i, item := range items {
		text, ok := item.(string)
		if !ok {
			return nil, fmt.Errorf("is neither a limit such as %q nor a list of them", "100/1m")
		}
		texts[i] = text
	}
	return texts, nil
}
