// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// databaseMax is the greatest database number accepted; servers have 16 by default.
const databaseMax = 1 << 16

// address is the location of a server and the credentials for it.
type address struct {
	network  string // "tcp" or "unix"
	target   string // host:port or the socket's path
	host     string // tcp only
	tls      bool
	username string
	password string
	database int
}

// String names the server without its credentials, for logs.
func (a address) String() string {
	scheme := "redis"
	switch {
	case a.network == "unix":
		return fmt.Sprintf("unix://%s?db=%d", a.target, a.database)
	case a.tls:
		scheme = "rediss"
	}
	return fmt.Sprintf("%s://%s/%d", scheme, a.target, a.database)
}

// parseAddress parses a server's URL; port is the default port. parseAddress's errors never repeat
// the URL, which may contain a password.
func parseAddress(text, port string) (address, error) {
	if text == "" {
		return address{}, errors.New("url is missing: write redis://host:6379/0")
	}
	u, err := url.Parse(text)
	if err != nil {
		return address{}, errors.New("url cannot be read (it is not repeated here, since it may hold a password): " +
			"write redis://user:password@host:6379/0 and percent-encode special characters of the password")
	}
	a := address{username: u.User.Username()}
	a.password, _ = u.User.Password()
	switch u.Scheme {
	case "redis", "rediss":
		a.tls = u.Scheme == "rediss"
		err = a.readTCP(u, port)
	case "unix":
		err = a.readUnix(u)
	default:
		err = fmt.Errorf("url has the scheme %q: it must be redis, rediss or unix", u.Scheme)
		if strings.HasPrefix(u.Scheme, "redis+") || strings.HasPrefix(u.Scheme, "rediss+") {
			err = fmt.Errorf("url has the scheme %q: write redis:// or rediss://, and mode sentinel or mode cluster", u.Scheme)
		}
	}
	if err == nil && u.Fragment != "" {
		err = errors.New("url has a part after '#': percent-encode a '#' in the password as %23")
	}
	return a, err
}

func (a *address) readTCP(u *url.URL, standard string) error {
	if asksReplicas(u.RawQuery) {
		return errReplicas
	}
	if u.RawQuery != "" {
		return errors.New("url takes no parameters after '?': use the store's own options")
	}
	a.network, a.host = "tcp", u.Hostname()
	if a.host == "" {
		return errors.New("url names no host: write redis://host:6379/0")
	}
	port := u.Port()
	if port == "" {
		port = standard
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("url has the port %q: it must be between 1 and 65535", port)
	}
	a.target = net.JoinHostPort(a.host, port)
	return a.readDatabase(strings.Trim(u.Path, "/"))
}

// errReplicas explains why no option reads from replicas.
var errReplicas = errors.New("url asks for reading from replicas, which is not supported: a check reads and charges its counters in one " +
	"step, on the master only; a replica lags behind, so limits would not hold")

// asksReplicas reports whether the URL's parameters select reads from replicas, in the spelling of
// any common Redis client.
func asksReplicas(query string) bool {
	query = strings.ToLower(query)
	for _, word := range []string{"replica", "slave", "readonly", "read_only", "read_from", "readfrom", "route_by", "route_random"} {
		if strings.Contains(query, word) {
			return true
		}
	}
	return false
}

func (a *address) readUnix(u *url.URL) error {
	if u.Host != "" || u.Path == "" {
		return errors.New("url names no socket: write unix:///path/to/socket?db=0, with three slashes")
	}
	a.network, a.target = "unix", u.Path
	query := u.Query()
	database := query.Get("db")
	delete(query, "db")
	for name := range query {
		return fmt.Errorf("url has the parameter %q: only db is known", name)
	}
	return a.readDatabase(database)
}

func (a *address) readDatabase(text string) error {
	if text == "" {
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > databaseMax {
		return fmt.Errorf("url has the database %q: it must be a number between 0 and %d", text, databaseMax)
	}
	a.database = n
	return nil
}
