// SPDX-License-Identifier: Apache-2.0

package counter_test

import (
	"fmt"

	"github.com/penstock/penstock/core/counter"
)

// A store keeps the State of each counter and lets Decide change it.
func ExampleDecide() {
	limit, err := counter.ParseLimit("2/1m fixed_window")
	if err != nil {
		fmt.Println(err)
		return
	}
	checks := []counter.Check{{Key: []byte("orders:alice"), Limit: &limit, Op: counter.OpTake, Cost: 1}}
	slots := make([]counter.Slot, 1)
	results := make([]counter.Result, 1)
	for second := range counter.Micros(3) {
		counter.Decide(600*counter.Second+second*counter.Second, checks, slots, results)
		r := results[0]
		fmt.Printf("denied: %t, remaining: %d, wait: %v\n", r.Denied, r.Remaining, r.Wait)
	}
	// Output:
	// denied: false, remaining: 1, wait: 0s
	// denied: false, remaining: 0, wait: 0s
	// denied: true, remaining: 0, wait: 58s
}

func ExampleParseLimit() {
	limit, err := counter.ParseLimit("10/1s burst 20")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(limit.Algorithm(), limit.Count(), limit.Window(), limit.Capacity())
	_, err = counter.ParseLimit("10")
	fmt.Println(err)
	// Output:
	// token_bucket 10 1s 20
	// "10" has no window: write COUNT/WINDOW, for example 100/1m
}
