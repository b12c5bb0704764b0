// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/policyfile"
)

// ruleRow is a row of rate_limit_rules. A field is nil if the document does not have it.
type ruleRow struct {
	name                                           string
	priority                                       int32
	enabled                                        *bool
	subject, endpoints, methods, ips, tiers, limit []string
	action, retryAfter                             *string
	more                                           []byte
}

// ruleColumns are the columns of a rule, in the order of ruleRow.values.
var ruleColumns = []string{"policy", "revision", "position", "rule_name", "priority", "enabled", "subject", "endpoints", "http_methods",
	"ip_ranges", "plan_tiers", "limits", "action", "retry_after", "more"}

func (r *ruleRow) values(policy string, revision int64, position int) []any {
	return []any{policy, revision, int32(position), r.name, r.priority, r.enabled, r.subject, r.endpoints, r.methods, r.ips, r.tiers, r.limit,
		r.action, r.retryAfter, r.more}
}

func scanRule(row pgx.CollectableRow) (policyfile.Rule, error) {
	var r ruleRow
	if err := row.Scan(&r.name, &r.priority, &r.enabled, &r.subject, &r.endpoints, &r.methods, &r.ips, &r.tiers, &r.limit, &r.action,
		&r.retryAfter, &r.more); err != nil {
		return policyfile.Rule{}, err
	}
	rule, err := r.rule()
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrRows, err)
	}
	return rule, err
}

// textOrNull returns nil for "".
func textOrNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// wordsOrNull returns nil for an empty list, because a document omits empty lists, too.
func wordsOrNull(words policyfile.Words) []string {
	if len(words) == 0 {
		return nil
	}
	return words
}

// rowOf converts a rule to a row of the database.
func rowOf(rule policyfile.Rule) (*ruleRow, error) {
	if rule.Priority != int(int32(rule.Priority)) {
		return nil, &Invalid{Place: "text", Value: rule.Priority,
			Text: fmt.Sprintf("priority %d of rule %q does not fit in 32 bits: write a smaller one", rule.Priority, rule.Name)}
	}
	r := &ruleRow{name: rule.Name, priority: int32(rule.Priority), enabled: rule.Enabled, limit: wordsOrNull(rule.Limit),
		action: textOrNull(rule.Action), retryAfter: textOrNull(rule.RetryAfter)}
	if rule.Per != nil {
		r.subject = append([]string{}, *rule.Per...) // an empty list differs from an absent one
	}
	if rule.Match != nil {
		match := *rule.Match
		r.endpoints, r.methods = wordsOrNull(match.Path), wordsOrNull(match.Method)
		r.ips, r.tiers = wordsOrNull(match.IP), wordsOrNull(match.Tier)
		match.Path, match.Method, match.IP, match.Tier = nil, nil, nil, nil
		if rule.Match = &match; r.matches() && reflect.ValueOf(match).IsZero() {
			rule.Match = nil
		}
	}
	rule.Name, rule.Priority, rule.Enabled, rule.Limit, rule.Action, rule.RetryAfter, rule.Per = "", 0, nil, nil, "", "", nil
	var err error
	r.more, err = json.Marshal(rule)
	return r, err
}

// ruleRow.matches reports whether any column contains a part of the rule's match.
func (r *ruleRow) matches() bool {
	return r.endpoints != nil || r.methods != nil || r.ips != nil || r.tiers != nil
}

// ruleRow.rule converts the row back to a rule.
func (r *ruleRow) rule() (rule policyfile.Rule, err error) {
	if !bytes.Equal(r.more, []byte("{}")) {
		if err := json.Unmarshal(r.more, &rule); err != nil {
			return rule, fmt.Errorf("the row of rule %q: %w", r.name, err)
		}
	}
	rule.Name, rule.Priority, rule.Enabled, rule.Limit = r.name, int(r.priority), r.enabled, r.limit
	if r.action != nil {
		rule.Action = *r.action
	}
	if r.retryAfter != nil {
		rule.RetryAfter = *r.retryAfter
	}
	if r.subject != nil {
		per := policyfile.Words(r.subject)
		rule.Per = &per
	}
	if r.matches() {
		if rule.Match == nil {
			rule.Match = new(policyfile.Match)
		}
		rule.Match.Path, rule.Match.Method, rule.Match.IP, rule.Match.Tier = r.endpoints, r.methods, r.ips, r.tiers
	}
	return rule, nil
}

// policyRows holds the rows in which a policy document is stored.
type policyRows struct {
	settings []byte
	rules    []*ruleRow
}

// errRows is the error for a document that cannot be stored as rows. errRows indicates a bug of
// this program.
var errRows = errors.New("the rows do not make the same document again, which is an error of this program; please report it with the policy")

// rowsOf returns the rows of a document, from which [documentOf] restores it.
func rowsOf(d *policyfile.Document) (*policyRows, error) {
	text, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	if bytes.Contains(text, []byte(`\u0000`)) {
		return nil, &Invalid{Place: "text", Text: `the policy has a zero byte (\u0000), which a row cannot contain: leave it out`}
	}
	rows, settings := &policyRows{}, *d
	settings.Rules = nil
	if rows.settings, err = json.Marshal(&settings); err != nil {
		return nil, err
	}
	rules := make([]policyfile.Rule, len(d.Rules))
	for i := range d.Rules {
		row, err := rowOf(d.Rules[i])
		if err != nil {
			return nil, err
		}
		rows.rules = append(rows.rules, row)
		if rules[i], err = row.rule(); err != nil {
			return nil, err
		}
	}
	again, err := documentOf(rows.settings, rules)
	if err == nil && again.Version() != d.Version() {
		err = errRows
	}
	return rows, err
}

// documentOf returns the document that consists of settings and rules.
func documentOf(settings []byte, rules []policyfile.Rule) (*policyfile.Document, error) {
	d := new(policyfile.Document)
	if err := json.Unmarshal(settings, d); err != nil {
		return nil, fmt.Errorf("the settings of the policy: %w", err)
	}
	if len(rules) > 0 {
		d.Rules = rules
	}
	return d, nil
}
