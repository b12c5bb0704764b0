// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/enforce/metrics"
)

func init() { collectors = append(collectors, metrics.Directories(directoriesInUse)) }

// directoriesInUse yields the directories of the stores in use. During a reload there may be two.
func directoriesInUse(yield func(*directory.Directory) bool) {
	stores.Range(func(_, value any) bool {
		d := value.(*pooledStore).directory
		return d == nil || yield(d)
	})
}
