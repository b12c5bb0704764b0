// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/penstock/penstock/core/policy"
)

// Action is the kind of an edit.
type Action string

// The actions.
const (
	ActionSetTier     Action = "set-tier"    // uses Edit.Tier
	ActionSetTenant   Action = "set-tenant"  // uses Edit.Tenant
	ActionSetLimits   Action = "set-limit"   // uses Edit.Rule and Edit.Limits, and optionally Edit.Until
	ActionUnsetLimits Action = "unset-limit" // uses Edit.Rule; "" for all rules
	ActionUnsetTier   Action = "unset-tier"  // removes the tenant, too
	ActionGrant       Action = "grant"       // uses Edit.Rule and Edit.Units, and optionally Edit.Window
	ActionUngrant     Action = "ungrant"     // Edit.Rule; "" for all rules
	ActionBlock       Action = "block"       // may have an end
	ActionUnblock     Action = "unblock"     //
	ActionExempt      Action = "exempt"      // may have an end
	ActionUnexempt    Action = "unexempt"    //
	ActionNote        Action = "note"        // uses Edit.Note; "" removes the note
	ActionForget      Action = "forget"      // removes the whole record
)

// Actions are all actions, in the order in which help lists them.
var Actions = []Action{ActionSetTier, ActionUnsetTier, ActionSetTenant, ActionSetLimits, ActionUnsetLimits,
	ActionGrant, ActionUngrant, ActionBlock, ActionUnblock, ActionExempt, ActionUnexempt, ActionNote, ActionForget}

// Edit is one change of a record.
type Edit struct {
	Client string `json:"client"` // KIND:ID, or ip:CIDR
	Action Action `json:"action"`
	Actor  string `json:"actor"`
	Reason string `json:"reason"`

	Tier   string    `json:"tier,omitempty"`
	Tenant string    `json:"tenant,omitempty"`
	Rule   string    `json:"rule,omitempty"` // or "*"
	Limits []string  `json:"limits,omitempty"`
	Units  int64     `json:"units,omitempty"`  // of a grant
	Window string    `json:"window,omitempty"` // the window of a grant, as in a limit; "" for the longest window
	Note   string    `json:"note,omitempty"`
	Until  time.Time `json:"until,omitzero"` // zero means without an end
}

// ErrEdit is wrapped by the error of an edit that is invalid, or that does not fit the record.
var ErrEdit = errors.New("the change is not made")

// ErrNoKey is wrapped by the error for a name that has no key.
var ErrNoKey = errors.New("there is no API key of the name")

// editError describes an error in an edit.
type editError struct{ text string }

func (e *editError) Error() string { return e.text }
func (e *editError) Unwrap() error { return ErrEdit }

func newEditError(format string, args ...any) error { return &editError{fmt.Sprintf(format, args...)} }

// CheckUTF8 returns an error for a name that is not UTF-8. Changes are sent as JSON, which would
// replace the invalid bytes and so change the name.
func CheckUTF8(what, name string) error {
	if !utf8.ValidString(name) {
		return newEditError("%s %.40q is not UTF-8, so it cannot be named here", what, name)
	}
	return nil
}

// ParseName parses the name of a client, KIND:ID. In the result, an address or a network has its
// shortest form.
func ParseName(text string) (policy.ClientName, error) {
	if err := CheckUTF8("client", text); err != nil {
		return policy.ClientName{}, err
	}
	kind, id, ok := strings.Cut(text, ":")
	if !ok || kind == "" || id == "" {
		return policy.ClientName{}, newEditError("client %q has no form KIND:ID; write user:u_42, api_key:acme, tenant:t_1 or ip:192.0.2.0/24", text)
	}
	if kind == KindNetwork {
		prefix, err := ParseNetwork(id)
		if err != nil {
			return policy.ClientName{}, newEditError("client %q: %v", text, err)
		}
		return policy.ClientName{Kind: kind, ID: networkName(prefix)}, nil
	}
	if kind, ok = policy.ParseKind(kind); !ok && strings.TrimSuffix(kind, policy.HashSuffix) != "tenant" {
		return policy.ClientName{}, newEditError("client %q is of an unknown kind; write user:ID, api_key:NAME, tenant:ID, ip:ADDRESS, "+
			"header.NAME:VALUE, cookie.NAME:VALUE or attr.NAME:VALUE", text)
	}
	who := policy.IdentityOf(kind, id)
	return policy.ClientName{Kind: who.Kind, ID: who.ID}, nil
}

