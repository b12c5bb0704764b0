// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// Bounds of a record.
const (
	// RecordBytesMax is the greatest length of a record's text.
	RecordBytesMax = 16 << 10
	// TextBytesMax is the greatest length of a reason, an actor or a note.
	TextBytesMax = 500
	// recordVersion is the version of the format. Records of later versions are not read.
	recordVersion = 1
)

// Record holds the settings that operators have made for one client. The zero Record has no
// settings and is not stored.
type Record struct {
	Version int    `json:"v,omitempty"` // of the format; 0 and 1 are the same
	Tier    string `json:"tier,omitempty"`
	Tenant  string `json:"tenant,omitempty"`
	// Limits are the client's own limits, by the name of a rule, or "*" for every rule that counts
	// the client.
	Limits map[string]Limits `json:"limits,omitempty"`
	Grants []Grant           `json:"grants,omitempty"` // at most policy.GrantsMax grants
	Block  *Mark             `json:"block,omitempty"`
	Exempt *Mark             `json:"exempt,omitempty"`
	Note   string            `json:"note,omitempty"`
}

// Limits are a client's own limits under a rule.
type Limits struct {
	Limits []string  `json:"limits"` // the limits as in a policy: "500/1h"; or only "unlimited"
	Until  time.Time `json:"until,omitzero"`
	Reason string    `json:"reason,omitempty"`
}

// Mark is a block or an exemption of a client.
type Mark struct {
	Until  time.Time `json:"until,omitzero"` // zero means no end
	Reason string    `json:"reason,omitempty"`
}

