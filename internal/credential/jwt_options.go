// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"time"
)

// Bounds and defaults of [JWTOptions].
const (
	leewayDefault = 30 * time.Second
	// a larger leeway would make the expiry of short-lived tokens meaningless
	leewayMax      = 5 * time.Minute
	refreshDefault = 5 * time.Minute
	refreshMin     = time.Second
	refreshMax     = 24 * time.Hour // how long a removed key can remain in use
	secretBytesMax = 4096
	memoryEntries  = 1 << 16
	memoryBytes    = 64 << 20
)

// JWTOptions.validate checks every option that can be checked without reading a file or a URL.
func (o *JWTOptions) validate() error {
	named := 0
	for _, source := range []string{o.Secret, o.SecretFile, o.JWKSFile, o.JWKSURL, o.IssuerURL} {
		if source != "" {
			named++
		}
	}
	switch {
	case named == 0:
		return errors.New("no key: one of jwks_file, jwks_url, secret_file and secret is needed")
	case named > 1:
		return errors.New("several keys: keep one of jwks_file, jwks_url, secret_file and secret")
	case o.Leeway != nil && (*o.Leeway < 0 || *o.Leeway > leewayMax):
		return fmt.Errorf("leeway %s is out of bounds: it must be between 0s and %s", *o.Leeway, leewayMax)
	case o.Refresh != 0 && !o.fetched():
		return fmt.Errorf("refresh %s has no effect without jwks_url: leave it out", o.Refresh)
	case o.Refresh != 0 && (o.Refresh < refreshMin || o.Refresh > refreshMax):
		return fmt.Errorf("refresh %s is out of bounds: it must be between %s and %s", o.Refresh, refreshMin, refreshMax)
	case o.MemoryEntries < 0 || o.MemoryBytes < 0:
		return errors.New("memory for tokens is negative: leave it out for the default")
	case o.LifeMax < 0:
		return fmt.Errorf("the longest life of a token, %s, is negative: leave it out for no bound", o.LifeMax)
	case o.IssuerURL != "":
		return o.validateIssuer()
	case o.JWKSURL != "":
		return validateURL("jwks_url", o.JWKSURL)
	}
	return nil
}

// JWTOptions.fetched reports whether the keys come from the network.
func (o *JWTOptions) fetched() bool { return o.JWKSURL != "" || o.IssuerURL != "" }

// validateIssuer checks the URL of an issuer.
func (o *JWTOptions) validateIssuer() error {
	if o.Issuer != "" && o.Issuer != o.IssuerURL {
		return fmt.Errorf("issuer %q is not the issuer %q whose keys are fetched: leave one out", o.Issuer, redact(o.IssuerURL))
	}
	if u, err := url.Parse(o.IssuerURL); err == nil && (u.RawQuery != "" || u.Fragment != "" || u.User != nil) {
		return fmt.Errorf("issuer %q has a query, a fragment or a user: write https://HOST/PATH", redact(o.IssuerURL))
	}
	return validateURL("issuer", o.IssuerURL)
}

// validateURL rejects URLs whose response could be forged on the network.
func validateURL(name, text string) error {
	u, err := url.Parse(text)
	if err != nil { // the url package's error repeats the text, which may contain a password
		return fmt.Errorf("%s is not a URL: write https://HOST/PATH", name)
	}
	switch {
	case u.Host == "":
		return fmt.Errorf("%s %q has no host: write https://HOST/PATH", name, redact(text))
	case u.Scheme == "https", u.Scheme == "http" && isLoopback(u.Hostname()):
		return nil
	case u.Scheme == "http":
		return fmt.Errorf("%s %q is not encrypted, so that others could put their keys in: write https "+
			"(http goes with 127.0.0.1, ::1 and localhost only)", name, redact(text))
	}
	return fmt.Errorf("%s %q begins with neither https:// nor http://", name, redact(text))
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback() || host == "localhost"
}

// redact returns a URL or path without a password.
func redact(text string) string {
	if u, err := url.Parse(text); err == nil && u.User != nil {
		return u.Redacted()
	}
	return text
}

// JWTOptions.fill sets the defaults.
func (o *JWTOptions) fill() {
	if o.Leeway == nil {
		leeway := leewayDefault
		o.Leeway = &leeway
	}
	o.Refresh = valueOr(o.Refresh, refreshDefault)
	o.Claim = valueOr(o.Claim, "sub")
	o.Issuer = valueOr(o.Issuer, o.IssuerURL)
	o.MemoryEntries = valueOr(o.MemoryEntries, memoryEntries)
	o.MemoryBytes = valueOr(o.MemoryBytes, memoryBytes)
	if o.Now == nil {
		o.Now = time.Now
	}
}

func valueOr[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}
