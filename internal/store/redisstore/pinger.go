// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"bytes"
	"cmp"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// pinger determines whether a server that answers a batch late works at all. A pinger has its own
// connection, and sends a PING when a reply is late.
//
// A batch can take longer than the timeout although the server works: the requests of one client
// can keep the server or the machine busy. So a timeout alone is no evidence against the server.
// Such a timeout counts for the circuit breaker only if a PING is not answered within the timeout
// either, or if the server has answered no batch for silentMax. A PING that is not answered within
// the patience of a batch opens the breaker at once, so that a server that hangs delays each call
// only once.
//
// The connection needs no credentials, because an error reply also shows that the server works.
type pinger struct {
	late    chan struct{} // a signal that a reply is late; the capacity is one
	verdict atomic.Uint32 // the verdict of the latest PING since the breaker was closed
	// when the latest answer to a PING arrived, and the latest one within the timeout, in
	// nanoseconds since the store was created
	answeredAt, inTimeAt atomic.Int64

	mu       sync.Mutex
	timeouts []uint64 // the breaker's epoch of each batch that timed out before the verdict

	conn net.Conn // nil if there is none; only the goroutine of node.pingWhenLate uses it
}

// The verdicts on a server.
const (
	pingInTime     uint32 = iota // the server answers a PING within the timeout
	pingLate                     // the server did not answer the latest PING within the timeout
	pingUnanswered               // the server did not answer the latest PING within the patience
)

const (
	// timeoutsMax bounds the batches that wait for a verdict.
	timeoutsMax = 16
	// answerTurnsMin is the least number of intervals for which [pinger.answeredLate] waits for a
	// late answer to a PING.
	answerTurnsMin = 3
	// pongLateMax is how long the answer to a PING is awaited after the verdict.
	pongLateMax = time.Second
)

var (
	ping        = []byte("PING\r\n")
	pong        = []byte("+PONG")
	errNotAPong = errors.New("redis answered PING with neither PONG nor an error")
	errNoPong   = errors.New("redis did not answer the first PING of a connection")
)

// lateReply is called when a reply has taken half of the timeout.
func (p *pinger) lateReply() {
	select {
	case p.late <- struct{}{}:
	default: // a PING will be sent anyway
	}
}

// pingWhenLate sends a PING whenever a reply is late. If the server does not answer, pingWhenLate
// repeats the PING until the breaker opens.
func (n *node) pingWhenLate() {
	p := &n.pinger
	defer p.close()
	_ = p.connect(n)
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-p.late:
		}
		for n.breaker.State() == BreakerClosed && !n.answersPing() {
			select {
			case <-n.ctx.Done():
				return
			case <-time.After(n.store.settings.timeout / readTurns):
			}
		}
	}
}

// answersPing sends a PING, judges the server by it, and reports whether the server answered within
// the timeout.
func (n *node) answersPing() bool {
	p, timeout := &n.pinger, n.store.settings.timeout
	for range 2 { // the server may have closed an idle connection
		epoch, asked := n.breaker.epoch.Load(), n.store.clock()
		switch err := p.connect(n); {
		case errors.Is(err, errNoPong):
			n.noteNoAnswer(epoch, asked)
			n.conclude(pingUnanswered)
			return false
		case err != nil:
			continue
		}
		if asked = n.store.clock(); p.ask(timeout) != nil {
			p.close()
			continue
		}
		answered, err := p.answered(n, timeout)
		if answered {
			n.conclude(pingInTime)
			return true
		}
		if err != nil {
			p.close()
			continue
		}
		n.conclude(pingLate)
		if answered, err = p.answeredLate(n, asked); !answered && err == nil {
			n.noteNoAnswer(epoch, asked)
			answered, _ = p.answered(n, pongLateMax)
		}
		if answered {
			n.conclude(pingLate)
			return false
		}
		break
	}
	p.close()
	n.conclude(pingUnanswered)
	return false
}

// settings.pongPatience returns how long a late answer to a PING is awaited. The wait ends shortly
// before the patience of the late batch is over, so that the breaker opens before the next batch is
// sent.
func (s *settings) pongPatience() time.Duration { return max(s.patience-2*s.timeout, 2*s.timeout) }

