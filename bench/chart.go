// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// chart is a line chart of how figures grow. Its SVG is readable on light and dark backgrounds. The
// steps along x are equidistant, because each step doubles x or multiplies it by ten.
type chart struct {
	title, across, up string
	steps             []string
	series            []series
}

type series struct {
	name   string
	values []float64 // one value for each step; fewer if the remaining steps were not measured
}

// The size of the chart, and of its plot.
const (
	chartWidth, chartHeight                = 720, 360
	frameLeft, frameTop, frameWidth, frame = 70, 50, 470, 240
)

// seriesColours are colours that differ clearly on light and dark backgrounds, also for people with
// colour blindness.
var seriesColours = []string{"#0b84d8", "#e07b00", "#2e9e5b", "#b7539b"}

const chartStyle = `<style>text{font:13px system-ui,sans-serif;fill:#6e7781}.t{font-weight:600;font-size:15px}.g{stroke:#8b949e;stroke-opacity:.35}
@media(prefers-color-scheme:dark){text{fill:#c9d1d9}}</style>`

// chart.draw returns the chart as an SVG.
func (c *chart) draw() string {
	var out strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	say(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img"><title>%s</title>`, chartWidth, chartHeight, escaped(c.title))
	say("%s", chartStyle)
	say(`<text class="t" x="%d" y="24">%s</text>`, frameLeft, escaped(c.title))
	say(`<text x="%d" y="42">%s</text>`, frameLeft, escaped(c.up))
	most := 0.0
	for _, s := range c.series {
		for _, v := range s.values {
			most = math.Max(most, v)
		}
	}
	step := roundStep(most)
	lines := math.Ceil(most / step)
	height := func(v float64) float64 { return frameTop + frame - v/(lines*step)*frame }
	for i := 0.0; i <= lines; i++ {
		y := height(i * step)
		say(`<line class="g" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`,
			frameLeft, y, frameLeft+frameWidth, y, frameLeft-8, y+4, tick(i*step))
	}
	along := func(i int) float64 { return frameLeft + float64(i)*frameWidth/float64(max(1, len(c.steps)-1)) }
	for i, name := range c.steps {
		say(`<text x="%.1f" y="%d" text-anchor="middle">%s</text>`, along(i), frameTop+frame+20, escaped(name))
	}
	say(`<text x="%d" y="%d" text-anchor="middle">%s</text>`, frameLeft+frameWidth/2, frameTop+frame+44, escaped(c.across))
	for n, s := range c.series {
		colour := seriesColours[n%len(seriesColours)]
		var points []string
		for i, v := range s.values {
			points = append(points, fmt.Sprintf("%.1f,%.1f", along(i), height(v)))
			say(`<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>`, along(i), height(v), colour)
		}
		say(`<polyline points="%s" fill="none" stroke="%s" stroke-width="2.5"/>`, strings.Join(points, " "), colour)
		y := frameTop + 14 + 24*n
		say(`<rect x="%d" y="%d" width="14" height="14" rx="3" fill="%s"/><text x="%d" y="%d">%s</text>`,
			frameLeft+frameWidth+16, y-11, colour, frameLeft+frameWidth+36, y+1, escaped(s.name))
	}
	say("</svg>")
	return out.String()
}

// roundStep returns a distance between grid lines that divides an axis into four to eight parts.
func roundStep(most float64) float64 {
	if most <= 0 {
		return 1
	}
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for _, part := range []float64{0.2, 0.5, 1} {
		if most/(step*part) <= 8 {
			return step * part
		}
	}
	return step * 2
}

func tick(v float64) string {
	if v >= 1000 || v == math.Trunc(v) {
		return thousands(v)
	}
	return fmt.Sprintf("%.2g", v)
}

func escaped(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)
}

// chart.write writes the chart into the image folder and a link to it into the section.
func (c *chart) write(o options, s *section) error {
	if err := os.MkdirAll(o.images, 0o755); err != nil {
		return err
	}
	file := filepath.Join(o.images, s.name+".svg")
	if err := os.WriteFile(file, []byte(c.draw()), 0o644); err != nil {
		return err
	}
	s.say("\n![%s](../images/%s.svg)\n", c.title, s.name)
	return nil
}

// table writes the chart's figures as a table.
func (c *chart) table(s *section, format string) {
	head := []string{c.across}
	for _, one := range c.series {
		head = append(head, one.name)
	}
	s.table(head...)
	for i, step := range c.steps {
		cells := []string{step}
		for _, one := range c.series {
			if i < len(one.values) {
				cells = append(cells, fmt.Sprintf(format, one.values[i]))
			} else {
				cells = append(cells, "")
			}
		}
		s.row(cells...)
	}
}

// series.times returns the last value divided by the first.
func (s *series) times() float64 { return s.values[len(s.values)-1] / s.values[0] }

// shape describes the growth of the values in a word or two.
func (s *series) shape() string {
	switch t := s.times(); {
	case t < 0.8:
		return "the line falls"
	case t < 1.5:
		return "the line is flat"
	}
	return "the line rises"
}
