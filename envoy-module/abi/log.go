// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package abi

/*
#cgo noescape write_log
#cgo nocallback write_log
#cgo noescape writes_log
#cgo nocallback writes_log
#include "stream.h"
*/
import "C"

import (
	"bytes"
	"context"
	"log/slog"
	"unsafe"
)

// logger writes into Envoy's log, under the name dynamic_modules.
var logger = newLogger()

func newLogger() *slog.Logger { return slog.New(envoyLog{}) }

// envoyLog is a handler that writes into Envoy's log.
type envoyLog struct{ attrs []slog.Attr }

// levelOf returns the number that Envoy gives to a level.
func levelOf(level slog.Level) C.int {
	switch {
	case level >= slog.LevelError:
		return 4
	case level >= slog.LevelWarn:
		return 3
	case level >= slog.LevelInfo:
		return 2
	}
	return 1
}

// Enabled implements [slog.Handler].
func (envoyLog) Enabled(_ context.Context, level slog.Level) bool {
	return bool(C.writes_log(levelOf(level)))
}

// Handle implements [slog.Handler].
func (h envoyLog) Handle(ctx context.Context, record slog.Record) error {
	var line bytes.Buffer
	line.WriteString("penstock: ")
	record.AddAttrs(h.attrs...)
	text := slog.NewTextHandler(&line, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: withoutHead})
	if err := text.Handle(ctx, record); err != nil {
		return err
	}
	all := bytes.TrimSpace(line.Bytes())
	C.write_log(levelOf(record.Level), (*C.char)(unsafe.Pointer(unsafe.SliceData(all))), C.size_t(len(all)))
	return nil
}

// withoutHead drops the time and the level of a record, because Envoy writes them itself.
func withoutHead(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
		return slog.Attr{}
	}
	return a
}

// WithAttrs implements [slog.Handler].
func (h envoyLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return envoyLog{attrs: append(h.attrs[:len(h.attrs):len(h.attrs)], attrs...)}
}

// WithGroup ignores the group, because no package uses one.
func (h envoyLog) WithGroup(string) slog.Handler { return h }
