// SPDX-License-Identifier: Apache-2.0

// Package dnstest runs DNS servers for tests: each takes every name for the same host, and can fall silent or know nothing.
//
// It knows the address of IPv4 of that host alone, for a second, and speaks UDP. It is not for tests of what DNS says.
package dnstest

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// Mood is how a server answers.
type Mood uint8

// The moods.
const (
	Truthful Mood = iota
	Silent        // not at all
	Ignorant      // that there is no such host
)

// Server is a DNS server. It is safe for concurrent use.
type Server struct {
	// Address is where it listens, 127.0.0.1:PORT.
	Address string

	mu   sync.Mutex
	mood Mood
	host netip.Addr
}

// Start runs a server until the test ends, which says that every host is there, an address of IPv4.
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

// Becomes changes how it answers from now on.
func (s *Server) Becomes(m Mood) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mood = m
}

// Moves lets the host be elsewhere from now on.
func (s *Server) Moves(host netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.host = host
}

// answer answers a question; nil is silence.
func (s *Server) answer(question []byte) (reply []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var p dnsmessage.Parser
	head, err := p.Start(question)
	if err != nil || s.mood == Silent {
		return nil
	}
	asked, err := p.Question()
	if err != nil {
		return nil
	}
	m := dnsmessage.Message{Questions: []dnsmessage.Question{asked},
		Header: dnsmessage.Header{ID: head.ID, Response: true, RecursionDesired: head.RecursionDesired, RecursionAvailable: true}}
	switch {
	case s.mood == Ignorant:
		m.RCode = dnsmessage.RCodeNameError
	case asked.Type == dnsmessage.TypeA:
		m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: asked.Name, Class: dnsmessage.ClassINET, TTL: 1},
			Body: &dnsmessage.AResource{A: s.host.As4()}}}
	}
	if reply, err = m.Pack(); err != nil {
		return nil // of what was asked in a form that cannot be said
	}
	return reply
}
