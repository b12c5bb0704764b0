// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/big"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/parquet-go/parquet-go"
)

const (
	// objectBytesMax is the size at which an object gets no further row group. S3 accepts 5 GB in
	// one call, but if the bucket cannot be reached, the work on one object is lost.
	objectBytesMax = 64 << 20
	// groupRows and groupBytesMax bound a row group, because the whole group is kept in memory.
	groupRows     = 200_000
	groupBytesMax = 64 << 20
	// objectRowsMax is the number of rows at which an object gets no further rows.
	objectRowsMax = 2_000_000
	// fetchRows is how many rows are read from the database or from a file at a time.
	fetchRows = 5000
)

// Totals are the sums over rows. Sums can have any size, so that no row can make them overflow.
type Totals struct {
	Rows int64      `json:"rows"`
	Sums []*big.Int `json:"sums"` // in the order of the relation's sums
}

// addRows adds the measures of a row, or other totals.
func (t *Totals) addRows(rows int64, measures ...*big.Int) {
	t.Rows += rows
	for i, n := range measures {
		if i == len(t.Sums) {
			t.Sums = append(t.Sums, new(big.Int))
		}
		t.Sums[i].Add(t.Sums[i], n)
	}
}

// Totals.equal reports whether totals are equal. Sums that are missing count as 0.
func (t *Totals) equal(o *Totals) bool {
	for i := range max(len(t.Sums), len(o.Sums)) {
		if sumAt(t.Sums, i).Cmp(sumAt(o.Sums, i)) != 0 {
			return false
		}
	}
	return t.Rows == o.Rows
}

func sumAt(sums []*big.Int, i int) *big.Int {
	if i < len(sums) {
		return sums[i]
	}
	return new(big.Int)
}

// String returns the totals for a message.
func (t *Totals) String() string { return fmt.Sprintf("%d rows, sums %v", t.Rows, t.Sums) }

// object is a file of the archive.
type object struct {
	Number int      `json:"-"`
	Key    string   `json:"key"`
	Bytes  int64    `json:"bytes"`
	SHA256 []byte   `json:"sha256"`
	Digest []byte   `json:"digest"` // of the rows, independent of their form
	Totals Totals   `json:"totals"`
	Last   []string `json:"-"`
}

// files writes and reads Parquet files with the rows of a relation.
type files interface {
	// write writes the rows that fetch() returns, in pages of the given number of rows, until no
	// rows are left or the file is large enough.
	write(ctx context.Context, to *os.File, page, rowsMax int, fetch func() (pgx.Rows, error)) (*object, error)
	// read reads the file, and calls each(...), unless it is nil, with the values of every row.
	read(from io.ReaderAt, size int64, each func(values []any) error) (*object, error)
}

// filesOf implements [files] for rows of the type R.
type filesOf[R any] struct{}

// summary adds up rows and their digest.
type summary struct {
	totals Totals
	digest hash.Hash
	text   []byte
	number big.Int
}

func newSummary() *summary { return &summary{digest: sha256.New()} }

func (s *summary) addRow(targets []any, measures []int64) (size int) {
	s.totals.Rows++
	for i, n := range measures {
		if i == len(s.totals.Sums) {
			s.totals.Sums = append(s.totals.Sums, new(big.Int))
		}
		s.totals.Sums[i].Add(s.totals.Sums[i], s.number.SetInt64(n))
	}
	s.text = s.text[:0]
	for _, target := range targets {
		s.text = appendField(s.text, target)
	}
	_, _ = s.digest.Write(s.text) // a hash returns no error
	return len(s.text)
}

// counter counts the bytes that are written through it, and computes their hash.
type counter struct {
	to    io.Writer
	bytes int64
	hash  hash.Hash
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.bytes += int64(n)
	_, _ = c.hash.Write(p[:n])
	return n, err
}

