// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// shooter calls a gRPC service over one HTTP/2 connection, with many requests at the same time, as
// an Envoy worker does. It implements only the part of gRPC that it needs, and so takes little CPU
// time from the measured system.
type shooter struct {
	out     *bufio.Writer
	in      *bufio.Reader
	framer  *http2.Framer
	head    []byte // the header block of every request but the first
	message []byte
	next    uint32 // the next stream's ID
	begun   map[uint32]time.Time
	data    uint32 // bytes received and not yet acknowledged by a window update
	spans   []time.Duration

	admitted func(answer []byte) bool
}

func newShooter(address string, q question) (*shooter, net.Conn, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, nil, err
	}
	s := &shooter{out: bufio.NewWriterSize(c, 64<<10), in: bufio.NewReaderSize(c, 64<<10), next: 1, begun: map[uint32]time.Time{}, admitted: q.admitted}
	s.framer = http2.NewFramer(s.out, s.in)
	s.framer.SetReuseFrames()
	s.message = binary.BigEndian.AppendUint32([]byte{0}, uint32(len(q.message)))
	s.message = append(s.message, q.message...)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	write := func() []byte {
		block.Reset()
		for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", q.method}, {":authority", address},
			{"content-type", "application/grpc"}, {"te", "trailers"}} {
			// writing to a buffer does not fail
			_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		return bytes.Clone(block.Bytes())
	}
	first := write()
	s.head = write() // the server's HPACK table has all fields by now
	_, _ = s.out.WriteString(http2.ClientPreface)
	if err := errors.Join(s.framer.WriteSettings(), s.framer.WriteWindowUpdate(0, 1<<24)); err != nil {
		return nil, nil, err
	}
	return s, c, s.ask(first)
}

// shooter.ask sends a request.
func (s *shooter) ask(head []byte) error {
	stream := s.next
	s.next += 2
	s.begun[stream] = time.Now()
	err := s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head, EndHeaders: true})
	if err != nil {
		return err
	}
	return s.framer.WriteData(stream, true, s.message)
}

// shooter.run sends requests for the duration span. The argument named under is the number of
// requests that wait for an answer at the same time.
func (s *shooter) run(span time.Duration, under int) error {
	for range under - 1 {
		if err := s.ask(s.head); err != nil {
			return err
		}
	}
	end := time.Now().Add(span)
	for len(s.begun) > 0 {
		if s.in.Buffered() == 0 {
			if err := s.out.Flush(); err != nil {
				return err
			}
		}
		frame, err := s.framer.ReadFrame()
		if err != nil {
			return err
		}
		if err := s.take(frame, end); err != nil {
			return err
		}
	}
	return nil
}

// shooter.take handles a frame. If the frame ends an answer, the method sends another request,
// unless the time is over.
func (s *shooter) take(frame http2.Frame, end time.Time) error {
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return s.framer.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return s.framer.WritePing(true, f.Data)
		}
	case *http2.DataFrame:
		// The message is a zero byte (not compressed), four bytes of length, and the answer. It may
		// arrive in several pieces, of which the last one is empty.
		if data := f.Data(); len(data) > 0 && (len(data) < 5 || !s.admitted(data[5:])) {
			return fmt.Errorf("the answer is not OK: %x", data)
		}
		if s.data += f.Length; s.data > 1<<20 {
			given := s.data
			s.data = 0
			return s.framer.WriteWindowUpdate(0, given)
		}
	case *http2.HeadersFrame:
		if !f.StreamEnded() {
			return nil
		}
		now := time.Now()
		s.spans = append(s.spans, now.Sub(s.begun[f.StreamID]))
		delete(s.begun, f.StreamID)
		if now.Before(end) {
			return s.ask(s.head)
		}
	case *http2.GoAwayFrame, *http2.RSTStreamFrame:
		return fmt.Errorf("the service said %v", f)
	}
	return nil
}

// shoot calls a service over two connections and returns how many calls were answered. The argument
// named under is the number of calls that wait for an answer at the same time, on both connections
// together.
func shoot(ctx context.Context, address string, q question, span time.Duration, under int) (requests int, f figures, err error) {
	connections := min(2, under)
	all, failures := make([][]time.Duration, connections), make([]error, connections)
	var wait sync.WaitGroup
	begin := time.Now()
	for i := range connections {
		s, c, err := newShooter(address, q)
		if err != nil {
			return 0, f, err
		}
		stop := context.AfterFunc(ctx, func() { c.Close() })
		wait.Go(func() {
			defer stop()
			defer c.Close()
			failures[i] = s.run(span, under/connections)
			all[i] = s.spans
		})
	}
	wait.Wait()
	took := time.Since(begin)
	if err := errors.Join(failures...); err != nil && !errors.Is(err, io.EOF) {
		return 0, f, err
	}
	spans := slices.Concat(all...)
	if len(spans) == 0 {
		return 0, f, errNoAnswer
	}
	slices.Sort(spans)
	return len(spans), figures{perSecond: float64(len(spans)) / took.Seconds(), p50: percentile(spans, 50)}, nil
}
