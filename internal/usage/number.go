// SPDX-License-Identifier: Apache-2.0

package usage

// inNumber reads a byte of a number. inNumber returns false if the byte is not part of the number,
// which has then ended or is broken.
func (s *scanner) inNumber(c byte) bool {
	next, ok := s.afterDigit(c)
	if !ok {
		if !s.numberMayEnd() {
			s.state = stateBroken
			return false
		}
		s.endNumber()
		return false
	}
	s.state = next
	if len(s.number) <= numberBytesMax {
		s.number = append(s.number, c)
	}
	return true
}

// afterDigit returns the state after the byte; ok is false if the number cannot continue with it.
func (s *scanner) afterDigit(c byte) (next state, ok bool) {
	digit := c >= '0' && c <= '9'
	switch s.state {
	case stateMinus:
		if c == '0' {
			return stateZero, true
		}
		return stateWhole, digit
	case stateZero, stateWhole:
		switch {
		case c == '.':
			return statePoint, true
		case c|0x20 == 'e':
			return stateExponent, true
		}
		return stateWhole, digit && s.state == stateWhole
	case statePoint, stateFraction:
		if c|0x20 == 'e' && s.state == stateFraction {
			return stateExponent, true
		}
		return stateFraction, digit
	case stateExponent:
		if c == '+' || c == '-' {
			return stateSign, true
		}
		return stateExponents, digit
	default: // stateSign, stateExponents
		return stateExponents, digit
	}
}

// numberMayEnd reports whether a number is being read and is complete so far.
func (s *scanner) numberMayEnd() bool {
	return s.state == stateZero || s.state == stateWhole || s.state == stateFraction || s.state == stateExponents
}

// endNumber stores a number for the paths that lead to it.
func (s *scanner) endNumber() {
	depth := len(s.stack)
	for i := range s.paths {
		p := &s.paths[i]
		if p.matched == depth && len(p.parts) == depth && len(s.number) <= numberBytesMax {
			p.number, p.found = append(p.number[:0], s.number...), true
		}
	}
	s.endValue()
}
