// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"strings"
	"testing"
)

// Asker sends the request of an exchange to a front. If the exchange expects a settlement, Asker
// returns after the settlement.
type Asker func(t testing.TB, e *Exchange) Answer

// Run runs the stories against a front. For each story, it calls the function begin, which returns
// an Asker. Run fails the test for each answer that does not meet its expectation, and logs the
// differences that the corpus permits.
func Run(t *testing.T, front string, stories []Story, begin func(t testing.TB, s *Story) Asker) {
	asked, told, others := 0, 0, 0
	for i := range stories {
		s := &stories[i]
		if why, excepted := s.Except[front]; excepted {
			t.Logf("%s: %s is not told this story: %s", s.Place, front, why)
			others++
			continue
		}
		told++
		t.Run(s.ID+" "+s.Name, func(t *testing.T) {
			ask := begin(t, s)
			for j := range s.Exchanges {
				e := &s.Exchanges[j]
				if other, differs := e.Other[front]; differs {
					t.Logf("%s: %s answers otherwise: %s", e.Place, front, other.Why)
					others++
				}
				want := e.For(front)
				for n := range e.Times {
					asked++
					answer := ask(t, e)
					if problems := want.Problems(&answer); len(problems) > 0 {
						t.Fatalf("%s, time %d of %d: %s\n%s", e.Place, n+1, e.Times, e.Text, strings.Join(problems, "\n"))
					}
				}
			}
		})
	}
	t.Logf("%s: %d requests in %d stories, %d places where it differs by design", front, asked, told, others)
}

// RunWrong runs the stories with wrong expectations. If the front's answers satisfy one of these
// stories, the comparison of answers is too weak, and RunWrong fails the test.
func RunWrong(t *testing.T, front string, stories []Story, begin func(t testing.TB, s *Story) Asker) {
	for i := range stories {
		s := &stories[i]
		t.Run("wrong "+s.ID, func(t *testing.T) {
			ask := begin(t, s)
			for j := range s.Exchanges {
				e := &s.Exchanges[j]
				answer := ask(t, e)
				if problems := e.Want.Problems(&answer); len(problems) == 0 {
					t.Errorf("%s: %s\n%s agrees with a wrong expectation: %+v", e.Place, e.Text, front, answer)
				}
			}
		})
	}
}

// Requests returns the number of requests in the stories.
func Requests(stories []Story) (all int) {
	for i := range stories {
		for j := range stories[i].Exchanges {
			all += stories[i].Exchanges[j].Times
		}
	}
	return all
}
