// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// The modes of a store.
const (
	ModeSingle   = "single"   // one server
	ModeSentinel = "sentinel" // the master that sentinels name
	ModeCluster  = "cluster"  // a Redis cluster
	ModeRing     = "ring"     // independent servers that share the counters
)

const (
	redisPort    = "6379"
	sentinelPort = "26379"
	// addrsMax is the greatest number of addresses; discovery queries each in turn until one
	// answers.
	addrsMax = 64
)

// modeOf returns the mode that the options select.
func (o *Options) modeOf() (string, error) {
	switch o.Mode {
	case "":
		return ModeSingle, nil
	case ModeSingle, ModeSentinel, ModeCluster, ModeRing:
		return o.Mode, nil
	default:
		return ModeSingle, fmt.Errorf("mode %q is unknown: it must be single, sentinel, cluster or ring", o.Mode)
	}
}

// Options.servers parses the addresses and the mode, and reports whether the URL is valid.
func (o *Options) servers(s *settings) (known bool, problems []error) {
	mode, err := o.modeOf()
	if err != nil {
		problems = append(problems, err)
	}
	s.mode = mode
	port, text := redisPort, o.URL
	if mode == ModeSentinel {
		port = sentinelPort
	}
	if text == "" && mode != ModeSingle && len(o.Addrs) > 0 {
		text = "redis://" + net.JoinHostPort("localhost", port)
	}
	if s.address, err = parseAddress(text, port); err != nil {
		problems = append(problems, err)
	}
	known = err == nil
	if known {
		problems = append(problems, o.checkConflicts(s)...)
	}
	if mode == ModeSingle && len(o.Addrs) > 0 {
		problems = append(problems, errors.New("addrs are given, and the mode is single: one server is named by the url; write "+
			"mode cluster, mode sentinel or mode ring"))
		return known, problems
	}
	if o.URL != "" && known && mode != ModeSingle {
		s.seeds = append(s.seeds, s.target)
	}
	problems = append(problems, o.readAddrs(s, port)...)
	if mode == ModeRing && len(problems) == 0 && len(s.seeds) < 2 {
		problems = append(problems, errors.New("the ring has one server: name all of them, as in addrs redis-1:6379 redis-2:6379, or "+
			"leave mode ring out"))
	}
	return known, problems
}

// readAddrs reads Addrs, the addresses in addition to the URL.
func (o *Options) readAddrs(s *settings, port string) (problems []error) {
	if len(o.Addrs) > addrsMax {
		enough := "a few are enough to find the others"
		if s.mode == ModeRing {
			enough = "a cluster has room for more"
		}
		return []error{fmt.Errorf("addrs are %d: at most %d are taken, and %s", len(o.Addrs), addrsMax, enough)}
	}
	s.seeds, problems = readAddrList("addrs", o.Addrs, s.seeds, port)
	return append(problems, o.readBefore(s, port)...)
}

// readBefore reads AddrsBefore.
func (o *Options) readBefore(s *settings, port string) (problems []error) {
	switch {
	case len(o.AddrsBefore) == 0:
		return nil
	case s.mode != ModeRing:
		return []error{fmt.Errorf("addrs_before goes with mode ring, and the mode is %s: leave it out", s.mode)}
	case len(o.AddrsBefore) > addrsMax:
		return []error{fmt.Errorf("addrs_before are %d: a ring has at most %d", len(o.AddrsBefore), addrsMax)}
	}
	s.before, problems = readAddrList("addrs_before", o.AddrsBefore, nil, port)
	if len(problems) == 0 && RingNames(s.before) == RingNames(s.seeds) {
		problems = append(problems, errors.New("addrs_before are the same servers as addrs: leave addrs_before out"))
	}
	return problems
}

// readAddrList appends the addresses of an option, each once.
func readAddrList(option string, texts, to []string, port string) (addrs []string, problems []error) {
	for i, text := range texts {
		addr, err := parseAddr(text, port)
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("%s[%d] %w", option, i, err))
		// Host names are case-insensitive.
		case slices.ContainsFunc(to, func(other string) bool { return strings.EqualFold(other, addr) }):
			problems = append(problems, fmt.Errorf("%s[%d] %q is listed twice (upper and lower case are the same): keep one",
				option, i, addr))
		default:
			to = append(to, addr)
		}
	}
	return to, problems
}

// parseAddr parses host:port, host, or [v6]:port. Its errors do not repeat text that may contain a
// password.
func parseAddr(text, port string) (string, error) {
	if strings.ContainsAny(text, "@/ \t") {
		return "", errors.New("is not a host:port: user, password and TLS belong in the url, as redis:// or rediss://user:password@host:port")
	}
	host, given, err := net.SplitHostPort(text)
	if err != nil {
		host, given = strings.Trim(text, "[]"), port
		if strings.Contains(host, ":") && net.ParseIP(host) == nil {
			host = ""
		}
	}
	if n, err := strconv.Atoi(given); host == "" || err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("%q is not a host:port: write redis-1.internal:%s", text, port)
	}
	return net.JoinHostPort(host, given), nil
}

// Options.checkConflicts returns an error that names the options that conflict with the mode.
func (o *Options) checkConflicts(s *settings) (problems []error) {
	switch {
	case s.mode == ModeSingle:
	case s.network == "unix":
		problems = append(problems, fmt.Errorf("url is a socket, and the mode is %s, whose servers are reached over TCP: write "+
			"redis://host:port", s.mode))
	case s.mode == ModeCluster && s.database != 0:
		problems = append(problems, fmt.Errorf("url has the database %d, and a cluster has only 0: leave it out", s.database))
	}
	sentinel := o.Master != "" || o.SentinelUsername != "" || o.SentinelPassword != "" || o.SentinelPasswordFile != ""
	switch {
	case s.mode != ModeSentinel && sentinel:
		problems = append(problems, fmt.Errorf("master and sentinel_… go with mode sentinel, and the mode is %s: leave them out", s.mode))
	case s.mode == ModeSentinel && o.Master == "":
		problems = append(problems, errors.New("master is missing: sentinels watch masters by name, as in master mymaster"))
	}
	return problems
}

// Options.sentinels reads the master's name and the credentials for the sentinels.
func (o *Options) sentinels(s *settings) error {
	password, err := secret("sentinel_password", o.SentinelPassword, o.SentinelPasswordFile)
	if err != nil {
		return err
	}
	if o.SentinelUsername != "" && password == "" {
		return fmt.Errorf("sentinel_username %q has no password: give a sentinel_password or a sentinel_password_file",
			o.SentinelUsername)
	}
	s.master, s.sentinelUser, s.sentinelPassword = o.Master, o.SentinelUsername, password
	return nil
}

// String names the servers without credentials, for logs.
func (s *settings) String() string {
	scheme := "redis"
	if s.address.tls {
		scheme = "rediss"
	}
	switch s.mode {
	case ModeCluster:
		return "cluster " + scheme + "://" + strings.Join(s.seeds, ",")
	case ModeRing:
		return "ring " + scheme + "://" + strings.Join(s.seeds, ",")
	case ModeSentinel:
		return "master " + s.master + " of " + scheme + "://" + strings.Join(s.seeds, ",")
	}
	return s.address.String()
}

// settings.fixed reports whether the options list all servers, so that calls are never redirected.
func (s *settings) fixed() bool { return s.mode == ModeSingle || s.mode == ModeRing }

// address.at returns the address of another server with the same credentials and settings.
func (a address) at(target string) address {
	a.network, a.target = "tcp", target
	a.host, _, _ = net.SplitHostPort(target)
	return a
}
