// SPDX-License-Identifier: Apache-2.0

package compact_test

import (
	"fmt"

	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// A bridge sends its policy to a filter in compact form.
func ExampleAppendPolicy() {
	limit, err := counter.ParseLimit("100/1m")
	if err != nil {
		fmt.Println(err)
		return
	}
	written := policy.Policy{
		Name:  "shop",
		Rules: []policy.Rule{{Name: "search", Limits: []counter.Limit{limit}}},
	}
	data := compact.AppendPolicy(nil, &written, "v1")

	read, version, err := compact.ReadPolicy(data)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(version, read.Name, read.Rules[0].Name, read.Rules[0].Limits[0])

	data[len(data)-1] ^= 1
	_, _, err = compact.ReadPolicy(data)
	fmt.Println("damaged data is an error:", err != nil)
	// Output:
	// v1 shop search 100/1m
	// damaged data is an error: true
}
