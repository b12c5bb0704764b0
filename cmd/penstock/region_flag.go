// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/penstock/penstock/internal/policyfile"
)

// regionFlag is the flag --region of commands that read a policy file together with the counters of
// one region.
type regionFlag string

func (r *regionFlag) register(flags *pflag.FlagSet) {
	flags.StringVar((*string)(r), "region", "", "the `NAME` of the region whose limits and counters are meant, if the policy has regions")
}

// regionFlag.choose selects the region's parts of the limits.
func (r regionFlag) choose(d *policyfile.Document) error {
	switch names := d.RegionNames(); {
	case len(names) > 0 && r == "":
		return fmt.Errorf("the policy has regions, each with its part of the limits; add --region %s", strings.Join(names, " or "))
	case len(names) == 0 && r != "":
		return fmt.Errorf("--region %q: the policy has no regions; leave it out", string(r))
	}
	return d.InRegion(string(r))
}
