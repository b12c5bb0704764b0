// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
)

// JWTOptions configures [NewJWT]. Exactly one of Secret, SecretFile, JWKSFile, JWKSURL and
// IssuerURL is set.
type JWTOptions struct {
	// Secret is the shared secret of HS256, HS384 and HS512. "{env.NAME}" reads it from the
	// environment. Secret must have at least 32 bytes, or 48 for HS384, or 64 for HS512.
	Secret string
	// SecretFile is the path of a file that contains only the secret. A line break at the end of
	// the file is ignored. A changed file takes effect without a restart.
	SecretFile string
	// JWKSFile is the path of a file with a JWK set. A changed file takes effect without a restart.
	JWKSFile string
	// JWKSURL is the URL of the issuer's JWK set: https, or http on the loopback interface.
	JWKSURL string
	// IssuerURL is the URL of an issuer whose document of OpenID Connect Discovery names the URL of
	// its JWK set. Both URLs must be https, or http on the loopback interface. IssuerURL also
	// becomes the value of Issuer.
	IssuerURL string

	// Algorithms are the algorithms that a token may name: HS256, HS384 and HS512 with a secret;
	// RS256, RS384, RS512, ES256, ES384 and EdDSA with a JWK set. For a secret, the default is
	// HS256. For a JWK set, the default is every algorithm that the set's keys allow.
	Algorithms []string
	// Issuer is the required value of the claim iss. "" accepts any value.
	Issuer string
	// Audience lists names of this service. The claim aud must have one of them. An empty list
	// accepts any value.
	Audience []string

	// Claim is the path of the claim that names the user; "" means sub. The whole path is first
	// tried as one name, so https://example.com/user works. If there is no such claim, each dot of
	// the path leads into an object, as in org.id. A token without the claim is invalid.
	Claim string
	// TenantClaim, TierClaim and LimitsClaim are the paths of the claims for tenant, tier and
	// limits. If a path is "" or its claim is missing, the client does not have that property. The
	// limits are an object that maps rule names to a limit, a list of limits, or "unlimited". A
	// claim of another type makes the token invalid and is logged, because ignoring the claim would
	// silently change the client's limits.
	TenantClaim, TierClaim, LimitsClaim string
	// ChooseTier returns the tier of a token whose TierClaim is a list of texts, or one text. The
	// list is nil if the claim is missing. If ChooseTier is nil, the claim is the tier itself.
	ChooseTier func(values []string) string

	// Leeway is the accepted difference between the clocks of the issuer and this machine, 0 to 5
	// minutes. Nil means 30 s.
	Leeway *time.Duration
	// NoExpiry accepts tokens without the claim exp. Such a token is valid until its key is
	// removed.
	NoExpiry bool
	// LifeMax is the greatest time between the verification of a token and its expiry. A token that
	// expires later is invalid. 0 means that there is no bound.
	LifeMax time.Duration
	// Refresh is the time between two fetches of JWKSURL or IssuerURL, 1 s to a day. 0 means 5
	// minutes.
	Refresh time.Duration

	// MemoryEntries and MemoryBytes bound the remembered tokens. 0 means 65,536 and 64 MiB. Failed
	// tokens are remembered separately, so that they do not evict valid ones. The bounds for failed
	// tokens are a quarter of these.
	MemoryEntries, MemoryBytes int

	Now       func() time.Time  // nil means time.Now
	Logger    *slog.Logger      // nil means none
	Transport http.RoundTripper // for fetches; nil means a new transport
}

