// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// How long the attacker waits.
const (
	// dialWithin bounds the opening of a connection. It is long, because large bursts open many
	// connections at a time.
	dialWithin = 20 * time.Second
	// exchangeWithin bounds a request that should be answered. The constant oddWithin bounds a
	// request that the proxy might consider unfinished.
	exchangeWithin = 10 * time.Second
	oddWithin      = 500 * time.Millisecond
	// streamsWithin bounds the time until a burst is answered.
	streamsWithin = 60 * time.Second
)

// attackRun.dial connects to the front from the attacker's address.
func (a *attackRun) dial() (net.Conn, error) { return connectFrom(a.from, a.site()) }

func connectFrom(from, to string) (net.Conn, error) {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: dialWithin}
	connection, err := dialer.DialContext(context.Background(), "tcp", to)
	if err == nil {
		_ = connection.SetDeadline(time.Now().Add(streamsWithin))
	}
	return connection, err
}

// attackRun.exchange sends text over a new connection and returns the final status of the first
// answer, or 0 if there is none.
func (a *attackRun) exchange(text string) (status int, header http.Header) {
	return a.exchangeWithin(text, exchangeWithin)
}

func (a *attackRun) exchangeWithin(text string, within time.Duration) (status int, header http.Header) {
	a.sent++
	connection, err := a.dial()
	if err != nil {
		a.note("connect: %v", err)
		return 0, nil
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(within))
	if _, err := io.WriteString(connection, text); err != nil {
		return 0, nil
	}
	reader := bufio.NewReader(connection)
	for {
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return 0, nil
		}
		if response.StatusCode == http.StatusSwitchingProtocols {
			return response.StatusCode, response.Header
		}
		if response.StatusCode >= 200 {
			discard(response.Body)
			return response.StatusCode, response.Header
		}
	}
}

// request returns the text of an HTTP/1.1 request of the attacker. Each of the further fields ends
// with CRLF.
func (a *attackRun) request(method, target, fields string) string {
	return method + " " + target + " HTTP/1.1\r\nHost: " + a.host + "\r\n" + fields + "\r\n"
}

// attackRun.each sends every request over a new connection, one after the other.
func (a *attackRun) each(requests ...string) {
	for _, r := range requests {
		a.exchangeWithin(r, oddWithin)
	}
}

// sendBurst opens n connections, then sends one request over each of them at the same time.
func (a *attackRun) sendBurst(n int, text func(i int) string) {
	connections := make([]net.Conn, n)
	var dialing sync.WaitGroup
	var next, failed atomic.Int64
	for range min(n, 64) {
		dialing.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				connection, err := a.dial()
				if err != nil {
					failed.Add(1)
					continue
				}
				connections[i] = connection
			}
		})
	}
	dialing.Wait()
	if failed.Load() > 0 {
		a.note("%d of %d connects failed", failed.Load(), n)
	}
	start := make(chan struct{})
	var group sync.WaitGroup
	for i, c := range connections {
		if c == nil {
			continue
		}
		a.sent++
		text := text(i)
		group.Go(func() {
			defer c.Close()
			<-start
			if _, err := io.WriteString(c, text); err == nil {
				_, _ = io.Copy(io.Discard, c)
			}
		})
	}
	close(start)
	group.Wait()
}

// streams is an HTTP/2 connection whose frames the test itself builds. One goroutine may open
// streams while another one reads.
type streams struct {
	net.Conn
	framer  *http2.Framer
	writing sync.Mutex
	fields  bytes.Buffer
	coder   *hpack.Encoder
	next    uint32
}

// newStreams opens a connection and sends the preface.
func (a *attackRun) newStreams() (*streams, error) {
	connection, err := a.dial()
	if err != nil {
		return nil, err
	}
	s := &streams{Conn: connection, framer: http2.NewFramer(connection, connection), next: 1}
	s.coder = hpack.NewEncoder(&s.fields)
	if _, err := io.WriteString(connection, http2.ClientPreface); err != nil {
		return nil, err
	}
	return s, s.framer.WriteSettings()
}

// streams.block returns an encoded header block with the pseudo fields and further fields. In the
// list of fields, each name is followed by its value.
func (s *streams) block(method, target, host string, fields ...string) []byte {
	s.fields.Reset()
	all := append([]string{":method", method, ":scheme", "http", ":authority", host, ":path", target}, fields...)
	for i := 0; i+1 < len(all); i += 2 {
		_ = s.coder.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]})
	}
	return s.fields.Bytes()
}

// streams.open sends a request without a body, and returns the ID of its stream.
func (s *streams) open(block []byte) (stream uint32, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	stream = s.next
	s.next += 2
	return stream, s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block, EndHeaders: true, EndStream: true})
}

// streams.write calls the function frame under the lock that serializes writes.
func (s *streams) write(frame func()) {
	s.writing.Lock()
	defer s.writing.Unlock()
	frame()
}

// streams.finish reads until n streams have ended or the connection is closed. It returns how many
// streams have ended.
func (s *streams) finish(n int) (ended int) {
	for ended < n {
		frame, err := s.framer.ReadFrame()
		if err != nil {
			return ended
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				s.write(func() { _ = s.framer.WriteSettingsAck() })
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				s.write(func() { _ = s.framer.WritePing(true, f.Data) })
			}
		case *http2.DataFrame:
			if f.StreamEnded() {
				ended++
			}
			if n := uint32(f.Length); n > 0 {
				s.write(func() { _ = s.framer.WriteWindowUpdate(0, n) })
			}
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				ended++
			}
		case *http2.RSTStreamFrame:
			ended++
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeNo {
				return ended
			}
		}
	}
	return ended
}

// streamBurst opens many streams on every connection at the same time, and reads all answers. The
// argument named each is the number of streams per connection.
func (a *attackRun) streamBurst(connections, each int, fields func(i int) []string) {
	var group sync.WaitGroup
	start := make(chan struct{})
	var unanswered atomic.Int64
	for c := range connections {
		s, err := a.newStreams()
		if err != nil {
			a.note("connect: %v", err)
			continue
		}
		a.sent += each
		group.Go(func() {
			defer s.Close()
			<-start
			var reading sync.WaitGroup
			reading.Go(func() { unanswered.Add(int64(each - s.finish(each))) })
			for i := range each {
				var more []string
				if fields != nil {
					more = fields(c*each + i)
				}
				if _, err := s.open(s.block(http.MethodGet, a.attack.path, a.host, more...)); err != nil {
					break
				}
			}
			reading.Wait()
		})
	}
	close(start)
	group.Wait()
	if n := unanswered.Load(); n > 0 {
		a.note("%d not answered", n)
	}
}
