// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"slices"
)

// CertificatePrefix begins the URI that names the region of an agent. The URI is among the subject
// alternative names of the agent's certificate. The name of the region follows: penstock:region:eu.
const CertificatePrefix = "penstock:region:"

// SpeaksFor reports whether a certificate names a region. The caller must have verified that an
// authority of the regions signed it.
func SpeaksFor(certificate *x509.Certificate, region string) bool {
	return slices.ContainsFunc(certificate.URIs, func(u *url.URL) bool { return u.String() == CertificatePrefix+region })
}

// CallerSpeaksFor reports whether the caller of a request has presented a certificate that names
// the given region.
func CallerSpeaksFor(r *http.Request, region string) bool {
	return r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && SpeaksFor(r.TLS.PeerCertificates[0], region)
}

// toRegion returns a configuration for connections to the agent of a region, whose certificate must
// name it.
func toRegion(config *tls.Config, region string) *tls.Config {
	config = config.Clone()
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 || !SpeaksFor(state.PeerCertificates[0], region) {
			return fmt.Errorf("the certificate of the agent does not name region %s: issue it with the subject alternative name URI:%s%s",
				region, CertificatePrefix, region)
		}
		return nil
	}
	return config
}

// Agent.fromPeer reports whether the caller of a request has presented a certificate that names
// another region.
func (a *Agent) fromPeer(r *http.Request) bool {
	return slices.ContainsFunc(a.o.Peers, func(p *Peer) bool { return CallerSpeaksFor(r, p.Name) })
}
