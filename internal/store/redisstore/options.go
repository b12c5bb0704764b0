// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"time"
)

// Bounds and defaults of the options.
const (
	// TimeoutDefault is much longer than a round trip, but too short for a client to notice.
	TimeoutDefault = 50 * time.Millisecond
	// TimeoutMin is about one round trip. With a shorter timeout, every call would fail.
	TimeoutMin = time.Millisecond
	// TimeoutMax prevents a hung Redis from delaying requests for longer than clients wait.
	TimeoutMax = 10 * time.Second

	// QueueMaxDefault is the default of QueueMax. Redis runs about 100,000 scripts a second, so the
	// last call in a full queue waits for 160 ms. A full queue takes about 20 MB.
	QueueMaxDefault = 16384
	// QueueMaxLimit limits the memory of a queue to about 1 GB.
	QueueMaxLimit = 1 << 20

	// LanesDefault is the default of Lanes: while Redis works on one batch, another is written or
	// read. More lanes make smaller batches, which cost more CPU on both sides.
	LanesDefault = 2
	// LanesMax bounds the connections of one store.
	LanesMax = 64

	// A call that has been sent is decided by its answer, even if the answer is late. The store
	// waits patienceTimeouts timeouts for the answer, but not longer than patienceMax. If one
	// timeout is longer than patienceMax, the store waits for one timeout.
	patienceTimeouts = 10
	patienceMax      = 500 * time.Millisecond

	// secretBytesMax bounds a password file: a larger file is not a password.
	secretBytesMax = 4096
	// pemBytesMax bounds a certificate file. pemBytesMax is five times the size of the system's
	// bundle.
	pemBytesMax = 1 << 20
)

// Options selects the Redis servers and configures the connections to them. The zero value of every
// field but URL is its default.
type Options struct {
	// URL names the server: redis://user:password@host:6379/0, rediss:// for TLS,
	// unix:///path/to/socket?db=0. URL is required unless Addrs is set. The port defaults to 6379,
	// or 26379 for sentinels, and the database to 0. The user, password and TLS settings apply to
	// every server that holds counters. The TLS settings, with the certificates, also apply to
	// sentinels.
	URL string
	// Mode is ModeSingle (the same as ""), ModeSentinel, ModeCluster or ModeRing.
	Mode string
	// Addrs are further servers of a cluster or a ring, or sentinels, as host:port. In a cluster a
	// few reachable servers are enough to discover all others; list every sentinel, and every
	// server of a ring. In a ring the address of a server determines which counters it holds, so
	// every node must spell the addresses in the same way, in any order. Addrs is not valid with
	// ModeSingle.
	Addrs []string
	// AddrsBefore are the addresses of the ring before servers were added or removed, spelled in
	// the same way as by the nodes that still use that ring. A counter that moves from one server
	// to another is then charged on both, and a request is denied if either denies it. So a limit
	// is never exceeded while some nodes have only the old ring and others have both. Nor is it
	// exceeded later, while some nodes have both rings and others only the new one, provided that
	// all nodes had both for as long as the longest window. AddrsBefore is valid only with
	// ModeRing. If a single server became a ring, AddrsBefore is the address of that server.
	AddrsBefore []string
	// Master is the name of the master at the sentinels. Master is required with ModeSentinel.
	// Master and the sentinel credentials below are valid only in that mode.
	Master string
	// SentinelUsername and SentinelPassword are the credentials for the sentinels, whose users can
	// differ from those of Redis. If both credentials are empty, the store does not authenticate to
	// the sentinels. SentinelPasswordFile works like PasswordFile.
	SentinelUsername, SentinelPassword, SentinelPasswordFile string
	// Username and Password override those in the URL.
	Username, Password string
	// PasswordFile is a file that contains the password. New reads it once and removes trailing
	// line breaks. PasswordFile cannot be combined with Password.
	PasswordFile string
	// CAFile contains the PEM certificates of the authorities that are trusted to sign the server's
	// certificate; "" uses the system's. Like the TLS options below, it is valid only with
	// rediss://.
	CAFile string
	// CertFile and KeyFile are the PEM client certificate and its key. Set both files or none.
	CertFile, KeyFile string
	// ServerName is the name that the server's certificate must have; "" means the URL's host.
	ServerName string
	// Timeout is how long Redis may take to answer a call, from when it is sent: between TimeoutMin
	// and TimeoutMax; 0 means TimeoutDefault. A server whose answers are all later than that for
	// two seconds counts as down. Until then, the store waits for late answers; see
	// [Store.Patience].
	Timeout time.Duration
	// QueueMax is the greatest number of calls that may wait to be sent to one server; further
	// calls fail at once. In a cluster, up to 128 calls that one TakeAll makes to a server count as
	// one. If QueueMax is 0, the number is QueueMaxDefault.
	QueueMax int
	// Lanes is the greatest number of batches under way at once, each on its own connection. If
	// Lanes is 0, the number is LanesDefault.
	Lanes int
	// Logger receives failures and unsafe settings, at a bounded rate; nil disables logging. Logger
	// never receives a password or a key.
	Logger *slog.Logger
}

