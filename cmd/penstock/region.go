// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/listen"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/region/gossip"
	"github.com/penstock/penstock/internal/region/loan"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/store/regionstore"
)

const regionHelp = `Borrow units of limits from other regions, and lend them units, for rules with across: lease. For rules with
across: gossip, tell the other regions what this one has counted, and charge what they tell.

The proxies of a region tell its agent, in the Redis of the region, when a limit runs low. The agent asks those of the other
regions over TLS. Both ends show a certificate that --client-ca has signed and that names their region, by the subject alternative name
URI:penstock:region:eu. Each region of the policy but its own needs a --peer.

Nothing is kept: an agent can be killed at any time, and two of them in a region ask for more than one does. Units that are under way
when an agent or a connection ends are lost until their window ends. The Redis user of the agent must be allowed to subscribe to the
channel rl1:~loans and to publish on it and on rl1:~loaned, and that of the proxies to publish on the former and to subscribe to the
latter. For across: gossip, both must be allowed to run scripts on the keys rl1:*.`

// regionFlags are the flags of the region command, as written.
type regionFlags struct {
	name, policy, listen, admin string
	redis                       redisstore.Options
	certificates                certificates
	peers                       []string
}

func newRegion() *cobra.Command {
	f := new(regionFlags)
	cmd := &cobra.Command{Use: "region", Short: "Borrow units of limits from other regions, and lend them units", Long: regionHelp, Args: noArgs,
		Example: "  penstock region --name eu --policy policy.yaml --redis redis://localhost:6379 --listen :7443 \\\n" +
			"    --tls-cert eu.pem --tls-key eu.key --client-ca regions.pem --peer us=https://agent.us.example:7443",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
		}}
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "the `NAME` of this region, as in the policy")
	flags.StringVar(&f.policy, "policy", "", "the policy `FILE`, which is followed")
	addRedis(flags, &f.redis, "the Redis of this region: redis://, rediss:// or unix://")
	flags.StringVar(&f.listen, "listen", ":7443", "where to serve the agents of other regions: host:port")
	flags.StringVar(&f.certificates.cert, "tls-cert", "", "a PEM `FILE` with the certificate of this agent, for both directions")
	flags.StringVar(&f.certificates.key, "tls-key", "", "a PEM `FILE` with its key")
	flags.StringVar(&f.certificates.clientCA, "client-ca", "", "a PEM `FILE` with the CAs of the agents of all regions")
	flags.StringSliceVar(&f.peers, "peer", nil, "another region and its agent, as `NAME=https://host:port`; once for each region")
	flags.StringVar(&f.admin, "admin-listen", "", "where to serve metrics and penstock regions, without TLS: 127.0.0.1:port, or unix:PATH")
	return cmd
}

func (f *regionFlags) run(ctx context.Context, logger *slog.Logger) error {
	switch {
	case f.name == "":
		return errors.New("--name is missing; write the name of this region in the policy, such as --name eu")
	case f.policy == "":
		return errors.New("--policy is missing; write --policy policy.yaml")
	}
	config, err := f.tls()
	if err != nil {
		return err
	}
	followed, err := f.follow(logger)
	if err != nil {
		return err
	}
	defer followed.watcher.Close() //nolint:errcheck // it only reads
	peers, told, err := f.openPeers(followed.names, config)
	if err != nil {
		return err
	}
	defer closePeers(peers, told)
	store, err := openRedis(f.redis, "no Redis is named", logger)
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // calls that run end with the process
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	ctx, stop := untilStopped(ctx)
	defer stop()
	agent := loan.New(loan.Options{Name: f.name, Writeoffs: store, Store: store, Peers: peers, Logger: logger,
		Policy: func() loan.Policy { return *followed.current.Load() },
		Publish: func(ctx context.Context, message []byte) error {
			_, err := store.DoFor(ctx, regionstore.ChannelKey, "PUBLISH", regionstore.AnswerChannel, message)
			return err
		},
		Tell: func(ctx context.Context, message []byte) error {
			_, err := store.DoFor(ctx, regionstore.ChannelKey, "PUBLISH", regionstore.Channel, message)
			return err
		},
		Listen: func(ctx context.Context, begun func(), received func(string)) error {
			return store.Listen(ctx, regionstore.ChannelKey, regionstore.Channel, begun, received)
		}})
	agents := &regionAgents{loans: agent, gossip: gossip.New(gossip.Options{Region: f.name, Store: store, Peers: told, Logger: logger,
		Policy: func() gossip.Policy { return *followed.told.Load() }})}
	logger.Info("the agent listens", "region", f.name, "address", listener.Addr().String())
	return f.serve(ctx, agents, listener, config, logger)
}

