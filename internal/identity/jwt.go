// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policy"
)

// JWTOptions say which tokens are believed. Exactly one of Secret, SecretFile, JWKSFile and JWKSURL is set.
type JWTOptions struct {
	// Secret is the shared secret of HS256, HS384 and HS512; "{env.NAME}" takes it from the environment. It has at least
	// 32 bytes, for HS384 48, for HS512 64.
	Secret string
	// SecretFile is a file with nothing but the secret; one line break at its end is not part of it. It is read again
	// when it changes.
	SecretFile string
	// JWKSFile is a file with a JWK set. It is read again when it changes.
	JWKSFile string
	// JWKSURL is where the issuer publishes its JWK set: https, or http on this machine's loopback.
	JWKSURL string

	// Algorithms are those that a token may name: HS256, HS384, HS512 (with a secret), RS256, RS384, RS512, ES256,
	// ES384, EdDSA (with a JWK set). None means HS256 with a secret, and all that its keys allow with a JWK set.
	Algorithms []string
	// Issuer is what the claim iss must be; "" means anything.
	Issuer string
	// Audience are names of this service of which the claim aud must have one; none means anything.
	Audience []string

	// Claim is the path of the claim that says who the user is; "" means sub. A path is first tried as one name, so that
	// https://example.com/user works, then its dots lead into objects: org.id. A token without the claim is invalid.
	Claim string
	// TenantClaim, TierClaim and LimitsClaim are further paths; "" and claims that are not there mean none. The limits
	// are an object of rule names, each with a limit, a list of limits, or "unlimited". A claim of another shape makes
	// the token invalid, with a line in the log: leaving it out would silently give the client other limits.
	TenantClaim, TierClaim, LimitsClaim string

	// Leeway is by how much the clocks of the issuer and of this machine may differ: 0 to 5 minutes; nil means 30 s.
	Leeway *time.Duration
	// NoExpiry accepts tokens without the claim exp. Such a token is good until its key is taken away.
	NoExpiry bool
	// Refresh is the time between two looks at JWKSURL, 1 s to a day; 0 means 5 minutes.
	Refresh time.Duration

	// MemoryEntries and MemoryBytes bound the tokens that are remembered; 0 means 65,536 and 64 MiB. Failed tokens are
	// remembered beside them, a quarter as many in a quarter of the bytes, so that they push out no good ones.
	MemoryEntries, MemoryBytes int

	Now       func() time.Time  // nil means time.Now
	Logger    *slog.Logger      // nil means none
	Transport http.RoundTripper // for JWKSURL; nil means one of its own
}

// JWT verifies JSON Web Tokens (RFC 7519) in the compact form of RFC 7515. It is a [core.CostlyVerifier], safe for
// concurrent use. It never waits for a file or the network, and not long for a processor.
type JWT struct {
	algorithms                                 map[string]*algorithm
	issuer                                     string
	audience                                   []string
	claim, tenantClaim, tierClaim, limitsClaim string
	leeway                                     int64 // microseconds
	noExpiry                                   bool
	now                                        func() time.Time
	refused                                    *notices // what is wrong with claims that were signed

	set       atomic.Pointer[keySet]
	seed      maphash.Seed
	good, bad *memory
	meter     *meter
	elapsed   func() core.Micros // since the beginning, by a clock that is never set

	changing sync.Mutex    // one changes the set at a time
	ready    chan struct{} // closed when there are keys
	fetcher  *fetcher      // nil without a URL

	cancel  context.CancelFunc
	running sync.WaitGroup
}

var _ core.CostlyVerifier = (*JWT)(nil)

// failedFor is how long a failed token is remembered, if the keys do not change before.
const failedFor = time.Minute

// NewJWT returns a verifier. It reads the file that the options name, and starts to watch it or to fetch the URL until
// Close. The error names the option, its value and the remedy.
func NewJWT(o JWTOptions) (*JWT, error) { return newJWT(o, fetchPace, watchEvery) }

