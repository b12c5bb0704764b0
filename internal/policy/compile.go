// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core"
)

// Compile makes the ruleset that decides, of a policy that verifies no tokens and no API keys. It is [Document.CompileWith]
// without verifiers.
func (d *Document) Compile() (*core.Ruleset, error) { return d.CompileWith(nil) }

// CompileWith makes the ruleset that decides. verifiers[i] belongs to d.Identify[i]; it is nil, or missing, where nothing
// is to be verified. The error is [core.Problems]: what the words do not mean, and what the policy they make cannot do,
// each with the place of the words where it is known.
func (d *Document) CompileWith(verifiers []core.Verifier) (*core.Ruleset, error) {
	found := &report{}
	for i := range d.Identify {
		word := d.Identify[i].verified()
		if word != "" && (i >= len(verifiers) || verifiers[i] == nil) {
			path := index("identify", i) + "." + word
			found.add(core.Problem{Path: path, Why: "has nothing that verifies it", Place: d.tree.place(path),
				Remedy: "this program cannot verify credentials where this policy stands"})
		}
	}
	ruleset := d.compile(verifiers, found)
	if err := found.err(); err != nil {
		return nil, err
	}
	return ruleset, nil
}

// Check says everything that is wrong with the policy, without the files and services that its credentials are verified
// with. The error is [core.Problems].
func (d *Document) Check() error {
	found := &report{}
	d.compile(nil, found)
	return found.err()
}

// verified returns the word of a way to identify that needs a verifier, or "".
func (i *Identify) verified() string {
	switch {
	case i.JWT != nil:
		return "jwt"
	case i.APIKey != nil:
		return "api_key"
	}
	return ""
}

// refusing is the verifier that believes nobody: it stands in where a policy is only checked.
type refusing struct{}

func (refusing) Verify(string) (*core.Identity, core.CredentialState) {
	return nil, core.CredentialUnknown
}

// addFollowing adds to the problems of a tree those of the words it holds, so that one look tells everything. It adds
// nothing to a document that decoded well: that is for Compile to say.
func (d *Document) addFollowing(found *report) {
	if len(found.problems) > 0 {
		d.compile(nil, found)
	}
}

// compile adds the problems of words and of the policy to those found before. What has been found wrong is not reported
// again for what it leads to: a limit that cannot be read is not a limit that is missing.
//
// A verifier that is missing is replaced by one that refuses everything.
func (d *Document) compile(verifiers []core.Verifier, found *report) *core.Ruleset {
	decoded := problemRoots(found.problems)
	p, err := d.Policy()
	var read core.Problems
	if errors.As(err, &read) {
		for _, problem := range read {
			if !found.touches(problem.Path) {
				found.add(problem)
			}
		}
	}
	if decoded["policy"] || decoded["yaml"] || decoded["toml"] || decoded["json"] {
		return nil // a part of the document could not be read: what is missing now may be written there
	}
	for i := range p.Identify {
		if i < len(verifiers) && verifiers[i] != nil {
			p.Identify[i].Verifier = verifiers[i]
		} else if d.Identify[i].verified() != "" {
			p.Identify[i].Verifier = refusing{}
		}
	}
	ruleset, err := core.Compile(p)
	var compiled core.Problems
	switch {
	case errors.As(err, &compiled):
		for _, problem := range compiled {
			problem.Path = d.written(problem.Path)
			if found.touches(problem.Path) || decoded[root(problem.Path)] && !standsAlone(problem) {
				continue
			}
			if problem.Place == "" {
				problem.Place = d.tree.place(problem.Path)
			}
			found.add(problem)
		}
	case err != nil:
		found.add(core.Problem{Path: "policy", Why: err.Error()})
	}
	return ruleset
}

// written returns the path of what was written for the path of a policy, which are the same but for the places of
// credentials.
func (d *Document) written(path string) string {
	for i := range d.Identify {
		rest, ok := strings.CutPrefix(path, index("identify", i)+".from[")
		if !ok {
			continue
		}
		digit, _, _ := strings.Cut(rest, "]")
		way := &d.Identify[i]
		places := way.places()
		if at, err := strconv.Atoi(digit); err == nil && at < len(places) {
			return index("identify", i) + "." + way.verified() + "." + places[at].word
		}
	}
	return path
}

// place is where a credential is looked for, and the word that says so.
type place struct {
	word string
	from core.CredentialSource
}

// places returns where the credential of a way to identify is looked for, in their fixed order.
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
	add := func(present bool, word string, kind core.CredentialPlace, name string) {
		if present {
			places = append(places, place{word, core.CredentialSource{Kind: kind, Name: name}})
		}
	}
	add(header != "", "header", core.FromHeader, textproto.CanonicalMIMEHeaderKey(header))
	add(cookie != "", "cookie", core.FromCookie, cookie)
	add(query != "", "query", core.FromQuery, query)
	add(bearer, "bearer", core.FromBearer, "")
	return places
}

// standsAlone reports whether a problem is with a value that is there, whatever else its rule says. Others, such as a
// priority without a group, may only follow from a word that was misspelled.
func standsAlone(p core.Problem) bool {
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

// problemRoots returns the parts of the document, such as rules[2], in which there are problems.
func problemRoots(problems core.Problems) map[string]bool {
	roots := make(map[string]bool, len(problems))
	for _, problem := range problems {
		roots[root(problem.Path)] = true
	}
	return roots
}

// root is the first word of a path, with its index.
func root(path string) string {
	first, _, _ := strings.Cut(path, ".")
	return first
}

// place returns where a path of the document was written: the place of the deepest node on the way that is there.
func (n *Node) place(path string) string {
	if n == nil {
		return ""
	}
	place := n.Place
	for n != nil && path != "" {
		n, path = n.step(path)
		if n != nil && n.Place != "" {
			place = n.Place
		}
	}
	return place
}

// step follows the first word or index of a path. A word may hold a dot, as header names may, so the longest key wins; and
// headers may be written in another case. A single value stands for a list of one.
func (n *Node) step(path string) (next *Node, rest string) {
	path = strings.TrimPrefix(path, ".")
	if inner, ok := strings.CutPrefix(path, "["); ok {
		digits, rest, _ := strings.Cut(inner, "]")
		if n.Kind != KindList {
			return n, rest
		}
		at := 0
		for _, digit := range []byte(digits) {
			at = min(at*10+int(digit-'0'), len(n.Items))
		}
		if at < 0 || at >= len(n.Items) {
			return nil, ""
		}
		return n.Items[at], rest
	}
	best := -1
	for i := range n.Entries {
		key := n.Entries[i].Key
		if within(path, key) && (best < 0 || len(key) > len(n.Entries[best].Key)) {
			best = i
		}
	}
	if best < 0 {
		return nil, ""
	}
	return n.Entries[best].Value, path[len(n.Entries[best].Key):]
}
