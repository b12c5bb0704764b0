// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/fallback"
	"github.com/penstock/penstock/internal/policy"
	"github.com/penstock/penstock/internal/settle"
	"github.com/penstock/penstock/internal/tally"
	"github.com/penstock/penstock/internal/throttle"
)

// Bounds of what is under way at once.
const (
	// CallsMaxDefault is how many calls are answered at once: a call takes a millisecond or the store's deadline, and some
	// 100 KB. One more is answered 503.
	CallsMaxDefault = 1024
	// questionsMax is how many questions are answered at once, in all calls together: they hold 4 KB each. One more is
	// answered that the bridge has too much to do.
	questionsMax = 1 << 15
	// WaitersMaxDefault is how many requests wait for throttle rules. They hold 20 KB each; one more is refused.
	WaitersMaxDefault = 1 << 14
)

// Options set a bridge up. Either PolicyFile or Policy is required, and Store.
type Options struct {
	PolicyFile string           // a policy file, which is followed
	Policy     *policy.Document // a policy that does not change
	Store      core.Store       // answers what only a store knows; it stays the caller's to close
	// Fallback stands in for the store where a rule says on_error: local; its Failed is not used. Without a Local nothing does, and
	// such rules let pass what the store does not decide.
	Fallback fallback.Options
	// Shared says that others count in the same store: then the policy must have a name.
	Shared bool
	// Fronts are those that the policy is for beside the filter: one that asks for what they cannot do is refused.
	Fronts []policy.Front
	// Reachable says what is wrong with the store, nil if nothing is. It is asked for /readyz. Nil: nothing ever is.
	Reachable func(context.Context) error
	// Token is what callers must show as a bearer token; "" lets everybody in who can connect.
	Token string
	// Hosts are names, beside those that need not be said, by which callers may ask over TCP where there is no token.
	Hosts []string
	// Called is told of each call that is let in, before it is read, with the context of its request. known says that it
	// showed the token, or that there is none; else it only asks for the health. Nil: nobody is told.
	Called func(ctx context.Context, known bool)
	// Forgetful says that filters are not to remember what was refused, but for limits that are leased.
	Forgetful bool
	// CallsMax and WaitersMax take the place of their defaults; 0 is those.
	CallsMax, WaitersMax int
	// Changed is told of every version of the policy that comes into force, in its compact form. Nil: nobody is.
	Changed func(version string, compact []byte)
	// Registry is where metrics go, and what /metrics shows; nil is one of its own.
	Registry *prometheus.Registry
	// Logger is told of policies and failures, never of clients. Nil is silence.
	Logger *slog.Logger
}

// Bridge answers filters. Safe for concurrent use.
type Bridge struct {
	options      Options
	store        core.Store
	batcher      core.Batcher // the store, if it is one
	logger       *slog.Logger
	editions     editions
	metrics      *metrics
	calls        sync.Pool    // of *call
	under        atomic.Int64 // calls under way, but for those that wait
	receiving    atomic.Int64 // calls that come
	bodies       atomic.Int64 // bytes of all calls, but for the first of each
	asking       atomic.Int64 // questions under way
	sealer       *sealer
	receiptsRoam bool // other bridges can open them, and count in the same store
	settling     *settle.Queue
	lines        *throttle.Lines
	ending       context.Context // done when those that wait are to be sent away
	end          context.CancelFunc
	leaving      atomic.Bool            // it will stop soon
	quiet        atomic.Int64           // the second in which a panic was logged last
	hostTold     atomic.Int64           // and an unknown host
	told         atomic.Pointer[string] // what was wrong with the store when it was looked at last
	reached      reached
}

// New returns a bridge with the policy in force. The error says what is wrong with the policy, and where.
func New(o Options) (*Bridge, error) {
	switch {
	case o.Store == nil:
		return nil, errors.New("a bridge needs a store")
	case (o.PolicyFile == "") == (o.Policy == nil):
		return nil, errors.New("a bridge needs a policy, from a file or otherwise")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Changed == nil {
		o.Changed = func(string, []byte) {}
	}
	if o.Called == nil {
		o.Called = func(context.Context, bool) {}
	}
	if o.CallsMax <= 0 {
		o.CallsMax = CallsMaxDefault
	}
	if o.WaitersMax <= 0 {
		o.WaitersMax = WaitersMaxDefault
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	b := &Bridge{options: o, store: o.Store, logger: o.Logger, sealer: newSealer(o.Token, micros(time.Now())),
		lines: throttle.New(throttle.Options{WaitersMax: o.WaitersMax})}
	b.receiptsRoam = o.Token != "" && o.Shared
	if o.Fallback.Local != nil {
		o.Fallback.Failed = func(err error) { b.metrics.StoreErrors.WithLabelValues(tally.FailureKind(err)).Inc() }
		b.store = fallback.New(o.Store, o.Fallback)
	}
	b.batcher, _ = b.store.(core.Batcher)
	b.calls.New = func() any { return new(call) }
	b.ending, b.end = context.WithCancel(context.Background())
	var err error
	if b.metrics, err = newMetrics(b, o.Registry); err != nil {
		return nil, err
	}
	b.settling = settle.New(o.Store, b.metrics.settled)
	b.settling.Panic = b.panicked
	b.editions.metrics = b.metrics
	return b, b.editions.open(&o)
}

// Store returns what answers questions, for other protocols: the store, and what stands in for it.
func (b *Bridge) Store() core.Store { return b.store }

// Reload reads the policy file now. The error says what is wrong with it; then the policy before stays in force.
func (b *Bridge) Reload() error { return b.editions.reload() }

// Leave makes /readyz say that the bridge will stop, so that nobody new is sent to it. Calls are answered as before, over HTTP/1.1 each as
// the last of its connection.
func (b *Bridge) Leave() { b.leaving.Store(true) }

// Dismiss answers those that wait for throttle rules that they are not decided. It is for a bridge that stops.
func (b *Bridge) Dismiss() { b.end() }

// Close settles what waits for it, and ends following the policy file. It is called when no call is under way any more,
// before the store is closed.
func (b *Bridge) Close() error {
	b.end()
	var late error
	if !b.settling.Stop(settle.Deadline) {
		late = errors.New("not everything was settled: what was reserved stands as charged")
	}
	return errors.Join(late, b.editions.close())
}

func micros(t time.Time) core.Micros { return core.Micros(t.UnixMicro()) }
