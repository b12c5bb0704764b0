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
	// TimeoutDefault is what Redis may take for a check: far above a round trip, far below what a client would notice.
	TimeoutDefault = 50 * time.Millisecond
	// TimeoutMin is about the time of one round trip; below it nothing would ever pass.
	TimeoutMin = time.Millisecond
	// TimeoutMax keeps a hung Redis from holding requests for longer than clients wait.
	TimeoutMax = 10 * time.Second

	// QueueMaxDefault is how many calls wait at once. Redis serves about 100,000 scripts a second, so the last of them waits for
	// 160 ms. A full queue holds some 20 MB.
	QueueMaxDefault = 16384
	// QueueMaxLimit bounds the memory that a queue can take to about 1 GB.
	QueueMaxLimit = 1 << 20

	// LanesDefault is how many batches are under way at once: while Redis works on one, the other is being written
	// or read. More lanes make smaller batches, which cost more CPU on both sides.
	LanesDefault = 2
	// LanesMax bounds the connections of one store.
	LanesMax = 64

	// secretBytesMax bounds a password file: more is not a password but the wrong file.
	secretBytesMax = 4096
	// pemBytesMax bounds a certificate file: the system's whole bundle is a fifth of it.
	pemBytesMax = 1 << 20
)

// Options says which Redis to use and how. The zero value of every field but URL is its default.
type Options struct {
	// URL names the server: redis://user:password@host:6379/0, rediss:// for TLS, unix:///path/to/socket?db=0.
	// Required, unless there are Addrs. The port defaults to 6379, for sentinels to 26379, and the database to 0. Its user,
	// password and TLS hold for every server that counts; TLS, with its certificates, for sentinels as well.
	URL string
	// Mode is ModeSingle (the same as ""), ModeSentinel, ModeCluster or ModeRing.
	Mode string
	// Addrs are further servers of a cluster or a ring, or sentinels, as host:port. A few that are up are enough to find the
	// others of a cluster; of sentinels and of a ring name all. In a ring an address is also what says which counters are there:
	// every node must write them alike, in any order. Not with ModeSingle.
	Addrs []string
	// Master is the name by which sentinels know the master. Required with ModeSentinel, as what follows only with it.
	Master string
	// SentinelUsername and SentinelPassword are for the sentinels themselves, which may have other users than Redis has;
	// left out, they are asked without. SentinelPasswordFile is as PasswordFile.
	SentinelUsername, SentinelPassword, SentinelPasswordFile string
	// Username and Password take the place of those in the URL.
	Username, Password string
	// PasswordFile is a file that holds the password, read once by New; line ends at its end are dropped. It cannot be
	// combined with Password.
	PasswordFile string
	// CAFile holds the PEM certificates that the server's must descend from; "" is the system's. Only with rediss://,
	// as all of the following.
	CAFile string
	// CertFile and KeyFile are the PEM client certificate and its key: both or none.
	CertFile, KeyFile string
	// ServerName is the name the server's certificate must have; "" is the URL's host.
	ServerName string
	// Timeout is how long Redis may take to answer a call, from when it is sent: TimeoutMin to TimeoutMax, 0 is TimeoutDefault.
	Timeout time.Duration
	// QueueMax is how many calls may wait to be sent to one server; one more fails at once. In a cluster what one caller has for
	// a server counts as one, up to 128 calls of TakeAll. 0 is QueueMaxDefault.
	QueueMax int
	// Lanes is how many batches may be under way at once, each on its own connection. 0 is LanesDefault.
	Lanes int
	// Logger is told of failures and unsafe settings, at a bounded rate; nil is silence. It is never given a password or
	// a key.
	Logger *slog.Logger
}

// IsZero reports whether nothing is said at all.
func (o *Options) IsZero() bool { return reflect.ValueOf(*o).IsZero() }

// settings are checked options with the defaults filled in and the files read.
type settings struct {
	address // of the single server; otherwise of the first of seeds
	mode    string
	seeds   []string // host:port of those who know the servers; of a single server not used
	master  string

	sentinelUser, sentinelPassword string

	tls      *tls.Config // nil: no TLS
	timeout  time.Duration
	queueMax int
	// queueWait is how long a call may be in the queue.
	queueWait time.Duration
	lanes     int
	logger    *slog.Logger
}

// settings checks everything and returns all that is wrong, not just the first.
func (o *Options) settings() (settings, error) {
	s := settings{logger: o.Logger}
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
	if s.timeout, err = within("timeout", o.Timeout, TimeoutDefault, TimeoutMin, TimeoutMax); err != nil {
		problems = append(problems, err)
	}
	s.queueWait = max(queueWaitMin, queueTimeouts*s.timeout)
	if s.queueMax, err = within("queue_max", o.QueueMax, QueueMaxDefault, 1, QueueMaxLimit); err != nil {
		problems = append(problems, err)
	}
	if s.lanes, err = within("lanes", o.Lanes, LanesDefault, 1, LanesMax); err != nil {
		problems = append(problems, err)
	}
	return s, errors.Join(problems...)
}

func within[T int | time.Duration](name string, value, standard, least, most T) (T, error) {
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
		// go-redis would then not authenticate at all and go on as the default user.
		return fmt.Errorf("username %q has no password: give a password or a password_file", a.username)
	}
	return nil
}

// secret returns what is given as such, or in a file.
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
	// Without a name it is the host of each server.
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
