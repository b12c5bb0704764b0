// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/enforce/settle"
	"github.com/penstock/penstock/internal/enforce/throttle"
	"github.com/penstock/penstock/internal/enforce/topk"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/listen"
	"github.com/penstock/penstock/internal/meter"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/lint"
	"github.com/penstock/penstock/internal/sources"
	"github.com/penstock/penstock/internal/status"
	"github.com/penstock/penstock/internal/store/regionstore"
)

// Bounds of concurrent work.
const (
	// CallsMaxDefault is the default of Options.CallsMax. A call takes from a millisecond up to the
	// store's deadline, and uses about 100 KB. Further calls are answered 503.
	CallsMaxDefault = 1024
	// questionsMax bounds the questions that are being decided in all calls together. Each uses 4
	// KB. Further questions are answered with StatusBusy.
	questionsMax = 1 << 15
	// WaitersMaxDefault is the default of Options.WaitersMax. Each waiting request uses 20 KB.
	// Further requests are denied.
	WaitersMaxDefault = 1 << 14
)

// Options configures a bridge. Store and one of PolicyFile, Policy and Source are required.
type Options struct {
	PolicyFile string               // a policy file, reloaded when it changes
	Policy     *policyfile.Document // a policy that does not change
	Source     live.Source          // any other source of a policy
	// ShadowPolicyFile is the file of a policy that is evaluated beside the policy in force. The
	// bridge follows this file, too. "" means none.
	ShadowPolicyFile string
	// Region is the region of the bridge, which must be one of the policy's regions. Region may be
	// "" if the policy has none.
	Region string
	// Store charges requests. The caller closes the store after the bridge.
	Store counter.Store
	// Loans lets requests wait for units of other regions. Nil means that no request waits.
	Loans *regionstore.Store
	// Corrections corrects charges after a response is known. Nil means Store.
	Corrections counter.Store
	// Nodes returns how many nodes share the store. Filters use the number when they cannot reach
	// the bridge. Nil means that filters do not get the number.
	Nodes func() int
	// Shared is true if other processes count in the same store. The policy must then have a name.
	Shared bool
	// Fronts are the fronts of the policy other than the filter. A policy that one of them does not
	// support is rejected.
	Fronts []lint.Front
	// Reachable returns an error if the store is not usable. Reachable is called for /readyz. A nil
	// Reachable means that the store is always ready.
	Reachable func(context.Context) error
	// Token is the bearer token that callers must send. "" admits every caller that can connect.
	Token string
	// AdminToken is the bearer token of operators. If it is set, [Bridge.Handler] also serves the
	// routes of operators. If it is "", only [Bridge.AdminHandler] serves them.
	AdminToken string
	// Others returns the reports of all nodes that share the store, and Follow returns their
	// events. Problems returns the problems of the store. Nil means that there are no other nodes,
	// or no problems.
	Others   func(context.Context) (*fleet.Reading, error)
	Follow   fleet.FollowFunc
	Problems func() []string
	// ShareSecret returns the secret with which all bridges of the store seal receipts. If there is
	// none yet, the proposal becomes the secret. ShareSecret is called repeatedly. If Token is set,
	// receipts are sealed with a key derived from it and ShareSecret is not called. Nil means that
	// other bridges cannot redeem this bridge's receipts.
	ShareSecret func(ctx context.Context, proposal string) (string, error)
	// Hosts are additional host names by which callers may reach the bridge over TCP without a
	// token.
	Hosts []string
	// Called is called for each admitted call before it is read, with the context of its request.
	// The argument named known is true if the caller sent the token or if none is required;
	// otherwise the call only requests the health. Nil means that calls are not reported.
	Called func(ctx context.Context, known bool)
	// Forgetful forbids filters to remember denials, except denials by leased limits.
	Forgetful bool
	// CallsMax and WaitersMax replace their defaults. If a value is 0, the default applies.
	CallsMax, WaitersMax int
	// OpenDirectory opens the directory of clients. OpenDirectory is called once, when the first
	// policy with directory: true is loaded. The bridge closes the directory. Nil means that such a
	// policy is rejected.
	OpenDirectory func() (*directory.Directory, error)
	// Changed is called with each version of the policy that takes effect, in compact form. Nil
	// means no call.
	Changed func(version string, compact []byte)
	// Metrics counts requests; other parts of the process may share it. Nil means new metrics.
	Metrics *metrics.Metrics
	// Outages logs outages of the store. Nil means that no outages are logged.
	Outages *enforce.Outages
	// Events receives the decisions that the policy reports. If Events is nil, no events are
	// reported.
	Events *events.Log
	// Tracer makes the spans of checks. Nil means no spans.
	Tracer *enforce.Tracer
	// Meter counts the usage of each client; nil if usage is not needed.
	Meter *meter.Meter
	// Registry holds the metrics that /metrics shows. Nil means a new registry.
	Registry *prometheus.Registry
	// Logger logs policies and failures, never clients. Nil discards them.
	Logger *slog.Logger
}

// front is the name of bridges among the nodes of a store.
const front = "bridge"

