// SPDX-License-Identifier: Apache-2.0

package core

import "strings"

// inOrder returns the numbers from 0 to n-1 in the order of compare; equals stay in theirs. Lists of every type are sorted
// by it: a sorting for each type would be 10 to 20 KB of a filter.
func inOrder(n int, compare func(i, j int) int) []int32 {
	order := make([]int32, n)
	for i := range order {
		order[i] = int32(i)
	}
	sortNumbers(order, func(i, j int32) bool {
		c := compare(int(i), int(j))
		return c < 0 || c == 0 && i < j
	})
	return order
}

// sortNumbers sorts by insertion what is short, and otherwise by heap: in place, in n log n steps whatever the order, and in
// a tenth of the library's code.
func sortNumbers(list []int32, less func(a, b int32) bool) {
	if len(list) <= 12 {
		for i := range list {
			for ; i > 0 && less(list[i], list[i-1]); i-- {
				list[i], list[i-1] = list[i-1], list[i]
			}
		}
		return
	}
	for root := len(list)/2 - 1; root >= 0; root-- {
		sift(list, root, less)
	}
	for end := len(list) - 1; end > 0; end-- {
		list[0], list[end] = list[end], list[0]
		sift(list[:end], 0, less)
	}
}

// sift brings a number of a heap down to where it belongs.
func sift(heap []int32, at int, less func(a, b int32) bool) {
	for {
		child := 2*at + 1
		if child >= len(heap) {
			return
		}
		if child+1 < len(heap) && less(heap[child], heap[child+1]) {
			child++
		}
		if !less(heap[at], heap[child]) {
			return
		}
		heap[at], heap[child] = heap[child], heap[at]
		at = child
	}
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
