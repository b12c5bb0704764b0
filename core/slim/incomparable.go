// SPDX-License-Identifier: Apache-2.0

package slim

// Incomparable is the type of the first field, named "_", of structs that are never compared. It
// takes no memory. The compiler generates an equality function for each comparable struct type, and
// the linker keeps the function if the type is reachable. Price: 20.3 KB for all structs together.
type Incomparable = [0]func()
