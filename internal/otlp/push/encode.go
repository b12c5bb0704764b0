// SPDX-License-Identifier: Apache-2.0

package push

import (
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protowire"
)

// The fields of the messages of OTLP (opentelemetry/proto/metrics/v1) that a report has.
const (
	requestResource = 1 // ExportMetricsServiceRequest

	resourceAttributes = 1 // Resource, in the field 1 of ResourceMetrics
	resourceScope      = 2 // ResourceMetrics

	scopeName    = 1 // InstrumentationScope, in the field 1 of ScopeMetrics
	scopeMetrics = 2 // ScopeMetrics

	metricName, metricDescription            = 1, 2
	metricGauge, metricSum, metricHistogram  = 5, 7, 9
	dataPoints, dataTemporality, dataOnlyAdd = 1, 2, 3

	pointStart, pointTime, pointDouble, pointAttributes = 2, 3, 4, 7

	histogramCount, histogramSum, histogramBuckets, histogramBounds, histogramAttributes = 4, 5, 6, 7, 9

	// cumulative says that values count from the start.
	cumulative = 2
)

// encode encodes the metrics as a report in the OTLP format.
func encode(resource [][2]string, families []*dto.MetricFamily, began, now time.Time) []byte {
	t := times{start: uint64(began.UnixNano()), now: uint64(now.UnixNano())}
	scope := appendMessage(nil, 1, appendText(nil, scopeName, "github.com/penstock/penstock"))
	for _, family := range families {
		if metric := t.metric(family); metric != nil {
			scope = appendMessage(scope, scopeMetrics, metric)
		}
	}
	var of []byte
	for _, a := range resource {
		of = appendAttribute(of, resourceAttributes, a[0], a[1])
	}
	all := appendMessage(nil, 1, of)
	return appendMessage(nil, requestResource, appendMessage(all, resourceScope, scope))
}

// times holds the times of all points of a report.
type times struct{ start, now uint64 }

// times.metric returns a family as a Metric. The result is nil for a summary; none of our metrics
// is one.
func (t times) metric(family *dto.MetricFamily) []byte {
	kind, point := protowire.Number(metricGauge), t.number
	var data []byte
	switch family.GetType() {
	case dto.MetricType_COUNTER:
		kind = metricSum
		data = appendNumber(appendNumber(nil, dataTemporality, cumulative), dataOnlyAdd, 1)
	case dto.MetricType_HISTOGRAM:
		kind, point = metricHistogram, t.histogram
		data = appendNumber(nil, dataTemporality, cumulative)
	case dto.MetricType_GAUGE, dto.MetricType_UNTYPED:
	default:
		return nil
	}
	for _, m := range family.GetMetric() {
		data = appendMessage(data, dataPoints, point(m))
	}
	metric := appendText(appendText(nil, metricName, family.GetName()), metricDescription, family.GetHelp())
	return appendMessage(metric, kind, data)
}

// times.number returns a NumberDataPoint.
func (t times) number(m *dto.Metric) []byte {
	// a metric has one of the three
	value := m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()
	point := appendFixed(t.head(m, pointAttributes), pointDouble, math.Float64bits(value))
	return point
}

// times.histogram returns a HistogramDataPoint. Unlike in Prometheus, a bucket does not include the
// buckets below it.
func (t times) histogram(m *dto.Metric) []byte {
	h := m.GetHistogram()
	point := appendFixed(t.head(m, histogramAttributes), histogramCount, h.GetSampleCount())
	point = appendFixed(point, histogramSum, math.Float64bits(h.GetSampleSum()))
	var buckets, bounds []byte
	below := uint64(0)
	for _, b := range h.GetBucket() {
		if math.IsInf(b.GetUpperBound(), 1) {
			break
		}
		bounds = protowire.AppendFixed64(bounds, math.Float64bits(b.GetUpperBound()))
		buckets = protowire.AppendFixed64(buckets, b.GetCumulativeCount()-below)
		below = b.GetCumulativeCount()
	}
	buckets = protowire.AppendFixed64(buckets, h.GetSampleCount()-below)
	return appendMessage(appendMessage(point, histogramBuckets, buckets), histogramBounds, bounds)
}

// times.head returns the labels and the times of a point.
func (t times) head(m *dto.Metric, attributes protowire.Number) (point []byte) {
	for _, l := range m.GetLabel() {
		point = appendAttribute(point, attributes, l.GetName(), l.GetValue())
	}
	return appendFixed(appendFixed(point, pointStart, t.start), pointTime, t.now)
}

// appendAttribute appends a KeyValue whose value is a text.
func appendAttribute(to []byte, field protowire.Number, name, value string) []byte {
	return appendMessage(to, field, appendMessage(appendText(nil, 1, name), 2, appendText(nil, 1, value)))
}

func appendMessage(to []byte, field protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, field, protowire.BytesType), message)
}

func appendText(to []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(to, field, protowire.BytesType), text)
}

func appendNumber(to []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, field, protowire.VarintType), n)
}

func appendFixed(to []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(to, field, protowire.Fixed64Type), n)
}
