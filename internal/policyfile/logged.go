// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"net/textproto"
	"slices"
)

// LoggedCredentials returns the places of credentials that an access log would contain in plain
// text: "header X-Api-Key", "query key". By themselves, proxies omit only Authorization and Cookie
// from access logs.
func (d *Document) LoggedCredentials() (places []string) {
	add := func(word, name string) {
		if place := word + " " + name; name != "" && !slices.Contains(places, place) {
			places = append(places, place)
		}
	}
	for i := range d.Identify {
		if jwt := d.Identify[i].JWT; jwt != nil {
			add("header", textproto.CanonicalMIMEHeaderKey(jwt.Header))
			add("query", jwt.Query)
		}
		if key := d.Identify[i].APIKey; key != nil {
			header := key.Header
			if header == "" && key.Cookie == "" && key.Query == "" && !key.Bearer {
				header = "X-Api-Key" // the default, in addition to the bearer token
			}
			add("header", textproto.CanonicalMIMEHeaderKey(header))
			add("query", key.Query)
		}
	}
	return places
}