// JWT verifies JSON Web Tokens (RFC 7519) in the compact form of RFC 7515. A JWT is a
// [policy.CostlyVerifier] and safe for concurrent use. A JWT never waits for a file or the network,
// and its wait for a processor is bounded.
type JWT struct {
	algorithms                                 map[string]*algorithm
	issuer                                     string
	audience                                   []string
	claim, tenantClaim, tierClaim, limitsClaim string
	chooseTier                                 func([]string) string
	leeway, lifeMax                            int64 // microseconds
	noExpiry                                   bool
	now                                        func() time.Time
	refused                                    *notices // log of wrong claims in signed tokens

	set       atomic.Pointer[keySet]
	seed      maphash.Seed
	good, bad *memory
	meter     *meter
	elapsed   func() counter.Micros // a monotonic clock

	changing sync.Mutex    // serializes changes of the set
	ready    chan struct{} // a channel that is closed when there are keys
	fetcher  *fetcher      // the fetcher; nil without a URL

	cancel  context.CancelFunc
	running sync.WaitGroup
}

var _ policy.CostlyVerifier = (*JWT)(nil)

// failedFor is how long a failed token is remembered, unless the keys change.
const failedFor = time.Minute

// NewJWT returns a verifier. NewJWT reads the configured file, and watches it or fetches the URL
// until Close. The error names the option, its value and the remedy.
func NewJWT(o JWTOptions) (*JWT, error) { return newJWT(o, fetchPace, watchEvery) }

func newJWT(o JWTOptions, pace pace, every time.Duration) (*JWT, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	secret := o.JWKSFile == "" && !o.fetched()
	algorithms, err := allowedAlgorithms(o.Algorithms, secret)
	if err != nil {
		return nil, err
	}
	o.fill()
	j := &JWT{algorithms: algorithms, issuer: o.Issuer, audience: o.Audience, claim: o.Claim, tenantClaim: o.TenantClaim,
		tierClaim: o.TierClaim, limitsClaim: o.LimitsClaim, chooseTier: o.ChooseTier, leeway: o.Leeway.Microseconds(),
		lifeMax: o.LifeMax.Microseconds(), noExpiry: o.NoExpiry, now: o.Now, refused: newNotices(o.Logger), seed: maphash.MakeSeed(), ready: make(chan struct{}), meter: processMeter()}
	began := time.Now()
	j.elapsed = func() counter.Micros { return counter.Micros(time.Since(began).Microseconds()) }
	j.good = newMemory(j.seed, o.MemoryEntries, o.MemoryBytes/4*3)
	j.bad = newMemory(j.seed, o.MemoryEntries/4, o.MemoryBytes/4)
	j.set.Store(newKeySet(nil))
	ctx, cancel := context.WithCancel(context.Background())
	j.cancel = cancel
	if err := j.start(ctx, &o, pace, every); err != nil {
		cancel()
		return nil, err
	}
	return j, nil
}

// JWT.start loads the keys and keeps them up to date.
func (j *JWT) start(ctx context.Context, o *JWTOptions, pace pace, every time.Duration) error {
	notices := newNotices(o.Logger)
	switch {
	case o.Secret != "":
		secret, err := policyfile.Secret(o.Secret)
		if err != nil {
			return fmt.Errorf("secret: %w", err)
		}
		keys, err := readSecret([]byte(secret), j.algorithms)
		if err != nil {
			return err
		}
		j.install(keys)
		return nil
	case o.fetched():
		j.fetcher = newFetcher(o, pace, notices, func(data []byte, from string) error { return j.installSet(data, from, notices) })
		j.running.Go(func() { j.fetcher.run(ctx) })
		return nil
	}
	file := &watchedFile{path: o.JWKSFile, sizeMax: setBytesMax, notices: notices}
	file.load = func(data []byte) error { return j.installSet(data, o.JWKSFile, notices) }
	if o.SecretFile != "" {
		file.path, file.sizeMax = o.SecretFile, secretBytesMax
		file.load = func(data []byte) error {
			keys, err := readSecretFile(data, j.algorithms)
			if err == nil {
				j.install(keys)
			}
			return err
		}
	}
	if err := file.open(); err != nil {
		return err
	}
	j.running.Go(func() { file.run(ctx, every) })
	return nil
}

// Close stops looking for new keys. The last keys remain in force.
func (j *JWT) Close() error {
	j.cancel()
	j.running.Wait()
	return nil
}

