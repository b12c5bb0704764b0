// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"errors"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// Compile compiles a policy that verifies no tokens and no API keys. Compile is
// [Document.CompileWith] without verifiers.
func (d *Document) Compile() (*core.Ruleset, error) { return d.CompileWith(nil) }

// CompileWith compiles the policy. The element verifiers[i] belongs to d.Identify[i]; it is nil or
// missing if that entry needs no verifier. The error is [policy.Problems]: the problems of single
// values and the problems of the whole policy, each with its position if the position is known.
func (d *Document) CompileWith(verifiers []policy.Verifier) (*core.Ruleset, error) {
	found := &syntax.Report{Finish: d.NameRules}
	for i := range d.Identify {
		word := d.Identify[i].Verified()
		if word != "" && (i >= len(verifiers) || verifiers[i] == nil) {
			path := Index("identify", i) + "." + word
			found.Add(policy.Problem{Path: path, Why: "has no verifier", Place: d.tree.PlaceOf(path),
				Remedy: "this program cannot verify credentials for this policy"})
		}
	}
	ruleset := d.compile(verifiers, found)
	if err := found.Err(); err != nil {
		return nil, err
	}
	return ruleset, nil
}

// Check reports every problem of the policy, in each of its regions, without opening the files and
// services that verify its credentials. The error is [policy.Problems].
func (d *Document) Check() error {
	found := &syntax.Report{Finish: d.NameRules}
	d.compile(nil, found)
	if len(found.Problems) == 0 {
		d.checkRegions(found)
	}
	return found.Err()
}

// Busiest returns the number of checks of the busiest sample request under a policy that Check
// accepts, and that request as text; see [core.Ruleset.Busiest].
func (d *Document) Busiest() (checks int, request string) {
	p, err := d.Policy()
	if err != nil {
		return 0, ""
	}
	rs := d.compile(nil, &syntax.Report{})
	if rs == nil {
		return 0, ""
	}
	return rs.Busiest(&p)
}

// Verified returns the name of the field that needs a verifier, "jwt" or "api_key", or "" if none
// does.
func (i *Identify) Verified() string {
	switch {
	case i.JWT != nil:
		return "jwt"
	case i.APIKey != nil:
		return "api_key"
	}
	return ""
}

// A value of the type denying is a verifier that accepts no credential. Check uses it in place of
// the real ones.
type denying struct{}

func (denying) Verify(string) (*policy.Identity, policy.CredentialState) {
	return nil, policy.CredentialUnknown
}

// addFollowing adds the problems of the values of a document to the problems of its structure, so
// that all are reported at once. addFollowing does nothing for a document that was decoded without
// problems, because Compile checks the values of such a document.
func (d *Document) addFollowing(found *syntax.Report) {
	if len(found.Problems) > 0 {
		d.compile(nil, found)
	}
}

// Document.compile adds the problems of values and of the whole policy to the report. It does not
// report consequences of a problem that the report already contains: for example, an invalid limit
// is not also reported as missing.
//
// If an entry of the list "identify" has no verifier, compile uses one that rejects every
// credential.
func (d *Document) compile(verifiers []policy.Verifier, found *syntax.Report) *core.Ruleset {
	decoded := problemRoots(found.Problems)
	p, err := d.Policy()
	var read policy.Problems
	if errors.As(err, &read) {
		for _, problem := range read {
			if !found.Touches(problem.Path) {
				found.Add(problem)
			}
		}
	}
	if decoded["policy"] || decoded["yaml"] || decoded["toml"] || decoded["json"] {
		return nil // an unreadable part of the document might contain the missing values
	}
	for i := range p.Identify {
		if i < len(verifiers) && verifiers[i] != nil {
			p.Identify[i].Verifier = verifiers[i]
		} else if d.Identify[i].Verified() != "" {
			p.Identify[i].Verifier = denying{}
		}
	}
	ruleset, err := core.Compile(p)
	var compiled policy.Problems
	switch {
	case errors.As(err, &compiled):
		for _, problem := range compiled {
			problem.Path = d.written(problem.Path)
			if found.Touches(problem.Path) || decoded[syntax.Root(problem.Path)] && !concernsOneValue(problem) {
				continue
			}
			if problem.Place == "" {
				problem.Place = d.tree.PlaceOf(problem.Path)
			}
			found.Add(problem)
		}
	case err != nil:
		found.Add(policy.Problem{Path: "policy", Why: err.Error()})
	}
	return ruleset
}

