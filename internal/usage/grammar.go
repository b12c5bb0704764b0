// SPDX-License-Identifier: Apache-2.0

package usage

// state is the kind of byte that can come next in a document. The values before stateValue are
// actions: what follows them does not depend on the byte alone.
type state uint8

const (
	broken         state = iota // the document is not JSON
	tooDeep                     // the document has more than depthMax levels
	actList                     // a list begins
	actListEnd                  // a list ends
	actObject                   // an object begins
	actObjectEnd                // an object ends
	actComma                    // a comma between items or members
	actSpace                    // a space that ends a number
	actName                     // the quote before a member's name
	actQuote                    // the quote after a string
	stateValue                  // a value
	stateItem                   // a value, or the end of an empty list
	stateMember                 // a name, or the end of an empty object
	stateName                   // a name
	stateColon                  // the colon between name and value
	stateNext                   // after a value: a comma, or the container's end
	stateString                 // in a string
	stateEscape                 // after a backslash
	stateHex4                   // four digits of an escape
	stateHex3                   // three of them
	stateHex2                   // two of them
	stateHex1                   // the last of them
	stateT                      // the rest of true
	stateTr                     // the rest of true
	stateF                      // the rest of false
	stateFa                     // the rest of false
	stateFal                    // the rest of false
	stateE                      // the last letter of true or false
	stateN                      // the rest of null
	stateNu                     // the rest of null
	stateNul                    // the rest of null
	stateMinus                  // after a minus: a digit
	statePoint                  // after the point: a digit
	stateExponent               // after an e: a sign or a digit
	stateSign                   // after its sign: a digit
	stateZero                   // after a leading zero: no digit; here and below, the number can end
	stateWhole                  // in the digits before a point
	stateFraction               // in the digits after the point
	stateExponents              // in the digits of an exponent
	states                      // the number of states
)

// rule says what follows if one of the bytes comes.
type rule struct {
	in    state
	bytes string
	next  state
}

const (
	spaces   = " \t\n\r"
	positive = "123456789"
	digits   = "0" + positive
	hex      = digits + "abcdefABCDEF"
)

// rules is the grammar of RFC 8259, except for the bytes of strings that [plainBytes] counts. What
// no rule names is broken.
var rules = [...]rule{
	{stateValue, spaces, stateValue}, {stateValue, "[", actList}, {stateValue, "{", actObject},
	{stateValue, `"`, stateString}, {stateValue, "-", stateMinus}, {stateValue, "0", stateZero},
	{stateValue, positive, stateWhole}, {stateValue, "t", stateT}, {stateValue, "f", stateF},
	{stateValue, "n", stateN},
	{stateItem, spaces, stateItem}, {stateItem, "]", actListEnd},
	{stateMember, spaces, stateMember}, {stateMember, `"`, actName}, {stateMember, "}", actObjectEnd},
	{stateName, spaces, stateName}, {stateName, `"`, actName},
	{stateColon, spaces, stateColon}, {stateColon, ":", stateValue},
	{stateNext, ",", actComma}, {stateNext, "]", actListEnd}, {stateNext, "}", actObjectEnd},
	{stateNext, spaces, stateNext},

	{stateString, `"`, actQuote}, {stateString, `\`, stateEscape},
	{stateEscape, `"\/bfnrt`, stateString}, {stateEscape, "u", stateHex4}, {stateHex4, hex, stateHex3},
	{stateHex3, hex, stateHex2}, {stateHex2, hex, stateHex1}, {stateHex1, hex, stateString},

	{stateT, "r", stateTr}, {stateTr, "u", stateE}, {stateE, "e", stateNext},
	{stateF, "a", stateFa}, {stateFa, "l", stateFal}, {stateFal, "s", stateE},
	{stateN, "u", stateNu}, {stateNu, "l", stateNul}, {stateNul, "l", stateNext},

	{stateMinus, "0", stateZero}, {stateMinus, positive, stateWhole},
	{stateZero, ".", statePoint}, {stateZero, "eE", stateExponent},
	{stateWhole, digits, stateWhole}, {stateWhole, ".", statePoint}, {stateWhole, "eE", stateExponent},
	{statePoint, digits, stateFraction},
	{stateFraction, digits, stateFraction}, {stateFraction, "eE", stateExponent},
	{stateExponent, "+-", stateSign}, {stateExponent, digits, stateExponents},
	{stateSign, digits, stateExponents}, {stateExponents, digits, stateExponents},
}

// grammar holds, for each state and byte, what follows.
var grammar = func() (table [states][256]state) {
	on := func(in state, bytes string, next state) {
		for i := range len(bytes) {
			table[in][bytes[i]] = next
		}
	}
	for _, r := range rules {
		on(r.in, r.bytes, r.next)
		if r.in == stateValue { // the rules of stateItem come later
			on(stateItem, r.bytes, r.next)
		}
	}
	for number := stateZero; number < states; number++ {
		on(number, ",", actComma)
		on(number, "]", actListEnd)
		on(number, "}", actObjectEnd)
		on(number, spaces, actSpace)
	}
	return table
}()
