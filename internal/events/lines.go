// SPDX-License-Identifier: Apache-2.0

package events

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// chunkBytes is the size at which the buffer is written, with the line that reaches it.
const chunkBytes = 64 << 10

// lines writes events as lines of JSON. If a write ends within a line, the next one begins with a
// line end, so that only one line is damaged.
type lines struct {
	w      io.Writer
	buffer []byte
	torn   bool
}

// Write implements [Sink].
func (l *lines) Write(events []Event) (written int, err error) {
	for written < len(events) {
		l.buffer = l.buffer[:0]
		begun := written
		for written < len(events) && len(l.buffer) < chunkBytes {
			l.buffer = append(events[written].AppendJSON(l.buffer), '\n')
			written++
		}
		if n, err := l.write(); err != nil {
			return begun + n, err
		}
	}
	return written, nil
}

// lines.write writes the buffer. If the method cannot write everything, it returns the number of
// complete lines.
func (l *lines) write() (whole int, err error) {
	if l.torn {
		if _, err := io.WriteString(l.w, "\n"); err != nil {
			return 0, err
		}
		l.torn = false
	}
	n, err := l.w.Write(l.buffer)
	if err == nil {
		return 0, nil
	}
	l.torn = n > 0 && l.buffer[n-1] != '\n'
	return bytes.Count(l.buffer[:n], []byte{'\n'}), err
}

// file is a file of lines. If the file is renamed or removed, as by logrotate, it is created again.
type file struct {
	path string
	f    *os.File
	lines
}

// openFile opens a file for appending.
func openFile(path string) (*file, error) {
	if info, err := os.Stat(path); err == nil && info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDir) != 0 {
		return nil, fmt.Errorf("%q is %s: write the path of a file", path, typeName(info.Mode()))
	}
	f := &file{path: path}
	return f, f.open()
}

// typeName names the type of something that is not a regular file.
func typeName(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeDir != 0:
		return "a directory"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a named pipe, which blocks without a reader"
}

func (f *file) open() error {
	opened, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	f.f, f.lines = opened, lines{w: opened, buffer: f.buffer}
	return nil
}

// Write implements [Sink].
func (f *file) Write(events []Event) (written int, err error) {
	if err := f.follow(); err != nil {
		return 0, err
	}
	return f.lines.Write(events)
}

// file.follow opens the file again if the path now names another file.
func (f *file) follow() error {
	if at, err := os.Stat(f.path); err == nil {
		if own, err := f.f.Stat(); err != nil || os.SameFile(at, own) {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	former := f.f
	if err := f.open(); err != nil {
		return err
	}
	return former.Close()
}

// Close closes the file.
func (f *file) Close() error { return f.f.Close() }

// The destinations of events, as written in a flag or a configuration.
const (
	ToStdout = "stdout"
	ToNone   = "none" // events are only remembered
	toSyslog = "syslog"
)

// Forms lists the values that [Open] accepts.
const Forms = "stdout, a path with a slash, syslog, syslog:udp://HOST:PORT, syslog:tcp://HOST:PORT or none"

// Open opens a sink: standard output, the path of a file, or a syslog server. The sink is nil for
// [ToNone]. The error names the valid forms.
func Open(to string) (Sink, io.Closer, error) {
	switch scheme, rest, _ := strings.Cut(to, ":"); {
	case to == ToNone:
		return nil, io.NopCloser(nil), nil
	case to == ToStdout:
		return &lines{w: os.Stdout}, io.NopCloser(nil), nil
	case scheme == toSyslog:
		s, err := openSyslog(rest)
		if err != nil {
			return nil, nil, err
		}
		return s, s, nil
	case strings.Contains(to, "/"):
		f, err := openFile(to)
		if err != nil {
			return nil, nil, fmt.Errorf("events cannot be written: %w; write a path in a directory that this process may write to, or stdout", err)
		}
		return f, f, nil
	}
	return nil, nil, fmt.Errorf("%q is no place for events: write %s", to, Forms)
}