// Document.written returns the document's path for a path of the policy. The two differ only for
// the places of credentials.
func (d *Document) written(path string) string {
	for i := range d.Identify {
		rest, ok := strings.CutPrefix(path, Index("identify", i)+".from[")
		if !ok {
			continue
		}
		digit, _, _ := strings.Cut(rest, "]")
		way := &d.Identify[i]
		places := way.places()
		if at, err := strconv.Atoi(digit); err == nil && at < len(places) {
			return Index("identify", i) + "." + way.Verified() + "." + places[at].word
		}
	}
	return path
}

// place is a part of the request that can contain a credential, with its field in the document.
type place struct {
	word string
	from policy.CredentialSource
}

// Identify.places returns the parts of the request that can contain the credential, in their fixed
// order.
func (i *Identify) places() []place {
	switch {
	case i.JWT != nil:
		return placesOf(i.JWT.Header, i.JWT.Cookie, i.JWT.Query, i.JWT.Bearer)
	case i.APIKey != nil:
		return placesOf(i.APIKey.Header, i.APIKey.Cookie, i.APIKey.Query, i.APIKey.Bearer)
	}
	return nil
}

func placesOf(header, cookie, query string, bearer bool) (places []place) {
	add := func(present bool, word string, kind policy.CredentialPlace, name string) {
		if present {
			places = append(places, place{word, policy.CredentialSource{Kind: kind, Name: name}})
		}
	}
	add(header != "", "header", policy.FromHeader, textproto.CanonicalMIMEHeaderKey(header))
	add(cookie != "", "cookie", policy.FromCookie, cookie)
	add(query != "", "query", policy.FromQuery, query)
	add(bearer, "bearer", policy.FromBearer, "")
	return places
}

// concernsOneValue reports whether a problem concerns a single value, whatever else is in its rule.
// Other problems, such as a priority without a group, can result from a misspelled field.
func concernsOneValue(p policy.Problem) bool {
	_, inRule, _ := strings.Cut(p.Path, ".")
	_, match, inMatch := strings.Cut("."+inRule, ".match.")
	switch {
	case p.Value == "":
		return false
	case inMatch:
		return strings.HasPrefix(match, "header.") || strings.HasSuffix(match, "]")
	case strings.HasPrefix(inRule, "cost["):
		return strings.HasSuffix(inRule, ".n")
	default:
		return inRule == "name" || strings.HasPrefix(inRule, "limit[")
	}
}

// problemRoots returns the parts of the document that have problems, such as rules[2].
func problemRoots(problems policy.Problems) map[string]bool {
	roots := make(map[string]bool, len(problems))
	for _, problem := range problems {
		roots[syntax.Root(problem.Path)] = true
	}
	return roots
}

// NameRules adds rule names to problems, because people find a rule by its name.
func (d *Document) NameRules(problems policy.Problems) {
	for i := range problems {
		digits, inRules := strings.CutPrefix(syntax.Root(problems[i].Path), "rules[")
		if !inRules {
			continue
		}
		at, err := strconv.Atoi(strings.TrimSuffix(digits, "]"))
		if err == nil && at >= 0 && at < len(d.Rules) {
			problems[i].Rule = syntax.Cut(d.Rules[at].Name)
		}
	}
}

// Place returns the position of a path in the document, such as "policy.yaml:12". The result is the
// position of the deepest existing part of the path. For a Document made in Go, it is "".
func (d *Document) Place(path string) string { return d.tree.PlaceOf(path) }
