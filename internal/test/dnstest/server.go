// SPDX-License-Identifier: Apache-2.0

// Package dnstest runs DNS servers for tests. Each server resolves every name to one host, and can
// stop answering or answer that the host does not exist.
//
// A server returns one IPv4 address, which is valid for a second, and supports only UDP. The
// package is not for tests of DNS itself.
package dnstest

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// Mode is the way a server answers.
type Mode uint8

// The modes.
const (
	Truthful Mode = iota
	Silent        // does not answer
	Ignorant      // answers that there is no such host
)

// Server is a DNS server. A Server is safe for concurrent use.
type Server struct {
	// Address is the address that the server listens on, 127.0.0.1:PORT.
	Address string

	mu   sync.Mutex
	mode Mode
	host netip.Addr
}

// Start runs a server until the test ends. The server resolves every name to host, an IPv4 address.
func Start(t testing.TB, host netip.Addr) *Server {
	t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	s := &Server{Address: socket.LocalAddr().String(), host: host}
	go func() {
		question := make([]byte, 512)
		for {
			n, from, err := socket.ReadFrom(question)
			if err != nil {
				return
			}
			if reply := s.answer(question[:n]); reply != nil {
				_, _ = socket.WriteTo(reply, from)
			}
		}
	}()
	return s
}

// SetMode changes the way the server answers.
func (s *Server) SetMode(m Mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = m
}

// MoveTo changes the address to which the server resolves names.
func (s *Server) MoveTo(host netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.host = host
}

// Server.answer returns the reply to a question. If it returns nil, no reply is sent.
func (s *Server) answer(question []byte) (reply []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var p dnsmessage.Parser
	head, err := p.Start(question)
	if err != nil || s.mode == Silent {
		return nil
	}
	asked, err := p.Question()
	if err != nil {
		return nil
	}
	m := dnsmessage.Message{Questions: []dnsmessage.Question{asked},
		Header: dnsmessage.Header{ID: head.ID, Response: true, RecursionDesired: head.RecursionDesired, RecursionAvailable: true}}
	switch {
	case s.mode == Ignorant:
		m.RCode = dnsmessage.RCodeNameError
	case asked.Type == dnsmessage.TypeA:
		m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: asked.Name, Class: dnsmessage.ClassINET, TTL: 1},
			Body: &dnsmessage.AResource{A: s.host.As4()}}}
	}
	if reply, err = m.Pack(); err != nil {
		return nil // the question cannot be packed into a reply
	}
	return reply
}