// Ready returns a channel that is closed when there are keys. Until then every token is invalid.
// Only keys from a URL can take time.
func (j *JWT) Ready() <-chan struct{} { return j.ready }

func (j *JWT) installSet(data []byte, from string, notices *notices) error {
	keys, skipped, err := readSet(data, j.algorithms)
	if err != nil {
		return err
	}
	if j.install(keys) && len(skipped) > 0 {
		notices.logEvent("some keys of a JWK set are not used", "from", redact(from), "keys", len(keys), "skipped", len(skipped),
			"first", skipped[0])
	}
	return nil
}

// JWT.install puts the keys in force. It drops the verdicts based on removed keys, and the verdicts
// on all failed tokens.
func (j *JWT) install(keys []*key) (changed bool) {
	j.changing.Lock()
	defer j.changing.Unlock()
	next, gone := j.set.Load().replace(keys)
	if next == nil {
		return false
	}
	j.set.Store(next)
	for _, k := range gone {
		k.gone.Store(true)
	}
	now := j.now().UnixMicro()
	j.good.forget(next, now)
	j.bad.forget(next, now)
	select {
	case <-j.ready:
	default:
		close(j.ready)
	}
	return true
}

// Verify verifies a token without metering its cost. For a remembered token it neither checks the
// signature nor allocates.
func (j *JWT) Verify(text string) (*policy.Identity, policy.CredentialState) {
	return j.VerifyFor(nil, text)
}

// SetsLimits reports whether tokens can contain the client's own limits.
func (j *JWT) SetsLimits() bool { return j.limitsClaim != "" }

// Seen returns, for operators, the contents of a client's remembered tokens. The token that expires
// last comes first. Seen scans all remembered tokens, which takes milliseconds.
func (j *JWT) Seen(kind, id string) []*policy.Identity {
	var found []*verdict
	j.good.each(j.set.Load(), j.now().UnixMicro(), func(v *verdict) {
		if v.identity != nil && v.identity.Kind == kind && v.identity.ID == id {
			found = append(found, v)
		}
	})
	slices.SortFunc(found, func(a, b *verdict) int { return cmp.Compare(b.until, a.until) })
	identities := make([]*policy.Identity, len(found))
	for i, v := range found {
		identities[i] = v.identity
	}
	return identities
}

// TierClaim returns the claim that names the tier, or "" if tokens name none.
func (j *JWT) TierClaim() string { return j.tierClaim }

// LimitsClaim returns the claim that contains the client's own limits, or "" if there is none.
func (j *JWT) LimitsClaim() string { return j.limitsClaim }

// VerifyFor is Verify on behalf of a client. VerifyFor meters the cost of tokens that no key has
// signed. Remembered verdicts are always returned.
func (j *JWT) VerifyFor(asker *policy.Asker, text string) (*policy.Identity, policy.CredentialState) {
	switch {
	case text == "":
		return nil, policy.CredentialAbsent
	case len(text) > TokenBytesMax:
		return nil, policy.CredentialMalformed
	}
	now, sum := j.now().UnixMicro(), maphash.String(j.seed, text)
	q := inquiry{asker: asker, meter: j.meter, elapsed: j.elapsed}
	if id, state, ok := j.recall(text, sum, now, q.grace()); ok {
		return id, state
	}
	p, ok := cutToken(text)
	if !ok {
		return nil, policy.CredentialMalformed
	}
	if !q.begin(counter.Micros(now), len(text)) {
		return nil, policy.CredentialInvalid
	}
	return j.verify(&q, text, p, sum, now)
}

// JWT.recall returns the remembered verdict on a token. The argument grace is how long an expired
// token remains valid.
func (j *JWT) recall(text string, sum uint64, now, grace int64) (id *policy.Identity, state policy.CredentialState, ok bool) {
	if v := j.good.find(sum, text); v != nil && !v.key.gone.Load() {
		if now < v.from || now-grace >= v.until {
			return nil, policy.CredentialExpired, true
		}
		return v.identity, policy.CredentialValid, true
	}
	v := j.bad.find(sum, text)
	if v != nil && v.set == j.set.Load() && now >= v.from && now < v.until && !(grace > 0 && v.state == policy.CredentialExpired) {
		return nil, v.state, true
	}
	return nil, policy.CredentialAbsent, false
}

