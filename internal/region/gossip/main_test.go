// SPDX-License-Identifier: Apache-2.0

package gossip

import (
	"os"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
