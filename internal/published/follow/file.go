// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/penstock/penstock/internal/published"
)

// Source.path returns the path of the policy's file. The name of a policy has only letters, digits,
// dots, dashes and underscores.
func (s *Source) path() string { return filepath.Join(s.o.Folder, "policy-"+s.o.Policy+".signed") }

// Source.read returns the text in the file, or nil. The file is verified like a text from the
// origin, because others may write to the file.
func (s *Source) read() (*handed, error) {
	if s.o.Folder == "" {
		return nil, nil
	}
	file, err := os.Open(s.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the policy that was kept: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, published.TextBytesMax+1))
	if err != nil {
		return nil, fmt.Errorf("the policy that was kept: %w", err)
	}
	kept, err := s.open(text)
	if err != nil {
		return nil, fmt.Errorf("the policy that was kept in %q is denied: %w", s.path(), err)
	}
	return kept, nil
}

// Source.write replaces the file.
func (s *Source) write(text []byte) (err error) {
	if s.o.Folder == "" || s.o.Trial {
		return nil
	}
	if present, err := os.ReadFile(s.path()); err == nil && bytes.Equal(present, text) {
		return nil
	}
	if err := os.MkdirAll(s.o.Folder, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(s.o.Folder, "policy-*.new") // with the mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	if _, err = file.Write(text); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), s.path())
}
