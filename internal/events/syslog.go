// SPDX-License-Identifier: Apache-2.0

package events

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"
)

// The parts of a syslog message.
const (
	syslogPriority = 3<<3 | 6 // facility daemon, severity informational
	syslogApp      = "penstock"
	syslogSocket   = "/dev/log"
	// syslogPatience bounds each connection and each message.
	syslogPatience = 2 * time.Second
)

// syslog sends each event as one message. Messages over the network have the form of RFC 5424; over
// TCP, their length frames them (RFC 6587). Messages to the socket of this machine have the form of
// RFC 3164. A syslog connects when there are events, and reconnects after an error.
type syslog struct {
	network, address string
	host             string
	buffer, message  []byte

	mu     sync.Mutex // guards conn and closed; never held while anything is sent
	conn   net.Conn
	closed bool
}

// openSyslog returns a sink for the address after "syslog:", which is "" for this machine.
func openSyslog(address string) (*syslog, error) {
	s := &syslog{network: "unixgram", address: syslogSocket, host: "-"}
	if name, err := os.Hostname(); err == nil && name != "" {
		s.host = name
	}
	if address == "" {
		if _, err := s.connection(); err != nil {
			return nil, fmt.Errorf("syslog of this machine: %w; write %s", err, Forms)
		}
		return s, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "udp" && u.Scheme != "tcp" || u.Port() == "" || u.Path != "" {
		return nil, fmt.Errorf("syslog address %q: write udp://HOST:PORT or tcp://HOST:PORT", address)
	}
	s.network, s.address = u.Scheme, u.Host
	return s, nil
}

// syslog.connection returns the connection. If there is none, it connects first.
func (s *syslog) connection() (net.Conn, error) {
	s.mu.Lock()
	conn, closed := s.conn, s.closed
	s.mu.Unlock()
	switch {
	case closed:
		return nil, net.ErrClosed
	case conn != nil:
		return conn, nil
	}
	conn, err := net.DialTimeout(s.network, s.address, syslogPatience)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	s.conn = conn
	return conn, nil
}

// syslog.drop closes a broken connection. The sink connects again when there are events.
func (s *syslog) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		_ = s.conn.Close() // an error does not matter, because the connection is broken
		s.conn = nil
	}
}

// Write implements [Sink].
func (s *syslog) Write(events []Event) (written int, err error) {
	for i := range events {
		if err := s.send(&events[i]); err != nil {
			s.drop()
			return written, fmt.Errorf("syslog %s %s: %w", s.network, s.address, err)
		}
		written++
	}
	return written, nil
}

func (s *syslog) send(e *Event) error {
	conn, err := s.connection()
	if err != nil {
		return err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(syslogPatience)); err != nil {
		return err
	}
	s.message = s.appendMessage(s.message[:0], e)
	if s.buffer = s.buffer[:0]; s.network == "tcp" {
		s.buffer = append(strconv.AppendInt(s.buffer, int64(len(s.message)), 10), ' ')
	}
	s.buffer = append(s.buffer, s.message...)
	_, err = conn.Write(s.buffer)
	return err
}

// appendMessage appends a message without a frame.
func (s *syslog) appendMessage(dst []byte, e *Event) []byte {
	if s.network == "unixgram" {
		dst = fmt.Appendf(dst, "<%d>%s %s[%d]: ", syslogPriority, e.Time.Format(time.Stamp), syslogApp, os.Getpid())
	} else {
		dst = fmt.Appendf(dst, "<%d>1 %s %s %s %d %s - ", syslogPriority, e.Time.UTC().Format(TimeForm), s.host, syslogApp,
			os.Getpid(), e.Kind)
	}
	return e.AppendJSON(dst)
}

// Close closes the connection. A Write in progress then ends with an error.
func (s *syslog) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.conn == nil {
		return nil
	}
	err := s.conn.Close()
	s.conn = nil
	return err
}