func newJWT(o JWTOptions, pace pace, every time.Duration) (*JWT, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	secret := o.JWKSFile == "" && o.JWKSURL == ""
	algorithms, err := allowed(o.Algorithms, secret)
	if err != nil {
		return nil, err
	}
	o.fill()
	j := &JWT{algorithms: algorithms, issuer: o.Issuer, audience: o.Audience, claim: o.Claim, tenantClaim: o.TenantClaim,
		tierClaim: o.TierClaim, limitsClaim: o.LimitsClaim, leeway: o.Leeway.Microseconds(), noExpiry: o.NoExpiry,
		now: o.Now, refused: newNotices(o.Logger), seed: maphash.MakeSeed(), ready: make(chan struct{}), meter: processMeter()}
	began := time.Now()
	j.elapsed = func() core.Micros { return core.Micros(time.Since(began).Microseconds()) }
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

// start takes the keys from where they are, and keeps looking there.
func (j *JWT) start(ctx context.Context, o *JWTOptions, pace pace, every time.Duration) error {
	notices := newNotices(o.Logger)
	switch {
	case o.Secret != "":
		secret, err := policy.Secret(o.Secret)
		if err != nil {
			return fmt.Errorf("secret: %w", err)
		}
		keys, err := readSecret([]byte(secret), j.algorithms)
		if err != nil {
			return err
		}
		j.install(keys)
		return nil
	case o.JWKSURL != "":
		j.fetcher = newFetcher(o, pace, notices, func(data []byte) error { return j.installSet(data, o.JWKSURL, notices) })
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

// Close stops looking for new keys. Tokens are verified with the last ones.
func (j *JWT) Close() error {
	j.cancel()
	j.running.Wait()
	return nil
}

// Ready returns a channel that is closed when there are keys. Only with a URL it may take time; until then every token
// is invalid.
func (j *JWT) Ready() <-chan struct{} { return j.ready }

func (j *JWT) installSet(data []byte, from string, notices *notices) error {
	keys, skipped, err := readSet(data, j.algorithms)
	if err != nil {
		return err
	}
	if j.install(keys) && len(skipped) > 0 {
		notices.changed("some keys of a JWK set are not used", "from", redact(from), "keys", len(keys), "skipped", len(skipped),
			"first", skipped[0])
	}
	return nil
}

// install puts the keys in force. What a key has verified that is no longer there is forgotten, and so is every failure.
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

// Verify says whose token it is, on behalf of nobody in particular: what that costs is not metered. A token that is
// remembered costs no signature check and no allocation.
func (j *JWT) Verify(text string) (*core.Identity, core.CredentialState) {
	return j.VerifyFor(nil, text)
}

// VerifyFor is Verify on behalf of a client. Those that show tokens of no key's are not listened to beyond a bound; what is
// remembered is always told.
func (j *JWT) VerifyFor(asker *core.Asker, text string) (*core.Identity, core.CredentialState) {
	switch {
	case text == "":
		return nil, core.CredentialAbsent
	case len(text) > TokenBytesMax:
		return nil, core.CredentialMalformed
	}
	now, sum := j.now().UnixMicro(), maphash.String(j.seed, text)
	if id, state, ok := j.recall(text, sum, now); ok {
		return id, state
	}
	p, ok := cutToken(text)
	if !ok {
		return nil, core.CredentialMalformed
	}
	q := inquiry{asker: asker, meter: j.meter, elapsed: j.elapsed}
	if !q.begin(core.Micros(now)) {
		return nil, core.CredentialInvalid
	}
	return j.verify(&q, text, p, sum, now)
}

// recall returns what is remembered of a token.
func (j *JWT) recall(text string, sum uint64, now int64) (id *core.Identity, state core.CredentialState, ok bool) {
	if v := j.good.find(sum, text); v != nil && !v.key.gone.Load() {
		if now < v.from || now >= v.until {
			return nil, core.CredentialExpired, true
		}
		return v.identity, core.CredentialValid, true
	}
	if v := j.bad.find(sum, text); v != nil && v.set == j.set.Load() && now >= v.from && now < v.until {
		return nil, v.state, true
	}
	return nil, core.CredentialAbsent, false
}

// verify checks a token that is not remembered, and remembers it if that cost a signature check.
func (j *JWT) verify(q *inquiry, text string, p parts, sum uint64, now int64) (*core.Identity, core.CredentialState) {
	signed := false
	defer func() { q.end(core.Micros(now), signed) }()
	t, state := j.parseToken(text, p)
	if state != core.CredentialValid {
		return nil, state
	}
	set := j.set.Load()
	found, unknown := set.candidates(t.kid, t.algorithm)
	if unknown && j.fetcher != nil {
		j.fetcher.wanted()
	}
	if len(found) == 0 {
		return nil, core.CredentialInvalid
	}
	if !q.enter(core.Micros(now)) {
		return nil, core.CredentialInvalid
	}
	defer q.leave()
	if q.waited > 0 { // for another request with the same token, perhaps
		if id, state, ok := j.recall(text, sum, now); ok {
			signed = true // as far as this one is concerned
			return id, state
		}
	}
	key := signer(&t, found)
	signed = key != nil
	v := &verdict{token: text, sum: sum, state: core.CredentialInvalid, key: key}
	if signed {
		v.identity, v.span, v.state = j.judge(t.payload, now)
	} else if j.fetcher != nil { // its key may be new, and called as one before it, or not at all
		j.fetcher.wanted()
	}
	if v.state == core.CredentialValid {
		j.good.remember(v, set, now)
		return v.identity, v.state
	}
	until := now + failedFor.Microseconds()
	if v.state == core.CredentialExpired && now < v.from { // not good yet
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

// judge reads the claims of a token whose signature holds.
func (j *JWT) judge(payload string, now int64) (*core.Identity, span, core.CredentialState) {
	data, ok := decodePart(payload)
	if !ok {
		return nil, span{}, core.CredentialMalformed
	}
	object, err := decodeObject(data, claimsValuesMax)
	if err != nil {
		return nil, span{}, core.CredentialMalformed
	}
	c := claims(object)
	when, err := j.times(c)
	if err != nil {
		return nil, span{}, j.refuse(err)
	}
	if err := j.meant(c); err != nil {
		return nil, span{}, core.CredentialInvalid
	}
	if now < when.from || now >= when.until {
		return nil, when, core.CredentialExpired
	}
	id, err := j.identify(c)
	if err != nil {
		return nil, span{}, j.refuse(err)
	}
	return id, when, core.CredentialValid
}

// refuse tells the log why a token that its issuer did sign is not accepted: somebody has to mend the one or the other.
func (j *JWT) refuse(why error) core.CredentialState {
	j.refused.sometimes("a token that is signed is not accepted: " + cut(why.Error()))
	return core.CredentialInvalid
}
