// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/published"
)

const (
	// lookEvery is the interval at which the origin is read without an announcement, give or take a
	// tenth. A change is found within 36 s: the interval takes at most 33 s, and 3 s remain for
	// publishing and reading the policy.
	lookEvery = 30 * time.Second
	// againFirst is the pause after a look that the origin did not answer. Each further pause is
	// twice as long, up to lookEvery.
	againFirst = 2 * time.Second
	// listenAgain is the pause before a lost subscription is made again, give or take a tenth.
	listenAgain = 200 * time.Millisecond
)

// Options configures a source. Origin, Policy and Keys are required.
type Options struct {
	Origin Origin
	Policy string
	Keys   []ed25519.PublicKey // a policy that none of them has signed is rejected
	// Folder is where the last policy that was in force is kept. If it is "", no policy is kept,
	// and a start fails if the origin does not answer.
	Folder string
	// Node is the name of this node, which determines whether the node is in a share of the nodes.
	// "" stands for the name of the host.
	Node string
	// ByClient reports whether the front enforces a candidate for a share of the clients. A front
	// that cannot do so uses the policy in force for all clients, and logs a warning.
	ByClient bool
	// With Trial, the source provides the candidate that nodes compare with the policy in force.
	// While there is no candidate, it provides a policy that is not enabled. Such a source keeps no
	// file.
	Trial  bool
	Logger *slog.Logger
	// Every is how often the origin is read without an announcement; 0 means 30 seconds.
	Every time.Duration
}

// Source reads a policy that a control plane publishes, and follows its changes. It implements
// [live.Source].
type Source struct {
	o Options

	mu         sync.Mutex
	generation int64             // the greatest that came into force, or that the file has
	said       [sha256.Size]byte // hash of the text that was last passed on or rejected
	handed     handed
	warned     int64 // the generation about which a warning was logged
	missing    bool  // the origin had no policy at the last look, which was logged
}

// handed is a text that was delivered, and whose document may come into force.
type handed struct {
	document   *policyfile.Document
	text       []byte
	generation int64
}

var (
	_ live.Source = (*Source)(nil)
	_ live.Keeper = (*Source)(nil)
)

// New returns a Source, which does not read the policy yet.
func New(o Options) (*Source, error) {
	switch {
	case o.Policy == "":
		return nil, errors.New("the policy has no name: write the name under which the control plane publishes it")
	case len(o.Keys) == 0:
		return nil, errors.New("a key is missing, and without one a forged policy could not be told from that of the control plane: write the " +
			"key that penstock control policy key prints")
	case len(o.Keys) > published.KeysMax:
		return nil, fmt.Errorf("there are %d keys, and at most %d are accepted: remove former ones", len(o.Keys), published.KeysMax)
	}
	if o.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("%w; name the node", err)
		}
		o.Node = host
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Source{o: o}, nil
}

// String implements [live.Source].
func (s *Source) String() string { return s.o.Origin.String() }

// Load implements [live.Source]. It returns the policy in the origin. If the origin does not
// answer, has no policy, or has one that is rejected or older than the one in the file, Load
// returns the policy in the file.
func (s *Source) Load() (*policyfile.Document, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, keptErr := s.read()
	if kept != nil {
		s.generation = max(s.generation, kept.generation)
	}
	found, err := s.look(context.Background())
	if err == nil {
		s.remember(found)
		return found.document, nil
	}
	if kept == nil {
		return nil, errors.Join(fmt.Errorf("policy %q: %w", s.o.Policy, err), keptErr)
	}
	if !s.o.Trial {
		s.o.Logger.Warn("the policy is the one that was kept on disk", "policy", s.o.Policy, "generation", kept.generation, "error", err)
	}
	s.remember(kept)
	return kept.document, nil
}

// Source.look reads the policy from the origin. The caller holds the lock.
func (s *Source) look(ctx context.Context) (*handed, error) {
	text, err := s.o.Origin.Read(ctx)
	if err != nil {
		return nil, err
	}
	return s.open(text)
}

// Source.open verifies a text. The result has the text even if there is an error.
func (s *Source) open(text []byte) (*handed, error) {
	h := &handed{text: text}
	m, err := published.Open(text, s.o.Policy, s.o.Keys)
	if err != nil {
		return h, err
	}
	if h.generation = m.Generation; m.Generation < s.generation {
		return h, fmt.Errorf("the published policy has the generation %d, and this node had %d already: somebody has restored an old one; "+
			"publish it anew with the control plane", m.Generation, s.generation)
	}
	h.document = s.pick(m)
	return h, nil
}

// Source.pick returns the document in a message that this node must use.
func (s *Source) pick(m *published.Message) *policyfile.Document {
	if !s.o.Trial {
		d := m.For(s.o.Node).Document
		if c := m.ForClients(); c != nil && s.o.ByClient {
			c.Document.MarkPublished(true)
			d.SetCandidate(c)
		} else if c != nil && s.warned != m.Generation {
			s.warned = m.Generation
			s.o.Logger.Warn("a candidate is published to a share of the clients, and this program cannot decide by the client: it enforces the "+
				"policy in force for all of them; the control plane withdraws the candidate", "policy", s.o.Policy, "generation", m.Generation)
		}
		d.MarkPublished(s.o.ByClient)
		return d
	}
	if c, ok := m.Trial(); ok {
		return c.Document
	}
	off := false // always the same document, so that an edit of the policy in force is not an edit of the candidate
	return &policyfile.Document{Name: s.o.Policy, Enabled: &off, Rules: []policyfile.Rule{{Name: "none", Limit: policyfile.Words{"1/1s"}}}}
}

// Source.remember records a text that is delivered.
func (s *Source) remember(h *handed) {
	s.said, s.handed, s.missing = sha256.Sum256(h.text), *h, false
}

// Keep implements [live.Keeper]: the document is in force, so the next start may use it.
func (s *Source) Keep(d *policyfile.Document) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handed.document != d || d == nil {
		return
	}
	s.generation = max(s.generation, s.handed.generation)
	if err := s.write(s.handed.text); err != nil {
		s.o.Logger.Warn("the policy in force could not be kept on disk: a start while the origin is away has the one before, or none",
			"policy", s.o.Policy, "error", err)
	}
}