// Bridge answers filters. Safe for concurrent use.
type Bridge struct {
	options      Options
	enforcer     *enforce.Enforcer
	logger       *slog.Logger
	policy       *live.Policy
	candidate    *candidate // nil if no policy is tried out
	metrics      *bridgeMetrics
	verifiers    *live.Verifiers // the verifiers of the policy and the candidate
	calls        sync.Pool       // of *call
	under        atomic.Int64    // the number of calls being decided that do not wait for a throttle rule
	receiving    atomic.Int64    // calls being received
	bodies       atomic.Int64    // the number of bytes of all bodies, without the first bodyFree bytes of each
	asking       atomic.Int64    // questions being decided
	clients      *sources.Counts // the number of calls in JSON being decided, by the client's address
	sealer       *sealer
	receiptsRoam bool        // whether other bridges can open the receipts and count in the same store
	namesClients atomic.Bool // whether all bridges that can open the receipts can read a client in them
	settling     *settle.Queue
	lines        *throttle.Queues
	ending       context.Context // a context that is done when waiting calls must end
	end          context.CancelFunc
	running      sync.WaitGroup         // goroutines that end when the context ending is done
	leaving      atomic.Bool            // whether the bridge will stop soon
	quiet        atomic.Int64           // the second in which a panic was last logged
	storeProblem atomic.Pointer[string] // the store's last problem
	opening      sync.Mutex             // held while the directory is opened
	directory    atomic.Pointer[directory.Directory]
	reached      reached
	denied       *topk.Sketch // the clients denied most often
	node         *fleet.Node
	statuses     *status.Bounds
	guard        listen.Guard
}

// New returns a bridge whose policy is in force. The error describes the problems of the policy,
// with their places.
func New(o Options) (*Bridge, error) {
	switch {
	case o.Store == nil:
		return nil, errors.New("a bridge needs a store")
	case o.sources() != 1:
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
	if o.Corrections == nil {
		o.Corrections = o.Store
	}
	if o.Metrics == nil {
		o.Metrics = metrics.New()
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	b := &Bridge{options: o, logger: o.Logger, sealer: newSealer(o.Token, micros(time.Now())),
		clients: sources.New(), lines: throttle.New(throttle.Options{WaitersMax: o.WaitersMax}), denied: topk.New(topk.Options{}),
		statuses: status.NewBounds(), verifiers: live.NewVerifiers(o.Logger)}
	sharesSecret := o.ShareSecret != nil && o.Token == ""
	b.receiptsRoam = o.Shared && (o.Token != "" || sharesSecret)
	b.enforcer = enforce.New(o.Store, o.Metrics)
	b.enforcer.Log(o.Outages)
	b.enforcer.Report(o.Events)
	b.enforcer.Measure(o.Meter)
	b.enforcer.CountDenials(b.denied)
	b.enforcer.WaitForLoans(o.Loans)
	b.calls.New = func() any { return new(call) }
	b.ending, b.end = context.WithCancel(context.Background())
	var err error
	if b.metrics, err = newMetrics(b, o.Registry); err != nil {
		return nil, err
	}
	b.guard = listen.Guard{Hosts: o.Hosts, HostRemedy: "use its address or localhost, or start the bridge with --host and the name, or with a token",
		Rejected: func() { b.metrics.calls.WithLabelValues(callUnauthorized).Inc() }, Admitted: func(r *http.Request) { o.Called(r.Context(), true) },
		Logger: o.Logger}
	b.node = fleet.New(fleet.Sources{Front: front, Receipts: namedForm, Policies: func() []fleet.Policy { return operator.PoliciesOf(b.operated()) },
		Totals: b.totals, Denied: b.denied, Problems: o.Problems, Events: o.Events.Tail}, time.Now())
	b.settling = settle.New(o.Corrections, b.metrics.settled)
	b.settling.Panic = b.panicked
	if err := b.openPolicy(); err != nil {
		return nil, errors.Join(err, b.closeDirectory())
	}
	if err := b.openCandidate(); err != nil {
		return nil, errors.Join(err, b.closePolicy(), b.closeDirectory())
	}
	if sharesSecret {
		b.running.Go(func() { b.shareSecret(b.ending) })
	}
	b.nameClients()
	return b, nil
}

// Options.sources returns how many sources of a policy are given.
func (o *Options) sources() (n int) {
	for _, given := range []bool{o.PolicyFile != "", o.Policy != nil, o.Source != nil} {
		if given {
			n++
		}
	}
	return n
}

// Reload reads the files of the policy and of the shadow policy now. If a file has an error, Reload
// returns it and the previous policy stays in force.
func (b *Bridge) Reload() error { return errors.Join(b.policy.Reload(), b.candidate.reload()) }

// Leave makes /readyz report that the bridge will stop, so that no new callers are sent to it.
// Calls are answered as before. Over HTTP/1.1, each response closes its connection.
func (b *Bridge) Leave() { b.leaving.Store(true) }

// Dismiss ends the wait of all calls. Calls that wait for throttle rules are answered with
// StatusUnavailable, and calls that wait for loans are decided. Dismiss is called when the bridge
// stops.
func (b *Bridge) Dismiss() { b.end() }

// Close completes the queued settlements and stops following the policy file. Close must be called
// after the last call has been answered and before the store is closed.
func (b *Bridge) Close() error {
	b.end()
	b.running.Wait()
	var late error
	if !b.settling.Stop(settle.Deadline) {
		late = errors.New("some settlements were not completed: the reserved units stay charged")
	}
	return errors.Join(late, b.candidate.close(), b.closePolicy(), b.closeDirectory())
}

func micros(t time.Time) counter.Micros { return counter.Micros(t.UnixMicro()) }