// regionAgents are the two agents of a region that the command runs in one process.
type regionAgents struct {
	loans  *loan.Agent
	gossip *gossip.Agent
}

// regionAgents.run runs both agents until ctx is done.
func (a *regionAgents) run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { a.loans.Run(ctx) })
	running.Go(func() { a.gossip.Run(ctx) })
	running.Wait()
}

// regionAgents.handler serves other regions.
func (a *regionAgents) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(gossip.Path, a.gossip.Handler())
	mux.Handle("/", a.loans.Handler())
	return mux
}

// regionFlags.serve serves other regions and operators until ctx is done.
func (f *regionFlags) serve(ctx context.Context, agents *regionAgents, listener net.Listener, config *tls.Config, logger *slog.Logger) error {
	ended := make(chan error, 2)
	server := regionServer(agents.handler(), logger)
	server.TLSConfig = config
	go func() {
		ended <- server.ServeTLS(listen.NewLimit(listener, regionConnectionsMax, true, logger), "", "")
	}()
	operators := regionServer(agents.loans.OperatorHandler(f.name, agents.gossip), logger)
	if f.admin != "" {
		at, beyond, err := listen.Parse(f.admin)
		if err == nil && beyond {
			err = errors.New("other machines could reach it, without TLS; listen on 127.0.0.1 or a Unix socket")
		}
		if err != nil {
			return errors.Join(fmt.Errorf("--admin-listen: %w", err), server.Close())
		}
		own, err := listen.On(at, 0o660)
		if err != nil {
			return errors.Join(fmt.Errorf("--admin-listen: %w", err), server.Close())
		}
		go func() { ended <- operators.Serve(listen.NewLimit(own, adminConnectionsMax, false, logger)) }()
	}
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() { agents.run(running); close(done) }()
	var err error
	select {
	case <-ctx.Done():
	case err = <-ended:
	}
	cancel()
	<-done
	ending, end := context.WithTimeout(context.Background(), drainTime)
	defer end()
	return errors.Join(err, server.Shutdown(ending), operators.Close())
}

const (
	// regionConnectionsMax bounds the connections of agents of other regions, which need one each.
	regionConnectionsMax = 256
	// regionStreamsMax is above the number of questions that an agent asks at once.
	regionStreamsMax = 128
	// regionHeaderBytesMax bounds the header of a call, whose values are in its body.
	regionHeaderBytesMax = 16 << 10
)

// regionServer returns a server whose callers have shown a certificate, or are on this machine.
func regionServer(handler http.Handler, logger *slog.Logger) *http.Server {
	called := func(w http.ResponseWriter, r *http.Request) {
		listen.Called(r.Context(), true)
		handler.ServeHTTP(w, r)
	}
	return &http.Server{Handler: http.HandlerFunc(called), ConnContext: listen.WithConn, ReadHeaderTimeout: listen.FirstCallTime / 2,
		ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: idleTime, MaxHeaderBytes: regionHeaderBytesMax,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: regionStreamsMax}, ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug)}
}

// regionFlags.tls returns the configuration for both directions. It requires certificates of both
// ends.
func (f *regionFlags) tls() (*tls.Config, error) {
	if f.certificates.cert == "" || f.certificates.clientCA == "" {
		return nil, errors.New("the agents of all regions show certificates: give --tls-cert, --tls-key and --client-ca")
	}
	config, err := f.certificates.config()
	if err != nil {
		return nil, err
	}
	if leaf := config.Certificates[0].Leaf; !loan.SpeaksFor(leaf, f.name) {
		return nil, fmt.Errorf("--tls-cert %q does not name region %s: issue it with the subject alternative name URI:%s%[2]s", f.certificates.cert,
			f.name, loan.CertificatePrefix)
	}
	config.MinVersion, config.RootCAs, config.NextProtos = tls.VersionTLS13, config.ClientCAs, []string{"h2", "http/1.1"}
	return config, nil
}