// Editor changes records in a source. An Editor is safe for concurrent use, even by several
// processes.
type Editor struct {
	Source Source
	Now    func() time.Time // nil means time.Now
}

// Change is the result of an edit.
type Change struct {
	Client string  `json:"client"`
	Before *Record `json:"before"` // nil if there was none
	After  *Record `json:"after"`  // nil if there is none
	// Keys is how many API keys a control plane has removed with the record.
	Keys int `json:"keys_removed,omitempty"`
}

// ControlledPrefix is the prefix of the generation of a directory that a control plane writes. The
// control plane's database is authoritative, so an [Editor] rejects changes.
const ControlledPrefix = "control-"

// ControlledKeysPrefix is the prefix of the generation of a directory whose control plane has the
// API keys as well. A control plane of an earlier release has only the clients, and its generation
// begins with ControlledPrefix alone.
const ControlledKeysPrefix = ControlledPrefix + "keys-"

// swapsMax is the number of times an edit is tried while others change the same record.
const swapsMax = 20

// Apply makes an edit. Apply changes only what the edit names, so concurrent edits of different
// parts of a record are all kept. An error that wraps [ErrEdit] describes an error in the edit. Any
// other error means that the source did not answer, and that it is unknown whether the edit was
// made.
func (e *Editor) Apply(ctx context.Context, edit Edit) (*Change, error) {
	name, err := ParseName(edit.Client)
	if err != nil {
		return nil, err
	}
	if err := edit.check(e.now()); err != nil {
		return nil, err
	}
	if generation, err := e.Source.Generation(ctx); err != nil {
		return nil, err
	} else if strings.HasPrefix(generation, ControlledPrefix) {
		return nil, newEditError("a control plane owns this directory, and would undo the change: make it there, with penstock client --control URL")
	}
	for range swapsMax {
		old, before, err := e.read(ctx, name)
		if err != nil && (old == nil || edit.Action != ActionForget) {
			return nil, err
		}
		after, err := edit.apply(before, e.now())
		if err != nil {
			return nil, err
		}
		text := after.Text()
		entry := Entry{At: e.now().UTC(), Client: name, Name: name.String(), Actor: edit.Actor, Action: edit.String(), Reason: edit.Reason,
			Before: string(old), After: string(text)}
		swapped, err := e.Source.Swap(ctx, name, old, text, entry)
		if err != nil {
			return nil, err
		}
		if swapped {
			if text == nil {
				after = nil
			}
			return &Change{Client: name.String(), Before: before, After: after}, nil
		}
	}
	return nil, fmt.Errorf("%w: others keep changing the record of %q; try again", ErrSource, name)
}

// Look returns the record of a client, or nil if it has none.
func (e *Editor) Look(ctx context.Context, client string) (policy.ClientName, *Record, error) {
	name, err := ParseName(client)
	if err != nil {
		return name, nil, err
	}
	_, r, err := e.read(ctx, name)
	return name, r, err
}

// Editor.read returns the text and the record of a client, or nil.
func (e *Editor) read(ctx context.Context, name policy.ClientName) (text []byte, r *Record, err error) {
	texts := make([][]byte, 1)
	if err := e.Source.Read(ctx, []policy.ClientName{name}, texts); err != nil || texts[0] == nil {
		return nil, nil, err
	}
	r, err = ParseRecord(texts[0])
	if err != nil {
		return texts[0], nil, newEditError("the present record of %q has no force: %v; remove it with the action %s", name, err, ActionForget)
	}
	return texts[0], r, nil
}

// Edit.check returns an error if the edit itself is not valid.
func (e *Edit) check(now time.Time) error {
	switch {
	case !slices.Contains(Actions, e.Action):
		return newEditError("action %q is unknown; there are: %q", e.Action, Actions)
	case !e.Until.IsZero() && !e.Until.After(now):
		return checkFuture(e.Until, now)
	}
	if err := checkWhy(e.Actor, e.Reason); err != nil {
		return err
	}
	for _, text := range [][2]string{{"tier", e.Tier}, {"tenant", e.Tenant}, {"note", e.Note}} {
		if err := checkWritten(text[0], text[1], TextBytesMax); err != nil {
			return newEditError("%v", err)
		}
	}
	for _, field := range e.fields() {
		if field.given && !slices.Contains(field.actions, e.Action) {
			return newEditError("%s does not go with %s", field.name, e.Action)
		}
		if !field.given && slices.Contains(field.needed, e.Action) {
			return newEditError("%s is missing; %s needs it", field.name, e.Action)
		}
	}
	return nil
}

