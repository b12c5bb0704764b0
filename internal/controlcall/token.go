// SPDX-License-Identifier: Apache-2.0

package controlcall

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// tokenBytesMax bounds the file of a token.
const tokenBytesMax = 4 << 10

// TokenFile returns a function that reads the token of a node from a file each time, so that the
// file may be replaced.
func TokenFile(path string) func() (string, error) {
	return func() (string, error) {
		file, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("the token of the control plane: %w", err)
		}
		defer file.Close()
		text, err := io.ReadAll(io.LimitReader(file, tokenBytesMax))
		if err != nil {
			return "", fmt.Errorf("the token of the control plane: %w", err)
		}
		token := bytes.TrimSpace(text)
		if len(token) == 0 || bytes.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return "", fmt.Errorf("the file %q has no token of a control plane: write one line, of penstock control token --role node", path)
		}
		return string(token), nil
	}
}
