// SPDX-License-Identifier: Apache-2.0

package front

import "sync"

// shares holds values that several configurations use, by their keys. A value is closed at the end
// of its last use. The owner's mutex guards the map.
type shares[T interface{ close() error }] map[string]*share[T]

// share is a value with the number of its users.
type share[T any] struct {
	value T
	users int
}

// shares.use begins a use of the value of a key. If the value is not in use yet, it is opened with
// open(). The mutex must be held.
func (s shares[T]) use(key string, open func() (T, error)) (value T, err error) {
	one := s[key]
	if one == nil {
		if value, err = open(); err != nil {
			return value, err
		}
		one = &share[T]{value: value}
		s[key] = one
	}
	one.users++
	return one.value, nil
}

// shares.end ends a use of the value of a key. The last use closes the value. The mutex must not be
// held.
func (s shares[T]) end(mu sync.Locker, key string) error {
	mu.Lock()
	one := s[key]
	one.users--
	last := one.users == 0
	if last {
		delete(s, key)
	}
	mu.Unlock()
	if !last {
		return nil
	}
	return one.value.close()
}
