// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/penstock/penstock/internal/policyfile"
)

// tokenMin is the least length of a token: 16 random letters and digits are 95 bits.
const tokenMin = 16

// ReadToken returns a token that is given either in a file or as a text, which may be {env.NAME}.
// ReadToken returns "" if neither is given. The arguments inText and inFile name the two settings
// in messages.
func ReadToken(inText, text, inFile, file string) (string, error) {
	token, err := policyfile.Secret(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", inText, err)
	}
	if file != "" {
		if token != "" {
			return "", fmt.Errorf("%s and %s are both given: keep one of them", inText, inFile)
		}
		if token, err = ReadSecret(file); err != nil {
			return "", fmt.Errorf("%s: %w", inFile, err)
		}
	}
	if given := text != "" || file != ""; given && len(token) < tokenMin {
		return "", fmt.Errorf("the token has %d characters, so it can be guessed: make one of at least %d, as with openssl "+
			"rand -hex 16", len(token), tokenMin)
	}
	for _, c := range []byte(token) {
		if c <= ' ' || c > '~' {
			return "", errors.New("the token holds a character that a header cannot carry: keep to letters and digits")
		}
	}
	return token, nil
}

// ReadSecret reads a file that contains only a secret and line ends.
func ReadSecret(name string) (string, error) {
	const bytesMax = 10 << 10 // a token of an issuer has 8 KiB at most
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, bytesMax+1))
	switch {
	case err != nil:
		return "", err
	case len(text) > bytesMax:
		return "", fmt.Errorf("%q is larger than %d bytes: it is the wrong file", name, bytesMax)
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" {
		return "", fmt.Errorf("%q is empty", name)
	}
	return secret, nil
}
