// SPDX-License-Identifier: Apache-2.0

package core

// condition is one compiled [Match]. It is immutable and safe for concurrent use. The zero condition always holds.
type condition struct {
	// everyReading makes a path that servers read in more than one way (see reading) match only if each of its readings
	// does. It is for conditions that excuse a request (action allow); set it before newMatcher.
	everyReading bool
}

// compileMatch checks m and compiles it; at says where it stands, such as "rules[2].match". With problems, all of them
// reported, the condition is of no use.
func compileMatch(at string, m Match) (condition, Problems) { panic("todo") }

// holds reports whether every part of the condition holds.
func (c *condition) holds(r *request) bool { panic("todo") }

// endpoint returns the path pattern that the request matches: of several the most specific. ok is false if the condition
// has no path patterns or none matches.
func (c *condition) endpoint(r *request) (pattern string, ok bool) { panic("todo") }

// endpointSpecific reports whether the condition names a path, a method or a host.
func (c *condition) endpointSpecific() bool { panic("todo") }