// filesOf.write implements [files].
func (f filesOf[R]) write(ctx context.Context, to *os.File, pageRows, rowsMax int, fetch func() (pgx.Rows, error)) (*object, error) {
	buffered := bufio.NewWriterSize(to, 1<<20)
	count := &counter{to: buffered, hash: sha256.New()}
	w := parquet.NewGenericWriter[R](count, parquet.Compression(&parquet.Zstd), parquet.CreatedBy("penstock", "1", ""),
		parquet.DictionaryMaxBytes(1<<20))
	s, o := newSummary(), new(object)
	page, inGroup, size := make([]R, 0, pageRows), 0, 0
	for more := true; more && count.bytes < objectBytesMax && s.totals.Rows < int64(rowsMax) && ctx.Err() == nil; {
		rows, err := fetch()
		if err != nil {
			return nil, err
		}
		n, err := f.scan(rows, &page, s)
		if err != nil {
			return nil, err
		}
		more, inGroup, size = len(page) == pageRows, inGroup+len(page), size+n
		if _, err := w.Write(page); err != nil {
			return nil, fmt.Errorf("write Parquet: %w", err)
		}
		if len(page) > 0 {
			o.Last = f.key(&page[len(page)-1])
		}
		if inGroup >= groupRows || size >= groupBytesMax {
			if err := w.Flush(); err != nil {
				return nil, fmt.Errorf("write Parquet: %w", err)
			}
			inGroup, size = 0, 0
		}
	}
	if err := errors.Join(ctx.Err(), w.Close(), buffered.Flush()); err != nil {
		return nil, fmt.Errorf("write Parquet: %w", err)
	}
	o.Bytes, o.SHA256, o.Digest, o.Totals = count.bytes, count.hash.Sum(nil), s.digest.Sum(nil), s.totals
	return o, nil
}

// filesOf.scan reads the rows of a page, and returns their size.
func (filesOf[R]) scan(rows pgx.Rows, page *[]R, s *summary) (size int, err error) {
	defer rows.Close()
	var one R
	r := any(&one).(row)
	targets := r.targets()
	*page = (*page)[:0]
	for rows.Next() {
		if err := rows.Scan(targets...); err != nil {
			return 0, err
		}
		r.normalize()
		size += s.addRow(targets, r.measures())
		*page = append(*page, one)
	}
	return size, rows.Err()
}

func (filesOf[R]) key(r *R) []string { return any(r).(row).key() }

// errFile is the error for a file that differs from what was written.
var errFile = errors.New("it is no Parquet file of this archive")

// filesOf.read implements [files].
func (filesOf[R]) read(from io.ReaderAt, size int64, each func(values []any) error) (o *object, err error) {
	defer func() {
		if p := recover(); p != nil { // the library panics on some damaged files
			o, err = nil, fmt.Errorf("%w: %v", errFile, p)
		}
	}()
	file, err := parquet.OpenFile(from, size)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errFile, err)
	}
	reader := parquet.NewGenericReader[R](file)
	defer reader.Close() //nolint:errcheck // nothing was written
	s, page := newSummary(), make([]R, 1000)
	for {
		n, err := reader.Read(page)
		for i := range page[:n] {
			r := any(&page[i]).(row)
			r.normalize()
			s.addRow(r.targets(), r.measures())
			if each != nil {
				if err := each(r.values()); err != nil {
					return nil, err
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return &object{Bytes: size, Digest: s.digest.Sum(nil), Totals: s.totals}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errFile, err)
		}
	}
}

// object.compare compares o, the object that was written, with the object that was read back. It
// returns nil if they are equal, and otherwise an error that says how they differ.
func (o *object) compare(read *object) error {
	switch {
	case o.Bytes != read.Bytes:
		return fmt.Errorf("it has %d bytes, and %d were written", read.Bytes, o.Bytes)
	case !o.Totals.equal(&read.Totals):
		return fmt.Errorf("it has %v, and %v were written", &read.Totals, &o.Totals)
	case !bytes.Equal(o.Digest, read.Digest):
		return errors.New("its rows differ from those that were written")
	}
	return nil
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// instant returns a time in the precision of rows.
func instant(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.999999Z07:00") }
