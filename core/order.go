// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"
	"strings"
)

// inOrder returns the numbers from 0 to n-1 in the order of compare; equals stay in theirs. Lists of every type are sorted
// by it: a sorting for each type would be 10 to 20 KB of a filter.
func inOrder(n int, compare func(i, j int) int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, compare)
	return order
}

// sorted returns the list in the order of compare; equals stay in theirs.
func sorted[T any](list []T, compare func(a, b *T) int) []T {
	if len(list) < 2 {
		return list
	}
	out := make([]T, len(list))
	for to, from := range inOrder(len(list), func(i, j int) int { return compare(&list[i], &list[j]) }) {
		out[to] = list[from]
	}
	return out
}

func sortedTexts(list []string) []string {
	return sorted(list, func(a, b *string) int { return strings.Compare(*a, *b) })
}

func sortedKeys[V any](of map[string]V) []string {
	keys := make([]string, 0, len(of))
	for key := range of {
		keys = append(keys, key)
	}
	return sortedTexts(keys)
}