// JWT.verify verifies a token that is not remembered. It remembers the verdict if a signature check
// was needed.
func (j *JWT) verify(q *inquiry, text string, p tokenParts, sum uint64, now int64) (*policy.Identity, policy.CredentialState) {
	signed := false
	defer func() { q.end(counter.Micros(now), signed) }()
	t, state := j.parseToken(text, p)
	if state != policy.CredentialValid {
		return nil, state
	}
	set := j.set.Load()
	found, unknown := set.candidates(t.kid, t.algorithm)
	if unknown && j.fetcher != nil {
		j.fetcher.wanted()
	}
	if len(found) == 0 {
		return nil, policy.CredentialInvalid
	}
	if !q.enter(counter.Micros(now)) {
		return nil, policy.CredentialInvalid
	}
	defer q.leave()
	if q.waited > 0 { // another request might have verified the same token in the meantime
		if id, state, ok := j.recall(text, sum, now, q.grace()); ok {
			signed = true // the verdict was remembered, so this request pays nothing
			return id, state
		}
	}
	key := signer(&t, found)
	signed = key != nil
	v := &verdict{token: text, sum: sum, state: policy.CredentialInvalid, key: key}
	if signed {
		v.identity, v.span, v.state = j.judge(t.payload, now, q.grace())
	} else if j.fetcher != nil { // its key might be new, with the key ID of an older key or without a key ID
		j.fetcher.wanted()
	}
	if v.state == policy.CredentialValid {
		j.good.remember(v, set, now)
		return v.identity, v.state
	}
	until := now + failedFor.Microseconds()
	if v.state == policy.CredentialExpired && now < v.from { // the token is not valid yet
		until = min(until, v.from)
	}
	v.identity, v.key, v.set, v.span = nil, nil, set, span{now, until}
	j.bad.remember(v, set, now)
	return nil, v.state
}

// signer returns the key that signed the token, or nil.
func signer(t *token, among []*key) *key {
	for _, k := range among {
		if t.algorithm.method.Verify(t.signed, t.signature, k.value) == nil {
			return k
		}
	}
	return nil
}

// JWT.judge reads the claims of a token whose signature is verified. The argument grace is how long
// an expired token remains valid.
func (j *JWT) judge(payload string, now, grace int64) (*policy.Identity, span, policy.CredentialState) {
	data, ok := decodePart(payload)
	if !ok {
		return nil, span{}, policy.CredentialMalformed
	}
	object, err := decodeObject(data, claimsValuesMax)
	if err != nil {
		return nil, span{}, policy.CredentialMalformed
	}
	c := claims(object)
	when, err := j.times(c)
	if err != nil {
		return nil, span{}, j.reject(err)
	}
	if err := j.checkIssuerAndAudience(c); err != nil {
		return nil, span{}, policy.CredentialInvalid
	}
	if now < when.from || now-grace >= when.until {
		return nil, when, policy.CredentialExpired
	}
	if j.lifeMax > 0 && when.until-j.leeway-now > j.lifeMax {
		return nil, span{}, j.reject(fmt.Errorf(`claim "exp" is more than %s ahead: the issuer must sign tokens that expire sooner`,
			time.Duration(j.lifeMax)*time.Microsecond))
	}
	id, err := j.identify(c)
	if err != nil {
		return nil, span{}, j.reject(err)
	}
	return id, when, policy.CredentialValid
}

// JWT.reject logs why a signed token is rejected, because either the issuer or the configuration
// must be changed.
func (j *JWT) reject(why error) policy.CredentialState {
	j.refused.logSometimes("a signed token is rejected: " + cut(why.Error()))
	return policy.CredentialInvalid
}
