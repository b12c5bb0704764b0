// SPDX-License-Identifier: Apache-2.0

package policy

// Tree reads a document that is not a policy but is written in the same formats, such as a list of API keys, as
// strictly and within the same bounds; name is how its places call it. The node is nil for a document without content. The
// error is [core.Problems].
func Tree(name string, format Format, data []byte) (*Node, error) {
	found := &report{}
	tree, err := parse(name, format, data, found)
	if err == nil {
		err = found.err()
	}
	if err != nil {
		return nil, err
	}
	return tree, nil
}

// Place returns where a path of the document was written, such as "policy.yaml:12": the place of the deepest part on the
// way that is there. It is "" for a Document made in Go.
func (d *Document) Place(path string) string { return d.tree.place(path) }
