// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/core/policy"
)

// Role determines what a token may do. Each role of people includes the permissions of the roles
// before it. The role of nodes permits only two things: to send what happened, which no other role
// permits, and to read published policies.
type Role string

// The roles.
const (
	Viewer  Role = "viewer"  // read
	Support Role = "support" // block clients, grant units; exempt clients and set limits, with an end
	Editor  Role = "editor"  // change clients, API keys, tiers and policies
	Admin   Role = "admin"   // make and revoke tokens, write thresholds
	Node    Role = "node"    // send what happened, and read published policies
)

// Roles are all roles: those of people from the least to the greatest, then that of nodes.
var Roles = []Role{Viewer, Support, Editor, Admin, Node}

// May reports whether the role includes the needed one.
func (r Role) May(needed Role) bool {
	if r == Node || needed == Node {
		return r == needed
	}
	return slices.Contains(Roles, r) && slices.Index(Roles, r) >= slices.Index(Roles, needed)
}

// OfPeople reports whether people may have the role.
func (r Role) OfPeople() bool { return r != Node && slices.Contains(Roles, r) }

// PersonPrefix is the prefix of the name of a person in the history. No token has such a name.
const PersonPrefix = "oidc:"

// PersonName returns the name that a person has in the history. The parameter name is the issuer's
// name for the person. The error is [Invalid] if this name cannot be in the history.
func PersonName(name string) (string, error) {
	if err := checkName("name", name, "the issuer's name for this person"); err != nil {
		return "", err
	}
	return PersonPrefix + name, nil
}

// checkName returns an [Invalid] if a name cannot be in the history.
func checkName(place, name, what string) error {
	if name == "" || len(name) > policy.ValueBytesMax || !utf8.ValidString(name) || strings.ContainsFunc(name, unprintable) {
		return &Invalid{Place: place, Value: name, Text: fmt.Sprintf("%s, %.40q, is empty, has a character that cannot be printed, or more than %d bytes",
			what, name, policy.ValueBytesMax)}
	}
	return nil
}

// unprintable reports whether a character is not shown as it is: a control character, or a
// character that changes how others are shown.
func unprintable(r rune) bool { return r != ' ' && !unicode.IsPrint(r) }

