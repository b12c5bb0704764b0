// SPDX-License-Identifier: Apache-2.0

package lease

// jain is how evenly the nodes were served, by what each got of what it asked for: 1 is evenly, 1/K is one node only.
func (f *figures) jain() float64 {
	var sum, squares, nodes float64
	for i, asked := range f.asked {
		if asked >= 20 {
			part := float64(f.got[i]) / float64(asked)
			sum, squares, nodes = sum+part, squares+part*part, nodes+1
		}
	}
	return sum * sum / (nodes * squares)
}
