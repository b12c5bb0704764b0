// SPDX-License-Identifier: Apache-2.0

package policyfile

// Identify is one way to identify clients. Exactly one of its fields is set. The plain word `ip`
// means an empty `ip` block.
type Identify struct {
	// By a signed token.
	JWT *IdentifyJWT `json:"jwt,omitempty"`

	// By an API key.
	APIKey *IdentifyAPIKey `json:"api_key,omitempty"`

	// By the value of a cookie.
	Cookie *IdentifyCookie `json:"cookie,omitempty"`

	// By the value of a request header.
	Header *IdentifyHeader `json:"header,omitempty"`

	// By a value that the proxy provides: in Caddy the name of a placeholder without its braces,
	// such as `http.auth.user.id`.
	Attr string `json:"attr,omitempty"`

	// By IP address.
	IP *IdentifyIP `json:"ip,omitempty"`
}

// IdentifyJWT defines which tokens are accepted and what is read from them. Exactly one of
// `jwks_file`, `jwks_url`, `secret_file` and `secret` is set.
type IdentifyJWT struct {
	// A file with a JSON Web Key Set, read again when it changes.
	JWKSFile string `json:"jwks_file,omitempty"`

	// The URL of a JSON Web Key Set, `https://…`. The last good set remains in use while the URL
	// cannot be fetched.
	JWKSURL string `json:"jwks_url,omitempty"`

	// A file whose content, without a final line end, is the secret of HMAC signatures.
	SecretFile string `json:"secret_file,omitempty"`

	// The secret of HMAC signatures. `{env.NAME}` is the value of that environment variable. A
	// secret that is written here can be seen by everyone who can read the policy.
	Secret string `json:"secret,omitempty"`

	// The signatures that are accepted: `HS256`, `HS384`, `HS512` with a secret; `RS256`, `RS384`,
	// `RS512`, `ES256`, `ES384`, `EdDSA` with a key set. Default: `HS256` for a secret; for a key
	// set, every algorithm that its keys allow.
	Algorithms Words `json:"algorithms,omitempty"`

	// The required value of the claim `iss`. Default: any.
	Issuer string `json:"issuer,omitempty"`

	// The claim `aud` must contain one of these. Default: any.
	Audience Words `json:"audience,omitempty"`

	// The path of the claim that names the user: `sub`, `org.user_id`. Default: `sub`.
	Claim string `json:"claim,omitempty"`

	// The path of the claim that names the tenant. Default: none.
	TenantClaim string `json:"tenant_claim,omitempty"`

	// The path of the claim that names the tier. Default: none.
	TierClaim string `json:"tier_claim,omitempty"`

	// The path of the claim that contains the client's own limits. The claim is a map from rule
	// name to limits; the name `*` stands for every rule that counts by client. Default: none.
	LimitsClaim string `json:"limits_claim,omitempty"`

	// The largest difference between the clocks of the token's issuer and this proxy, at most 5m.
	// Default: `30s`.
	Leeway string `json:"leeway,omitempty"`

	// The interval at which the key set is read again, between 1s and 1d. If a token names an
	// unknown key, the key set is read earlier. Default: `5m`.
	Refresh string `json:"refresh,omitempty"`

	// A request header that holds the token. If several places are set, the first with a value
	// counts: header, cookie, query, bearer. Default: the bearer token.
	Header string `json:"header,omitempty"`

	// A cookie that holds the token.
	Cookie string `json:"cookie,omitempty"`

	// A query parameter that holds the token. URLs end up in logs and histories: prefer any other
	// place.
	Query string `json:"query,omitempty"`

	// Whether the bearer token is read in addition to the places above.
	Bearer bool `json:"bearer,omitempty"`

	// What happens to a request whose token is invalid: `next` (the default) tries the next way to
	// identify, `deny` answers with 401.
	OnInvalid string `json:"on_invalid,omitempty"`
}

// IdentifyAPIKey defines which API keys are valid, and where requests carry them.
type IdentifyAPIKey struct {
	// A file with the hash, tier, tenant, owner, limits and expiry of each key. The file is read
	// again when it changes. Required without `keys`.
	KeysFile string `json:"keys_file,omitempty"`

	// `directory`: keys that are not in `keys_file` are looked up in the directory. Operators
	// create and revoke them while the proxy runs: `penstock key`. For a key that is in both, the
	// file takes precedence.
	Keys string `json:"keys,omitempty"`

	// A request header that holds the key. If several places are set, the first with a value
	// counts: header, cookie, query, bearer. Default: the header `X-API-Key`, then the bearer
	// token.
	Header string `json:"header,omitempty"`

	// A cookie that holds the key.
	Cookie string `json:"cookie,omitempty"`

	// A query parameter that holds the key. URLs end up in logs and histories: prefer any other
	// place.
	Query string `json:"query,omitempty"`

	// Whether the bearer token is read as a key.
	Bearer bool `json:"bearer,omitempty"`

	// What happens to a request whose key is unknown: `next` (the default) tries the next way to
	// identify, `deny` answers with 401. Keys that were revoked, are inactive or have expired are
	// answered with 401 either way.
	OnInvalid string `json:"on_invalid,omitempty"`
}

// IdentifyCookie names a cookie that identifies the client.
type IdentifyCookie struct {
	// The name of the cookie.
	Name string `json:"name,omitempty"`

	// Must be true. Unverified confirms that the author knows that any client can set the cookie,
	// and so pose as any other client.
	Unverified bool `json:"unverified,omitempty"`
}

// IdentifyHeader names a request header that identifies the client.
type IdentifyHeader struct {
	// The name of the header.
	Name string `json:"name,omitempty"`

	// Must be true. Unverified confirms that the author knows that any client can set the request
	// header, and so pose as any other client.
	Unverified bool `json:"unverified,omitempty"`
}

// IdentifyIP sets how much of an IP address identifies one client.
type IdentifyIP struct {
	// How many leading bits of an IPv4 address are one client: 1 to 32. Default: 32.
	IPv4Prefix *int `json:"ipv4_prefix,omitempty"`

	// How many leading bits of an IPv6 address are one client: 1 to 128. Default: 64, the smallest
	// network that a household gets.
	IPv6Prefix *int `json:"ipv6_prefix,omitempty"`
}

// Source is the origin of a user, a tenant or a tier. Exactly one of its fields is set.
type Source struct {
	// The value of a request header.
	Header *IdentifyHeader `json:"header,omitempty"`

	// A value that the proxy provides.
	Attr string `json:"attr,omitempty"`

	// The number of a label of the host, from the left, starting at 1: in `acme.shop.example`,
	// label 1 is `acme`.
	HostLabel *int `json:"host_label,omitempty"`
}

// Listed selects the clients that are in one of its lists.
type Listed struct {
	// IP addresses, single or as CIDR ranges.
	IP Words `json:"ip,omitempty"`

	// Users, named as in the token or as the key's owner.
	User Words `json:"user,omitempty"`

	// The names of API keys, never the keys themselves.
	APIKey Words `json:"api_key,omitempty"`

	// Tiers.
	Tier Words `json:"tier,omitempty"`

	// Tenants.
	Tenant Words `json:"tenant,omitempty"`

	// The reason, for logs and explanations. Clients do not see it.
	Reason string `json:"reason,omitempty"`

	// When the entry expires, as in RFC 3339: `2026-12-01T00:00:00Z`. Default: never.
	Until Date `json:"until,omitempty"`
}
