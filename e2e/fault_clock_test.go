// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"math"
	"time"

	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
)

// clockToxic changes the instant at which scripts in Redis decide, because the clock of a single
// process cannot be set. A call passes this instant to the script, as the beginning of its argument
// plan. The instant 0 stands for Redis' own clock.
type clockToxic struct {
	AheadSeconds int64 `json:"ahead_seconds"`
}

func init() { toxics.Register("clock", new(clockToxic)) }

// unpinned is how pin finds a plan with the instant 0: the line end before the plan, and the eight
// zero bytes with which the plan begins.
var unpinned = append([]byte("\r\n"), make([]byte, 8)...)

// Pipe implements [toxics.Toxic]. Each call must arrive in one piece, as it does on this machine.
func (c *clockToxic) Pipe(stub *toxics.ToxicStub) {
	for {
		select {
		case <-stub.Interrupt:
			return
		case chunk := <-stub.Input:
			if chunk == nil {
				stub.Close()
				return
			}
			c.pin(chunk)
			stub.Output <- chunk
		}
	}
}

// clockToxic.pin writes the changed instant into each plan of the chunk.
func (c *clockToxic) pin(chunk *stream.StreamChunk) {
	bits := math.Float64bits(float64(time.Now().Add(time.Duration(c.AheadSeconds) * time.Second).UnixMicro()))
	var instant []byte
	for shift := 0; shift < 64; shift += 8 { // little endian
		instant = append(instant, byte(bits>>shift))
	}
	for rest := chunk.Data; ; {
		i := bytes.Index(rest, unpinned)
		if i < 0 {
			return
		}
		copy(rest[i+2:], instant)
		rest = rest[i+len(unpinned):]
	}
}