// IsZero reports whether no option is set.
func (o *Options) IsZero() bool { return reflect.ValueOf(*o).IsZero() }

// settings are the validated options, with defaults filled in and files read.
type settings struct {
	address // the address of the single server, or else of the first seed
	mode    string
	// host:port of servers or sentinels to start discovery from; unused for a single server
	seeds  []string
	before []string // the previous ring; nil unless the ring is changing
	master string

	sentinelUser, sentinelPassword string

	tls      *tls.Config // nil means no TLS
	timeout  time.Duration
	patience time.Duration // how long a call waits for a late answer, at least the timeout
	queueMax int
	// queueWait is how long a call may wait in the queue.
	queueWait time.Duration
	// silentMax is the time for which answered PINGs excuse a server that answers no call.
	silentMax time.Duration
	lanes     int
	logger    *slog.Logger
}

// Options.settings validates the options and returns every problem, not just the first.
func (o *Options) settings() (settings, error) {
	s := settings{logger: o.Logger, silentMax: silentMax}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	var err error
	known, problems := o.servers(&s)
	if err := o.sentinels(&s); err != nil {
		problems = append(problems, err)
	}
	if err := o.credentials(&s.address, known); err != nil {
		problems = append(problems, err)
	}
	if s.tls, err = o.tlsConfig(&s.address, known); err != nil {
		problems = append(problems, err)
	}
	if s.timeout, err = boundedOr("timeout", o.Timeout, TimeoutDefault, TimeoutMin, TimeoutMax); err != nil {
		problems = append(problems, err)
	}
	s.patience = max(s.timeout, min(patienceTimeouts*s.timeout, patienceMax))
	s.queueWait = max(queueWaitMin, queueTimeouts*s.timeout)
	if s.queueMax, err = boundedOr("queue_max", o.QueueMax, QueueMaxDefault, 1, QueueMaxLimit); err != nil {
		problems = append(problems, err)
	}
	if s.lanes, err = boundedOr("lanes", o.Lanes, LanesDefault, 1, LanesMax); err != nil {
		problems = append(problems, err)
	}
	return s, errors.Join(problems...)
}

func boundedOr[T int | time.Duration](name string, value, standard, least, most T) (T, error) {
	if value == 0 {
		return standard, nil
	}
	if value < least || value > most {
		return 0, fmt.Errorf("%s %v is out of bounds: it must be between %v and %v", name, value, least, most)
	}
	return value, nil
}

func (o *Options) credentials(a *address, known bool) error {
	if o.Username != "" {
		a.username = o.Username
	}
	password, err := secret("password", o.Password, o.PasswordFile)
	switch {
	case err != nil:
		return err
	case password != "":
		a.password = password
	}
	if known && a.username != "" && a.password == "" {
		// Otherwise go-redis would not authenticate at all and would continue as the default user.
		return fmt.Errorf("username %q has no password: give a password or a password_file", a.username)
	}
	return nil
}

// secret returns the given value, or the content of the file.
func secret(name, given, file string) (string, error) {
	if file == "" {
		return given, nil
	}
	if given != "" {
		return "", fmt.Errorf("%s and %[1]s_file are both given: keep one of them", name)
	}
	text, err := readBounded(file, secretBytesMax)
	if err != nil {
		return "", fmt.Errorf("%s_file: %w", name, err)
	}
	given = strings.TrimRight(string(text), "\r\n")
	if given == "" {
		return "", fmt.Errorf("%s_file %q is empty: put the password in it", name, file)
	}
	return given, nil
}

func (o *Options) tlsConfig(a *address, known bool) (*tls.Config, error) {
	if !a.tls {
		if known && (o.CAFile != "" || o.CertFile != "" || o.KeyFile != "" || o.ServerName != "") {
			return nil, errors.New("a certificate or server name is given, but the URL asks for no TLS: write rediss://")
		}
		return nil, nil
	}
	// An empty ServerName makes tls.Dialer use each server's host.
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.ServerName}
	var problems []error
	if o.CAFile != "" {
		pool, err := readPool(o.CAFile)
		if err != nil {
			problems = append(problems, fmt.Errorf("ca_file: %w", err))
		}
		config.RootCAs = pool
	}
	switch {
	case (o.CertFile == "") != (o.KeyFile == ""):
		problems = append(problems, errors.New("cert_file and key_file belong together: give both or none"))
	case o.CertFile != "":
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			problems = append(problems, fmt.Errorf("cert_file %q and key_file %q: %w", o.CertFile, o.KeyFile, err))
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, errors.Join(problems...)
}

func readPool(name string) (*x509.CertPool, error) {
	text, err := readBounded(name, pemBytesMax)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%q holds no PEM certificate", name)
	}
	return pool, nil
}

func readBounded(name string, bytesMax int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, bytesMax+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > bytesMax {
		return nil, fmt.Errorf("%q is larger than %d bytes", name, bytesMax)
	}
	return text, nil
}