// Token is a token of the API, without its secret.
type Token struct {
	Token     string     `json:"token" doc:"the token's identifier; it is not secret"`
	Name      string     `json:"name" doc:"who uses it, for the history"`
	Role      Role       `json:"role" enum:"viewer,support,editor,admin,node"`
	CreatedAt time.Time  `json:"created_at"`
	CreatedBy string     `json:"created_by"`
	ExpiresAt time.Time  `json:"expires_at"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
}

const (
	// TokenPrefix is the prefix of each secret, so that leaked secrets can be found in logs and
	// files.
	TokenPrefix = "pst_"
	secretBytes = 32
	// TokenTimeMax is the longest life of a token.
	TokenTimeMax = 2 * 365 * 24 * time.Hour
	// firstTokenTime is the life of the first token.
	firstTokenTime = 90 * 24 * time.Hour
	// tokensMax bounds the table. The bound includes expired and revoked tokens.
	tokensMax = 10_000
	idBytes   = 6
)

// NewToken makes a token that expires at an instant, in whole seconds. The secret is returned once,
// and only its hash is kept.
func (l *Ledger) NewToken(ctx context.Context, actor Actor, name string, role Role, expires time.Time, reason string) (secret string, t Token, err error) {
	if err := checkReason(reason); err != nil {
		return "", t, err
	}
	err = l.write(ctx, func(w *writeTx) error {
		secret, t, err = w.newToken(ctx, actor, name, role, expires, reason)
		return err
	})
	return secret, t, err
}

// FirstToken makes an admin's token if there has never been a token. Otherwise the secret is "".
func (l *Ledger) FirstToken(ctx context.Context, actor Actor) (secret string, t Token, err error) {
	err = l.write(ctx, func(w *writeTx) error {
		var some bool
		if err := w.tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM tokens)").Scan(&some); err != nil || some {
			return err
		}
		secret, t, err = w.newToken(ctx, actor, "admin", Admin, w.now.Add(firstTokenTime), "the first token")
		return err
	})
	return secret, t, err
}

func (w *writeTx) newToken(ctx context.Context, actor Actor, name string, role Role, expires time.Time, reason string) (secret string, t Token, err error) {
	expires = expires.UTC().Truncate(time.Second)
	if err := checkToken(name, role, expires.Sub(w.now)); err != nil {
		return "", t, err
	}
	var present int
	if err := w.tx.QueryRow(ctx, "SELECT count(*) FROM tokens").Scan(&present); err != nil {
		return "", t, err
	}
	if present >= tokensMax {
		return "", t, &Invalid{Value: present, Text: fmt.Sprintf("there are %d tokens, and no more can be: give one to each program, not to each call", present)}
	}
	var random [secretBytes + idBytes]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", t, err
	}
	secret = TokenPrefix + hex.EncodeToString(random[:secretBytes])
	t = Token{Token: hex.EncodeToString(random[secretBytes:]), Name: name, Role: role, CreatedAt: w.now, CreatedBy: actor.Name, ExpiresAt: expires}
	if _, err := w.tx.Exec(ctx, "INSERT INTO tokens (token, hash, name, role, created_at, created_by, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7)",
		t.Token, hashOf(secret), t.Name, string(t.Role), t.CreatedAt, t.CreatedBy, t.ExpiresAt); err != nil {
		return "", t, err
	}
	after := fmt.Sprintf(`{"role":%q,"expires_at":%q}`, t.Role, t.ExpiresAt.Format(time.RFC3339))
	return secret, t, w.note(ctx, Change{Actor: actor.Name, Origin: actor.Origin, What: WhatToken, Subject: t.Token + " " + name, Action: "new-token",
		Reason: reason, After: &after})
}

func checkToken(name string, role Role, life time.Duration) error {
	switch err := checkName("name", name, "the name of the token's user"); {
	case err != nil:
		return err
	case len(name) >= len(PersonPrefix) && strings.EqualFold(name[:len(PersonPrefix)], PersonPrefix):
		return &Invalid{Place: "name", Value: name, Text: fmt.Sprintf("the name %.40q begins with %q, as the names of people who sign in at the issuer do: "+
			"choose another one", name, PersonPrefix)}
	case !slices.Contains(Roles, role):
		return &Invalid{Place: "role", Value: role, Text: fmt.Sprintf("there is no role %q; there are: %q", role, Roles)}
	case life < time.Minute || life > TokenTimeMax:
		return &Invalid{Place: "expires_at", Value: life.String(), Text: fmt.Sprintf("a token lives for a minute at least and %d days at most", TokenTimeMax/(24*time.Hour))}
	}
	return nil
}

// hashOf returns the hash that is stored for a secret.
func hashOf(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

const tokenColumns = "token, name, role, created_at, created_by, expires_at, revoked_at"

func scanToken(row pgx.CollectableRow) (t Token, err error) {
	err = row.Scan(&t.Token, &t.Name, &t.Role, &t.CreatedAt, &t.CreatedBy, &t.ExpiresAt, &t.RevokedAt)
	t.CreatedAt, t.ExpiresAt = t.CreatedAt.UTC(), t.ExpiresAt.UTC()
	return t, err
}

// Bearer returns the token that has a secret. The error is [ErrNone] if there is none, or if it has
// expired or was revoked. A text without the form of a secret costs no query.
func (l *Ledger) Bearer(ctx context.Context, secret string) (t Token, err error) {
	digits, ok := strings.CutPrefix(secret, TokenPrefix)
	if random, err := hex.DecodeString(digits); !ok || err != nil || len(random) != secretBytes {
		return t, ErrNone
	}
	rows, err := l.Pool.Query(ctx, "SELECT "+tokenColumns+" FROM tokens WHERE hash = $1", hashOf(secret))
	if err != nil {
		return t, err
	}
	found, err := pgx.CollectRows(rows, scanToken)
	if err != nil {
		return t, err
	}
	if len(found) == 0 || found[0].RevokedAt != nil || !found[0].ExpiresAt.After(l.Instant()) {
		return t, ErrNone
	}
	return found[0], nil
}

// Tokens returns the next n tokens after the given one, sorted by identifier.
func (l *Ledger) Tokens(ctx context.Context, after string, n int) ([]Token, error) {
	rows, err := l.Pool.Query(ctx, "SELECT "+tokenColumns+" FROM tokens WHERE token > $1 ORDER BY token LIMIT $2", after, n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanToken)
}

// Revoke ends a token at once, for every control plane over the database.
func (l *Ledger) Revoke(ctx context.Context, actor Actor, token, reason string) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	return l.write(ctx, func(w *writeTx) error {
		if !utf8.ValidString(token) || strings.ContainsRune(token, 0) {
			return ErrNone
		}
		rows, err := w.tx.Query(ctx, "UPDATE tokens SET revoked_at = $2 WHERE token = $1 AND revoked_at IS NULL RETURNING "+tokenColumns, token, w.now)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, scanToken)
		switch {
		case err != nil:
			return err
		case len(found) == 0:
			return ErrNone
		}
		return w.note(ctx, Change{Actor: actor.Name, Origin: actor.Origin, What: WhatToken, Subject: token + " " + found[0].Name, Action: "revoke-token", Reason: reason})
	})
}