// answeredLate waits for a late answer to a PING, for pongPatience. Like a [readDeadline],
// answeredLate divides the time into intervals. The wait lasts for at least answerTurnsMin of them,
// because this process can be late.
func (p *pinger) answeredLate(n *node, asked time.Duration) (answered bool, err error) {
	settings := &n.store.settings
	until := asked + settings.pongPatience()
	turn := max((until-n.store.clock())/readTurns, readTurnMin)
	for i := 0; !answered && err == nil && (i < answerTurnsMin || n.store.clock() < until); i++ {
		answered, err = p.answered(n, turn)
	}
	return answered, err
}

// noteNoAnswer opens the breaker because a PING was not answered, unless a reply to a batch has
// arrived since, or this process was late.
func (n *node) noteNoAnswer(epoch uint64, asked time.Duration) {
	if n.repliedAt.Load() > int64(asked) || n.store.settings.processLate(n.store.clock()-asked) {
		return
	}
	n.conclude(pingUnanswered)
	n.breaker.trip(epoch)
}

// node.conclude records a verdict. If the server did not answer in time, the timeouts that waited
// for the verdict are reported to the breaker as failures.
func (n *node) conclude(verdict uint32) {
	p := &n.pinger
	p.mu.Lock()
	before := p.verdict.Swap(verdict)
	timeouts := p.timeouts
	p.timeouts = nil
	p.mu.Unlock()
	if verdict != pingInTime {
		for _, epoch := range timeouts {
			n.breaker.report(epoch, true)
		}
		return
	}
	p.inTimeAt.Store(p.answeredAt.Load())
	n.firstTimeout.Store(0)
	if before != pingInTime {
		n.breaker.report(n.breaker.epoch.Load(), false)
	}
}

// noteUnclear handles a batch that timed out. It reports the timeout to the breaker, at once or
// after the next verdict.
func (n *node) noteUnclear(epoch uint64) {
	p := &n.pinger
	p.mu.Lock()
	waits := p.verdict.Load() == pingInTime && len(p.timeouts) < timeoutsMax
	if waits {
		p.timeouts = append(p.timeouts, epoch)
	}
	p.mu.Unlock()
	p.lateReply()
	if !waits {
		n.breaker.report(epoch, true)
	}
}

// pinger.restart forgets the verdict and the timeouts from before a change of the breaker, and
// causes the connection to be set up again.
func (p *pinger) restart() {
	p.mu.Lock()
	p.verdict.Store(pingInTime)
	p.timeouts = nil
	p.mu.Unlock()
	p.lateReply()
}

// worksSince reports whether the server has worked since an instant of the store's clock: it has
// answered a batch that was sent after that instant, or has answered a PING in time.
func (n *node) worksSince(sent time.Duration) bool {
	return n.lastAnswered.Load() > int64(sent) || n.pinger.inTimeAt.Load() > int64(sent)
}

// answersSince is like worksSince, for a server that may answer a PING later than the timeout.
func (n *node) answersSince(sent time.Duration) bool {
	return n.worksSince(sent) || n.pinger.answeredAt.Load() > int64(sent)
}

// pinger.connect connects unless there is a connection. The error is errNoPong if the server
// accepted the connection and answered nothing.
func (p *pinger) connect(n *node) error {
	if p.conn != nil {
		return nil
	}
	p.conn = n.dialer.lazy()
	// The first PING has more time than later ones, because it sets up the connection.
	err := p.ask(connectTimeMin)
	if err == nil {
		if answered, wrong := p.answered(n, n.store.settings.pongPatience()); !answered {
			err = cmp.Or(wrong, errNoPong)
		}
	}
	if err != nil {
		p.close()
	}
	return err
}

// pinger.ask sends a PING.
func (p *pinger) ask(within time.Duration) error {
	err := p.conn.SetWriteDeadline(time.Now().Add(within))
	if err == nil {
		_, err = p.conn.Write(ping)
	}
	return err
}

// pinger.answered waits for the answer to a PING. The error is the one that broke the connection.
func (p *pinger) answered(n *node, within time.Duration) (bool, error) {
	if err := p.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		return false, err
	}
	var text [512]byte
	for {
		length, err := p.conn.Read(text[:])
		switch {
		case bytes.IndexByte(text[:length], '\n') >= 0:
			if text[0] != '-' && !bytes.HasPrefix(text[:length], pong) { // neither PONG nor an error reply
				return false, errNotAPong
			}
			p.answeredAt.Store(int64(n.store.clock()))
			return true, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, nil
		case err != nil:
			return false, err
		}
	}
}

// pinger.close closes the connection.
func (p *pinger) close() {
	if p.conn != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
}