// ParseRecord parses the text of a record. A text of a later version, or with an unknown field, is
// an error, because a part of it would be ignored.
func ParseRecord(text []byte) (*Record, error) {
	if len(text) > RecordBytesMax {
		return nil, fmt.Errorf("the record has %d bytes, and may have %d", len(text), RecordBytesMax)
	}
	r, err := decode[Record]("record", text)
	if err != nil {
		return nil, err
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	return r, nil
}

// Text returns the record as it is stored, or nil if it has no settings.
func (r *Record) Text() []byte {
	text, err := json.Marshal(r)
	if err != nil || string(text) == "{}" { // the fields of a record can always be marshaled
		return nil
	}
	return text
}

// Check returns an error if the record is not valid.
func (r *Record) Check() error {
	if r.Version > recordVersion || r.Version < 0 {
		return fmt.Errorf("the record is of version %d, and this program reads version %d", r.Version, recordVersion)
	}
	for _, text := range []struct {
		name, value string
		most        int
	}{{"tier", r.Tier, policy.ValueBytesMax}, {"tenant", r.Tenant, policy.ValueBytesMax}, {"note", r.Note, TextBytesMax}} {
		if err := checkText(text.name, text.value, text.most); err != nil {
			return err
		}
	}
	for _, marked := range []struct {
		name string
		mark *Mark
	}{{"block", r.Block}, {"exempt", r.Exempt}} {
		if marked.mark != nil {
			if err := checkText(marked.name+" reason", marked.mark.Reason, TextBytesMax); err != nil {
				return err
			}
		}
	}
	_, err := r.sets(time.Time{})
	return err
}

func checkText(name, value string, most int) error {
	switch {
	case len(value) > most:
		return fmt.Errorf("%s has %d bytes, and may have %d", name, len(value), most)
	case !utf8.ValidString(value):
		return fmt.Errorf("%s %.40q is not UTF-8", name, value)
	}
	for _, r := range value {
		if r < ' ' || r == 0x7f {
			return fmt.Errorf("%s %.40q has a control character", name, value)
		}
	}
	return nil
}

// checkWritten does what [checkText] does, for a text that is written now. checkWritten also
// rejects the control characters from U+0080 to U+009F, which some terminals obey. Existing records
// that contain such characters are still read.
func checkWritten(name, value string, most int) error {
	if err := checkText(name, value, most); err != nil {
		return err
	}
	if strings.ContainsFunc(value, unicode.IsControl) {
		return fmt.Errorf("%s %.40q has a control character", name, value)
	}
	return nil
}

// CheckReplacement returns an error for a record that must not replace another one. A record must
// not be written if a text contains control characters, or if an end has passed, unless the
// previous record has the same end.
func (r *Record) CheckReplacement(before *Record, now time.Time) error {
	if before == nil {
		before = new(Record)
	}
	for _, text := range []struct{ name, value string }{{"tier", r.Tier}, {"tenant", r.Tenant}, {"note", r.Note}} {
		if err := checkWritten(text.name, text.value, TextBytesMax); err != nil {
			return err
		}
	}
	for _, one := range []struct {
		name         string
		mark, former *Mark
	}{{"block", r.Block, before.Block}, {"exempt", r.Exempt, before.Exempt}} {
		if one.mark == nil {
			continue
		}
		var former time.Time
		if one.former != nil {
			former = one.former.Until
		}
		if err := checkReplaced(one.name, one.mark.Reason, one.mark.Until, former, now); err != nil {
			return err
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(r.Limits)) {
		own := r.Limits[rule]
		if err := checkReplaced(fmt.Sprintf("limits for rule %q", rule), own.Reason, own.Until, before.Limits[rule].Until, now); err != nil {
			return err
		}
	}
	for i := range r.Grants {
		if err := checkWritten("grant reason", r.Grants[i].Reason, TextBytesMax); err != nil {
			return err
		}
	}
	return nil
}

func checkReplaced(name, reason string, until, former, now time.Time) error {
	if err := checkWritten(name+" reason", reason, TextBytesMax); err != nil {
		return err
	}
	if !until.Equal(former) {
		if err := checkFuture(until, now); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// Record.sets returns the limits that have not ended at an instant, parsed and checked.
func (r *Record) sets(now time.Time) (*policy.Overrides, error) {
	sets := make(map[string]policy.LimitSet, len(r.Limits))
	for _, rule := range slices.Sorted(maps.Keys(r.Limits)) {
		own := r.Limits[rule]
		if err := checkText("reason of the limits", own.Reason, TextBytesMax); err != nil {
			return nil, err
		}
		if hasEnded(own.Until, now) {
			continue
		}
		set, err := policy.ParseLimitSet(own.Limits)
		if err != nil {
			return nil, fmt.Errorf("limits for rule %q: %q: %w", rule, own.Limits, err)
		}
		sets[rule] = set
	}
	overrides, err := policy.NewOverrides(sets)
	if err != nil {
		return nil, err
	}
	grants, err := r.grants()
	if err != nil {
		return nil, err
	}
	return overrides.WithGrants(grants)
}

// hasEnded reports whether the end in the parameter named until has been reached, to the
// microsecond. A zero end is never reached.
func hasEnded(until, now time.Time) bool {
	return !until.IsZero() && now.UnixMicro() >= until.UnixMicro()
}

// effective is the part of a record that is in force until an instant.
type effective struct {
	record *policy.ClientRecord // nil if nothing is in force
	until  counter.Micros       // the instant at which the part in force changes without an edit, or never
	client policy.ClientRecord  // what record points to, kept here to save an allocation
}

// never is later than every instant.
const never = counter.Micros(1<<63 - 1)

// nothing describes a client without a record, for which no setting is in force.
var nothing = &effective{until: never}

// Record.at returns the part of the record that is in force at an instant, and the instant until
// which that part stays in force. The record must be valid.
func (r *Record) at(now counter.Micros) *effective {
	if r == nil {
		return nothing
	}
	e := &effective{until: never}
	instant := time.UnixMicro(int64(now))
	lasts := func(until time.Time) bool {
		if hasEnded(until, instant) {
			return false
		}
		if !until.IsZero() {
			e.until = min(e.until, counter.Micros(until.UnixMicro()))
		}
		return true
	}
	for _, own := range r.Limits {
		lasts(own.Until)
	}
	overrides, err := r.sets(instant)
	if err != nil {
		return e // this cannot happen, because ParseRecord has checked the record
	}
	e.client = policy.ClientRecord{Tier: r.Tier, Tenant: r.Tenant, Overrides: overrides,
		Blocked: r.Block != nil && lasts(r.Block.Until), Exempt: r.Exempt != nil && lasts(r.Exempt.Until)}
	e.record = &e.client
	return e
}
