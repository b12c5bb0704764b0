// SPDX-License-Identifier: Apache-2.0

package front

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"

	"github.com/penstock/penstock/internal/otlp/push"
	"github.com/penstock/penstock/internal/policyfile"
)

// serviceDefault is the name of the module in the metrics that it sends.
const serviceDefault = "penstock-module"

// Collector names a collector of OpenTelemetry. The metrics of the process are sent to it by OTLP
// over HTTP.
type Collector struct {
	// The URL of the collector, such as `http://localhost:4318`. Required.
	Endpoint string `json:"endpoint,omitempty"`

	// Header fields of each report, such as `authorization`. A value may contain {env.NAME}.
	Headers map[string]string `json:"headers,omitempty"`

	// The time between two reports. Default: `1m`.
	Interval string `json:"interval,omitempty"`

	// The name of the service in the metrics. Default: `penstock-module`.
	Service string `json:"service,omitempty"`
}

// Collector.check returns an error if the settings are not valid.
func (c *Collector) check() error {
	o, err := c.options()
	if err == nil {
		err = o.Check()
	}
	if err != nil {
		return fmt.Errorf("otlp: %w", err)
	}
	return nil
}

func (c *Collector) options() (o push.Options, err error) {
	o = push.Options{Endpoint: c.Endpoint, Headers: maps.Clone(c.Headers)}
	if o.Interval, err = policyfile.Span(c.Interval); err != nil {
		err = fmt.Errorf("interval %q: %w", c.Interval, err)
	}
	for name, value := range o.Headers {
		filled, problem := fillIn(value, nil)
		if problem != nil {
			err = errors.Join(err, fmt.Errorf("headers: %s: %w", name, problem))
		}
		o.Headers[name] = filled
	}
	o.Resource = [][2]string{{"service.name", cmp.Or(c.Service, serviceDefault)}, {"process.pid", strconv.Itoa(os.Getpid())}}
	if host, err := os.Hostname(); err == nil {
		o.Resource = append(o.Resource, [2]string{"host.name", host})
	}
	return o, err
}

// sender sends the metrics of the process to a collector, for one or several configurations.
type sender struct{ *push.Sender }

func (s sender) close() error { return s.Close() }

// Process.send sends metrics to a collector until end() is called. If several configurations have
// the same collector, the metrics are sent to it only once.
func (p *Process) send(c *Collector) (end func() error, err error) {
	if c == nil {
		return nil, nil
	}
	o, err := c.options()
	if err != nil {
		return nil, fmt.Errorf("otlp: %w", err)
	}
	key := fmt.Sprint(o.Endpoint, o.Headers, o.Interval, o.Resource)
	o.Gatherer, o.Panicked, o.Logger = p.registry, p.countPanic, p.logger
	p.sending.Lock()
	defer p.sending.Unlock()
	_, err = p.senders.use(key, func() (sender, error) {
		s, err := push.Open(o)
		return sender{s}, err
	})
	if err != nil {
		return nil, fmt.Errorf("otlp: %w", err)
	}
	return func() error { return p.senders.end(&p.sending, key) }, nil
}
