// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"fmt"

	"github.com/penstock/penstock/internal/published"
)

// Settings are what a front's configuration says about a published policy, as written.
type Settings struct {
	Keys         []string // ed25519:…
	Folder, Node string
}

// Fill sets Keys, Folder and Node. The function named replace returns a text with its placeholders
// replaced. If replace is nil, texts stay as they are. The errors name the fields as configurations
// do.
func (s *Settings) Fill(o *Options, replace func(text string, escape func(string) string) (string, error)) (err error) {
	if replace == nil {
		replace = func(text string, _ func(string) string) (string, error) { return text, nil }
	}
	if o.Folder, err = replace(s.Folder, nil); err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	if o.Node, err = replace(s.Node, nil); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	for _, text := range s.Keys {
		filled, err := replace(text, nil)
		if err != nil {
			return fmt.Errorf("key %.60q: %w", text, err)
		}
		key, err := published.ParsePublic(filled)
		if err != nil {
			return err
		}
		o.Keys = append(o.Keys, key)
	}
	return nil
}
