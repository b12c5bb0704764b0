// SPDX-License-Identifier: Apache-2.0

package rlsimport

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// recording contains the answers of the real envoyproxy/ratelimit. People write the requests in
// this text format:
//
//	configuration examples/config.yaml  of testdata/service; several if the service reads several
//	setting NAME=VALUE                  of the service's environment
//	refused PROBLEM                     the importer's error; then each answer is "refused"
//	== NAME                             a sequence: it begins with empty counters, in one second
//	wait second                         or minute: the rest is sent in the next one
//	DOMAIN [KEY=VALUE KEY=VALUE] [KEY=VALUE :hits 2] hits 3
//	  there OVER_LIMIT: OK 3 of 4/minute, OVER_LIMIT 0 of 2/hour, OK
//	  here  …                           the imported policy's answer, if it differs
//	  because WORD                      why it differs: one of knownDifferences
//
// A descriptor may have :hits N, :negative, and :limit N/UNIT or N/SEVERALUNIT, its own limit. The
// domain "-" is the empty one. Answers are recorded without the end of the window, the headers and
// the names of limits.
type recording struct {
	path           string
	head           []string // comments, configurations and settings as written
	configurations []string
	settings       []string
	refused        string // "": the configurations are imported
	sequences      []*sequence
}

type sequence struct {
	name  string
	steps []*step
}

// step is one request of a sequence, or a wait between requests.
type step struct {
	where   string
	text    string
	wait    string // a unit, or ""
	request *pb.RateLimitRequest
	there   string
	here    string // "" if the same
	because string
}

func readRecording(t *testing.T, path string) *recording {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := &recording{path: path}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if err := r.line(line, fmt.Sprintf("%s:%d", path, i+1)); err != nil {
			t.Fatalf("%s:%d: %v", path, i+1, err)
		}
	}
	return r
}

// recording.line parses one line of the recording.
func (r *recording) line(line, where string) error {
	word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	rest = strings.TrimSpace(rest)
	if len(r.sequences) == 0 && word != "==" {
		r.head = append(r.head, line)
		switch word {
		case "configuration":
			r.configurations = append(r.configurations, rest)
		case "setting":
			r.settings = append(r.settings, rest)
		case "refused":
			r.refused = rest
		}
		return nil
	}
	if word == "==" {
		r.sequences = append(r.sequences, &sequence{name: rest})
		return nil
	}
	s := r.sequences[len(r.sequences)-1]
	if answer := strings.HasPrefix(line, "  "); answer && len(s.steps) > 0 {
		last := s.steps[len(s.steps)-1]
		field := map[string]*string{"there": &last.there, "here": &last.here, "because": &last.because}[word]
		if field == nil {
			return fmt.Errorf("%q is no answer", line)
		}
		*field = rest
		return nil
	}
	switch word {
	case "":
		return nil
	case "wait":
		s.steps = append(s.steps, &step{text: line, wait: rest})
		return nil
	}
	request, err := parseRequest(line)
	s.steps = append(s.steps, &step{where: where, text: line, request: request})
	return err
}

func parseRequest(line string) (*pb.RateLimitRequest, error) {
	domain, rest, _ := strings.Cut(line, " ")
	request := &pb.RateLimitRequest{Domain: strings.TrimPrefix(domain, "-")}
	for {
		before, inside, found := strings.Cut(rest, "[")
		if !found {
			break
		}
		inside, after, closed := strings.Cut(inside, "]")
		if strings.TrimSpace(before) != "" || !closed {
			return nil, fmt.Errorf("%q: a descriptor is [KEY=VALUE …]", line)
		}
		d, err := parseDescriptor(strings.Fields(inside))
		if err != nil {
			return nil, err
		}
		request.Descriptors = append(request.Descriptors, d)
		rest = after
	}
	if rest = strings.TrimSpace(rest); rest != "" {
		number, ok := strings.CutPrefix(rest, "hits ")
		hits, err := strconv.ParseUint(number, 10, 32)
		if !ok || err != nil {
			return nil, fmt.Errorf("%q: what follows the descriptors is hits N", line)
		}
		request.HitsAddend = uint32(hits)
	}
	return request, nil
}

func parseDescriptor(words []string) (*ratelimit.RateLimitDescriptor, error) {
	d := &ratelimit.RateLimitDescriptor{}
	for i := 0; i < len(words); i++ {
		key, value, entry := strings.Cut(words[i], "=")
		switch {
		case entry:
			d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: key, Value: value})
			continue
		case key == ":negative":
			d.IsNegativeHits = true
			continue
		case i+1 == len(words):
			return nil, fmt.Errorf("%q: nothing follows it", key)
		}
		i++
		number, unit, _ := strings.Cut(words[i], "/")
		several, _ := strconv.ParseUint(unit[:len(unit)-len(strings.TrimLeft(unit, "0123456789"))], 10, 32)
		unit = strings.TrimLeft(unit, "0123456789")
		n, err := strconv.ParseUint(number, 10, 32)
		switch span, known := envoytype.RateLimitUnit_value[strings.ToUpper(unit)]; {
		case err != nil:
			return nil, err
		case key == ":hits":
			d.HitsAddend = wrapperspb.UInt64(n)
		case key == ":limit" && known:
			d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(n), Unit: envoytype.RateLimitUnit(span)}
			if several > 0 {
				d.Limit.UnitMultiplier = wrapperspb.UInt32(uint32(several))
			}
		default:
			return nil, fmt.Errorf("%q %q: is unknown", key, words[i])
		}
	}
	return d, nil
}

// answerText writes an answer in the format of recordings.
func answerText(response *pb.RateLimitResponse, err error) string {
	if err != nil {
		return "error"
	}
	var list []string
	for _, s := range response.Statuses {
		text := s.Code.String()
		switch l := s.CurrentLimit; {
		case l != nil:
			several := ""
			if n := l.UnitMultiplier.GetValue(); n > 1 {
				several = strconv.FormatUint(uint64(n), 10)
			}
			text += fmt.Sprintf(" %d of %d/%s%s", s.LimitRemaining, l.RequestsPerUnit, several, strings.ToLower(l.Unit.String()))
		case s.LimitRemaining == math.MaxUint32:
			text += " unlimited"
		case s.LimitRemaining > 0:
			text += fmt.Sprintf(" %d", s.LimitRemaining)
		}
		list = append(list, text)
	}
	return response.OverallCode.String() + ": " + strings.Join(list, ", ")
}

// overallPart returns the part of an answer that decides whether Envoy admits the request.
func overallPart(answer string) string {
	code, _, _ := strings.Cut(answer, ":")
	return code
}

// recording.write writes the recording back to its file.
func (r *recording) write(t *testing.T) {
	t.Helper()
	b := strings.Builder{}
	b.WriteString(strings.TrimSpace(strings.Join(r.head, "\n")) + "\n")
	for _, s := range r.sequences {
		fmt.Fprintf(&b, "\n== %s\n", s.name)
		for _, step := range s.steps {
			b.WriteString(step.text + "\n")
			if step.wait == "" {
				fmt.Fprintf(&b, "  there %s\n", step.there)
			}
			if step.here != "" {
				fmt.Fprintf(&b, "  here  %s\n  because %s\n", step.here, step.because)
			}
		}
	}
	if err := os.WriteFile(r.path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
