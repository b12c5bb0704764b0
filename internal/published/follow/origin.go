// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"errors"
)

// Origin is a place from which the signed text of a policy is read. It is safe for concurrent use.
type Origin interface {
	// String names the policy in the origin, such as redis:shop.
	String() string
	// Read returns the present text. Read bounds its time. The error is an [*AwayError] if the
	// origin does not answer, and wraps [ErrNone] if no policy of the name is published. Any other
	// error means that the origin has answered, but not with the text. Such an error is a
	// [*DeniedError] if its words can vary although nothing has changed.
	Read(ctx context.Context) ([]byte, error)
	// Listen calls changed whenever the text may have changed. Listen returns when the context is
	// done, or when the origin can announce nothing more, for example because the connection is
	// lost.
	Listen(ctx context.Context, changed func())
}

// ErrNone is the error if no policy of the name is published.
var ErrNone = errors.New("none is published here: publish it with penstock control policy publish, or correct the name")

// AwayError is an error of an origin that does not answer. It leaves the policy in force as it is.
type AwayError struct{ Err error }

func (e *AwayError) Error() string { return e.Err.Error() }

func (e *AwayError) Unwrap() error { return e.Err }

// DeniedError is an error of an origin that has answered, but not with the text. Denials of the
// same kind are reported once, even if their words vary.
type DeniedError struct {
	Kind string
	Err  error
}

func (e *DeniedError) Error() string { return e.Err.Error() }

func (e *DeniedError) Unwrap() error { return e.Err }

// kindOf returns the kind of a DeniedError. For any other error, it returns the text of the error.
func kindOf(err error) string {
	if denied, ok := errors.AsType[*DeniedError](err); ok {
		return denied.Kind
	}
	return err.Error()
}
