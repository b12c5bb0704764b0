// SPDX-License-Identifier: Apache-2.0

package policy

// Identify is one way of finding out who is asking. It has exactly one of its words; the plain word `ip` is short for
// an `ip` with nothing in it.
type Identify struct {
	// By a signed token.
	JWT *IdentifyJWT `json:"jwt,omitempty"`

	// By an API key.
	APIKey *IdentifyAPIKey `json:"api_key,omitempty"`

	// By the value of a cookie.
	Cookie *IdentifyCookie `json:"cookie,omitempty"`

	// By the value of a request header.
	Header *IdentifyHeader `json:"header,omitempty"`

	// By a value that the proxy itself knows: in Caddy the name of a placeholder without its braces, such as
	// `http.auth.user.id`.
	Attr string `json:"attr,omitempty"`

	// By IP address.
	IP *IdentifyIP `json:"ip,omitempty"`
}

// IdentifyJWT says which tokens are believed, and what is read from them. Exactly one of `jwks_file`, `jwks_url`,
// `secret_file` and `secret` says with which keys they are signed.
type IdentifyJWT struct {
	// A file with a JSON Web Key Set, read again when it changes.
	JWKSFile string `json:"jwks_file,omitempty"`

	// The URL of a JSON Web Key Set, `https://…`. The last good set is kept while it cannot be fetched.
	JWKSURL string `json:"jwks_url,omitempty"`

	// A file whose content, without a line end behind it, is the secret of HMAC signatures.
	SecretFile string `json:"secret_file,omitempty"`

	// The secret of HMAC signatures. `{env.NAME}` is the value of that environment variable: a secret that is written
	// here is read by everybody who reads the policy.
	Secret string `json:"secret,omitempty"`

	// The signatures that are accepted: `HS256`, `HS384`, `HS512` with a secret; `RS256`, `RS384`, `RS512`, `ES256`,
	// `ES384`, `EdDSA` with a key set. Default: `HS256` with a secret; with a key set all that its keys allow.
	Algorithms Words `json:"algorithms,omitempty"`

	// What the claim `iss` must be. Default: anything.
	Issuer string `json:"issuer,omitempty"`

	// Of which the claim `aud` must have one. Default: anything.
	Audience Words `json:"audience,omitempty"`

	// The claim that names the user, by its path: `sub`, `org.user_id`. Default: `sub`.
	Claim string `json:"claim,omitempty"`

	// The claim that names the tenant, by its path. Default: none does.
	TenantClaim string `json:"tenant_claim,omitempty"`

	// The claim that names the tier, by its path. Default: none does.
	TierClaim string `json:"tier_claim,omitempty"`

	// The claim that holds limits of the client's own, by its path: a map from the name of a rule, or `*` for every rule
	// that counts by client, to its limits. Default: none does.
	LimitsClaim string `json:"limits_claim,omitempty"`

	// How far the clocks of the token's issuer and this proxy may be apart, at most 5m. Default: `30s`.
	Leeway string `json:"leeway,omitempty"`

	// How often the key set is read again, between 1s and 1d. A key that is not known makes it be read earlier. Default:
	// `5m`.
	Refresh string `json:"refresh,omitempty"`

	// A request header that is the token. Of several places, the first that has something counts: header, cookie, query,
	// bearer. Default: the bearer token.
	Header string `json:"header,omitempty"`

	// A cookie that is the token.
	Cookie string `json:"cookie,omitempty"`

	// A query parameter that is the token. It ends in logs and histories: prefer any other place.
	Query string `json:"query,omitempty"`

	// Whether the bearer token is read beside the places above.
	Bearer bool `json:"bearer,omitempty"`

	// What becomes of a request whose token does not verify: `next` (the default) tries the next way to identify, `deny`
	// answers 401.
	OnInvalid string `json:"on_invalid,omitempty"`
}

// IdentifyAPIKey says which API keys there are, and where requests carry them.
type IdentifyAPIKey struct {
	// A file with the hashes of the keys, with tier, tenant, owner, limits and expiry of each. It is read again when it
	// changes. Required.
	KeysFile string `json:"keys_file,omitempty"`

	// A request header that is the key. Of several places, the first that has something counts: header, cookie, query,
	// bearer. Default: the header `X-API-Key`, then the bearer token.
	Header string `json:"header,omitempty"`

	// A cookie that is the key.
	Cookie string `json:"cookie,omitempty"`

	// A query parameter that is the key. It ends in logs and histories: prefer any other place.
	Query string `json:"query,omitempty"`

	// Whether the bearer token is read as a key.
	Bearer bool `json:"bearer,omitempty"`

	// What becomes of a request whose key nobody has: `next` (the default) tries the next way to identify, `deny` answers
	// 401. Keys that were revoked, are inactive or have expired are answered with 401 either way.
	OnInvalid string `json:"on_invalid,omitempty"`
}

// IdentifyCookie names a cookie that says who is asking.
type IdentifyCookie struct {
	// The name of the cookie.
	Name string `json:"name,omitempty"`

	// Must be true. It says that you know that anyone can write a cookie, and so pretend to be anyone.
	Unverified bool `json:"unverified,omitempty"`
}

// IdentifyHeader names a request header that says who is asking.
type IdentifyHeader struct {
	// The name of the header.
	Name string `json:"name,omitempty"`

	// Must be true. It says that you know that anyone can write a request header, and so pretend to be anyone.
	Unverified bool `json:"unverified,omitempty"`
}

// IdentifyIP says how much of an IP address is one client.
type IdentifyIP struct {
	// How many leading bits of an IPv4 address are one client: 1 to 32. Default: 32.
	IPv4Prefix *int `json:"ipv4_prefix,omitempty"`

	// How many leading bits of an IPv6 address are one client: 1 to 128. Default: 64, the least a household is given.
	IPv6Prefix *int `json:"ipv6_prefix,omitempty"`
}

// Source is where a user, a tenant or a tier is taken from. It has exactly one of its words.
type Source struct {
	// The value of a request header.
	Header *IdentifyHeader `json:"header,omitempty"`

	// A value that the proxy itself knows.
	Attr string `json:"attr,omitempty"`

	// The so-manieth label of the host, from the left and from 1: of `acme.shop.example` the first is `acme`.
	HostLabel *int `json:"host_label,omitempty"`
}

// Listed tells of clients: of everybody who is in one of its lists.
type Listed struct {
	// IP addresses, single or as CIDR ranges.
	IP Words `json:"ip,omitempty"`

	// Users, as the token or the key's owner names them.
	User Words `json:"user,omitempty"`

	// The names of API keys, never the keys themselves.
	APIKey Words `json:"api_key,omitempty"`

	// Tiers.
	Tier Words `json:"tier,omitempty"`

	// Tenants.
	Tenant Words `json:"tenant,omitempty"`

	// Why, for logs and explanations. Clients are not told.
	Reason string `json:"reason,omitempty"`

	// When the entry ends, as RFC 3339 writes it: `2026-12-01T00:00:00Z`. Default: never.
	Until Date `json:"until,omitempty"`
}