// openPeers returns the other regions of the policy.
func (f *regionFlags) openPeers(names []string, config *tls.Config) (peers []*loan.Peer, told []*gossip.Peer, err error) {
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == f.name })
	for _, text := range f.peers {
		name, address, ok := strings.Cut(text, "=")
		at := slices.Index(missing, name)
		if !ok || at < 0 {
			return nil, nil, fmt.Errorf("--peer %q is not NAME=https://host:port of another region of the policy, which has %s", text,
				strings.Join(names, ", "))
		}
		missing = slices.Delete(missing, at, at+1)
		peer, err := loan.NewPeer(name, address, config)
		if err != nil {
			return nil, nil, fmt.Errorf("--peer: %w", err)
		}
		other, err := gossip.NewPeer(name, address, config)
		if err != nil {
			return nil, nil, fmt.Errorf("--peer: %w", err)
		}
		peers, told = append(peers, peer), append(told, other)
	}
	if len(missing) > 0 {
		return nil, nil, fmt.Errorf("the policy has the region %s, too: add --peer %s=https://host:port", missing[0], missing[0])
	}
	return peers, told, nil
}

func closePeers(peers []*loan.Peer, told []*gossip.Peer) {
	for i := range peers {
		peers[i].Close()
		told[i].Close()
	}
}

// followedRegions is what the agent knows of the policy file.
type followedRegions struct {
	current atomic.Pointer[loan.Policy]
	told    atomic.Pointer[gossip.Policy]
	watcher *policyfile.Watcher

	mu    sync.Mutex
	names []string // of the regions at the start
}

// regionFlags.follow reads the policy file, and follows it.
func (f *regionFlags) follow(logger *slog.Logger) (*followedRegions, error) {
	followed := new(followedRegions)
	read := func(d *policyfile.Document, first bool) error {
		if err := d.Check(); err != nil {
			return err
		}
		switch {
		case len(d.Regions) == 0:
			return fmt.Errorf("the policy %q has no regions, so there is nothing to lend; write regions in it", f.policy)
		case d.Name == "":
			return fmt.Errorf("the policy %q has no name, so its counters cannot be told from others; write name: shop", f.policy)
		}
		if err := d.InRegion(f.name); err != nil {
			return err
		}
		followed.mu.Lock()
		defer followed.mu.Unlock()
		if first && followed.current.Load() != nil {
			return nil // the watcher has already read the file, so d may be outdated
		}
		if names := d.RegionNames(); followed.names == nil {
			followed.names = names
		} else if !slices.Equal(names, followed.names) {
			logger.Warn("the policy has other regions than at the start of the agent: start it again with their --peer", "regions", names)
		}
		p, err := d.Policy()
		if err != nil {
			return err
		}
		followed.told.Store(toldOf(&p))
		followed.current.Store(&loan.Policy{Namespace: regionstore.KeyPrefix + d.Name + ":", Here: d.Division(), Names: d.RegionNames()})
		return nil
	}
	var err error
	followed.watcher, err = policyfile.Watch(f.policy, func(d *policyfile.Document, err error) {
		if err == nil {
			err = read(d, false)
		}
		if err != nil {
			logger.Error("the edited policy file is rejected; the previous policy stays in force", "error", err)
			return
		}
		logger.Info("the edited policy file is in force")
	})
	if err != nil {
		return nil, fmt.Errorf("--policy: %w", err)
	}
	first, err := policyfile.Load(f.policy)
	if err == nil {
		err = read(first, true)
	}
	if err != nil {
		return nil, errors.Join(err, followed.watcher.Close())
	}
	return followed, nil
}

// toldOf returns what the agent must know of a policy to tell other regions what this region
// counts.
func toldOf(p *policy.Policy) *gossip.Policy {
	interval, rules := policyfile.GossipInterval(p)
	told := &gossip.Policy{Namespace: regionstore.KeyPrefix + p.Name + ":", Rules: make(map[string]bool),
		Interval: time.Duration(interval) * time.Microsecond}
	for _, rule := range rules {
		told.Rules[rule] = true
	}
	longest := func(limits []counter.Limit) {
		for i := range limits {
			told.Keep = max(told.Keep, 2*time.Duration(limits[i].Window())*time.Microsecond)
		}
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		if !told.Rules[r.Name] {
			continue
		}
		longest(r.Limits)
		for _, set := range r.Tiers {
			longest(set.Limits)
		}
	}
	return told
}