// checkWhy returns an error if the actor or the reason of an edit is invalid.
func checkWhy(actor, reason string) error {
	switch {
	case reason == "":
		return newEditError("a reason is missing; say why, for those who look at the history later")
	case actor == "":
		return newEditError("an actor is missing; say who makes the change")
	}
	if err := checkWritten("reason", reason, TextBytesMax); err != nil {
		return newEditError("%v", err)
	}
	if err := checkWritten("actor", actor, TextBytesMax); err != nil {
		return newEditError("%v", err)
	}
	return nil
}

// editField is a field of an edit and the actions that use it.
type editField struct {
	name            string
	given           bool
	actions, needed []Action
}

func (e *Edit) fields() []editField {
	only := func(name string, given bool, actions ...Action) editField {
		return editField{name, given, actions, actions}
	}
	return []editField{
		only("tier", e.Tier != "", ActionSetTier),
		only("tenant", e.Tenant != "", ActionSetTenant),
		only("limits", len(e.Limits) > 0, ActionSetLimits),
		only("units", e.Units != 0, ActionGrant),
		{"window", e.Window != "", []Action{ActionGrant}, nil},
		{"rule", e.Rule != "", []Action{ActionSetLimits, ActionUnsetLimits, ActionGrant, ActionUngrant}, []Action{ActionSetLimits, ActionGrant}},
		{"note", e.Note != "", []Action{ActionNote}, nil},
		{"until", !e.Until.IsZero(), []Action{ActionSetLimits, ActionBlock, ActionExempt}, nil},
	}
}

// String returns the edit as the history shows it.
func (e *Edit) String() string {
	parts := []string{string(e.Action)}
	for _, part := range append([]string{e.Tier, e.Tenant, e.Rule}, e.Limits...) {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if e.Units != 0 {
		parts = append(parts, fmt.Sprintf("%+d", e.Units))
	}
	if e.Window != "" {
		parts = append(parts, "window", e.Window)
	}
	if !e.Until.IsZero() {
		parts = append(parts, "until", e.Until.UTC().Format(time.RFC3339))
	}
	return strings.Join(parts, " ")
}

// After checks the edit, and returns the record that results from it. After does not change the
// record in the parameter named before, which may be nil. The error wraps [ErrEdit].
func (e *Edit) After(before *Record, now time.Time) (*Record, error) {
	if err := e.check(now); err != nil {
		return nil, err
	}
	return e.apply(before, now)
}

// Edit.apply returns the record that results from the edit. It does not change the record in the
// parameter named before, which may be nil.
func (e *Edit) apply(before *Record, now time.Time) (after *Record, err error) {
	after = new(Record)
	if before != nil {
		*after = *before
		after.Limits, after.Grants = maps.Clone(before.Limits), withoutEnded(before.Grants, now)
	}
	switch e.Action {
	case ActionSetTier:
		after.Tier = e.Tier
	case ActionUnsetTier:
		after.Tier, after.Tenant = "", ""
	case ActionSetTenant:
		after.Tenant = e.Tenant
	case ActionSetLimits:
		if after.Limits == nil {
			after.Limits = make(map[string]Limits)
		}
		after.Limits[e.Rule] = Limits{Limits: e.Limits, Until: e.Until, Reason: e.Reason}
	case ActionUnsetLimits:
		if _, ok := after.Limits[e.Rule]; !ok && (e.Rule != "" || len(after.Limits) == 0) {
			return nil, newEditError("%s has no limits of its own for rule %q", e.Client, e.Rule)
		}
		if delete(after.Limits, e.Rule); e.Rule == "" {
			after.Limits = nil
		}
	case ActionGrant:
		after.Grants = e.grant(after.Grants, now)
	case ActionUngrant:
		if after.Grants, err = e.ungrant(after.Grants); err != nil {
			return nil, err
		}
	case ActionBlock:
		after.Block = &Mark{Until: e.Until, Reason: e.Reason}
	case ActionUnblock:
		if after.Block == nil {
			return nil, newEditError("%s is not blocked by its record", e.Client)
		}
		after.Block = nil
	case ActionExempt:
		after.Exempt = &Mark{Until: e.Until, Reason: e.Reason}
	case ActionUnexempt:
		if after.Exempt == nil {
			return nil, newEditError("%s is not exempt by its record", e.Client)
		}
		after.Exempt = nil
	case ActionNote:
		after.Note = e.Note
	case ActionForget:
		after = new(Record)
	}
	if err := after.Check(); err != nil {
		return nil, newEditError("%v", err)
	}
	return after, nil
}
