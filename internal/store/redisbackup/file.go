// SPDX-License-Identifier: Apache-2.0

package redisbackup

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"time"
)

// A backup is text: a first line with the format and the time, one line for each record, and a last
// line with the SHA-256 of all bytes before it.
const (
	format    = "penstock redis backup 1"
	endFormat = "sha256 %x\n"
	endBytes  = len("sha256 ") + 2*sha256.Size + 1
	// lineBytesMax bounds a line.
	lineBytesMax = 256 << 10
)

// writer writes the lines of a backup.
type writer struct {
	to   *bufio.Writer
	hash hash.Hash
	line []byte
}

func newWriter(to io.Writer, now time.Time) *writer {
	w := &writer{hash: sha256.New()}
	w.to = bufio.NewWriterSize(io.MultiWriter(to, w.hash), 256<<10)
	_, _ = fmt.Fprintf(w.to, "%s %s\n", format, now.UTC().Format(time.RFC3339)) // Flush returns the error
	return w
}

func (w *writer) addRecord(r *record) error {
	w.line = r.append(w.line[:0])
	if len(w.line) > lineBytesMax {
		return fmt.Errorf("the counter %.100q has %d bytes, and a line has at most %d: delete it", r.key, len(w.line), lineBytesMax)
	}
	_, err := w.to.Write(w.line)
	return err
}

// writer.end writes the last line.
func (w *writer) end(to io.Writer) error {
	if err := w.to.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(to, endFormat, w.hash.Sum(nil))
	return err
}

// errAltered is the error for a file that is not as it was written.
var errAltered = errors.New("it is not as it was written: bytes are altered or missing, or it is no backup; nothing was restored, take another one")

// check reads a whole backup and returns the time at which it was made. The error is errAltered if
// any byte is not as it was written.
func check(file io.ReadSeeker) (made time.Time, err error) {
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return made, err
	}
	if size <= int64(endBytes) {
		return made, errAltered
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return made, err
	}
	sum := sha256.New()
	made, wrong := lines(io.TeeReader(io.LimitReader(file, size-int64(endBytes)), sum), func(*record) error { return nil })
	if wrong != nil {
		if _, err := io.Copy(sum, io.LimitReader(file, size-int64(endBytes)-position(file))); err != nil {
			return made, err
		}
	}
	end := make([]byte, endBytes)
	if _, err := io.ReadFull(file, end); err != nil {
		return made, fmt.Errorf("read the last line: %w", err)
	}
	if !bytes.Equal(end, fmt.Appendf(nil, endFormat, sum.Sum(nil))) {
		return made, errAltered
	}
	return made, wrong
}

// position returns the offset at which the file is read next.
func position(file io.Seeker) int64 {
	at, _ := file.Seek(0, io.SeekCurrent)
	return at
}

// read calls the function named each for every record of a backup that the function named check has
// approved.
func read(file io.ReadSeeker, each func(*record) error) error {
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err = lines(io.LimitReader(file, size-int64(endBytes)), each)
	return err
}

// lines calls the function named each for every record, and returns the time at which the backup
// was made.
func lines(from io.Reader, each func(*record) error) (made time.Time, err error) {
	scanner := bufio.NewScanner(from)
	scanner.Buffer(make([]byte, 64<<10), lineBytesMax)
	if !scanner.Scan() {
		return made, errors.Join(errAltered, scanner.Err())
	}
	at, ok := strings.CutPrefix(scanner.Text(), format+" ")
	if made, err = time.Parse(time.RFC3339, at); !ok || err != nil {
		return made, fmt.Errorf("it begins with %.60q, which is no format that this version of penstock knows: restore it with the version that wrote it",
			scanner.Text())
	}
	for n := 2; scanner.Scan(); n++ {
		r, ok := parseRecord(scanner.Text())
		if !ok {
			return made, fmt.Errorf("line %d, %.100q, is no counter that this version of penstock knows: restore it with the version that wrote it",
				n, scanner.Text())
		}
		if err := each(&r); err != nil {
			return made, err
		}
	}
	return made, scanner.Err()
}
