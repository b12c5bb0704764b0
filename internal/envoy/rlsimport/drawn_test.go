// SPDX-License-Identifier: Apache-2.0

package rlsimport

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// drawn is the number of configurations drawn at random from a fixed seed. The real service's
// answers to them are recorded. These answers show that the model decides like the service. Far
// more configurations are tested with the model alone.
const drawn = 10

func drawnTree(i int) []*node { return maker{rand.New(rand.NewPCG(20, uint64(i)))}.nodes(1 + i%3) }

func drawnConfiguration(i int) string {
	return fmt.Sprintf("# Made by drawn_test.go.\ndomain: drawn%d\ndescriptors:\n%s", i, configuration(drawnTree(i), "  "))
}

// writeDrawn writes the configurations, and requests of one descriptor and one hit each, for
// recording.
func writeDrawn(t *testing.T) {
	t.Helper()
	r := &recording{path: filepath.Join(testdata, "drawn.txt"), head: []string{"# What chance made, and envoyproxy/ratelimit answered: drawn_test.go."}}
	for i := range drawn {
		name := fmt.Sprintf("drawn/%d.yaml", i)
		if err := os.WriteFile(filepath.Join(testdata, name), []byte(drawnConfiguration(i)), 0o644); err != nil {
			t.Fatal(err)
		}
		r.head = append(r.head, "configuration "+name)
		m, s := maker{rand.New(rand.NewPCG(21, uint64(i)))}, &sequence{name: name}
		few := m.few(drawnTree(i))
		for range 60 {
			var entries []string
			for _, pair := range few[m.IntN(len(few))] {
				entries = append(entries, pair[0]+"="+pair[1])
			}
			s.steps = append(s.steps, &step{text: fmt.Sprintf("drawn%d [%s]", i, strings.Join(entries, " "))})
		}
		r.sequences = append(r.sequences, s)
	}
	r.write(t)
}

// maker.few returns a few random descriptors, most of which have a limit.
func (m maker) few(tree []*node) (few [][][2]string) {
	for range 300 {
		if pairs := m.request()[0]; len(few) < 2 || len(few) < 12 && modelLookUp(tree, pairs) != nil {
			few = append(few, pairs)
		}
	}
	return few
}

// TestModelDecidesAsTheRealService checks the model that TestImportedDecidesAsTheServiceItself uses
// instead of the service.
func TestModelDecidesAsTheRealService(t *testing.T) {
	r := readRecording(t, filepath.Join(testdata, "drawn.txt"))
	if len(r.sequences) != drawn {
		t.Fatalf("%d sequences", len(r.sequences))
	}
	over, told := 0, 0
	for i, s := range r.sequences {
		text, err := os.ReadFile(filepath.Join(testdata, s.name))
		if err != nil || string(text) != drawnConfiguration(i) {
			t.Fatalf("%s is not what is made now: record it again: %v", s.name, err)
		}
		m := &model{tree: drawnTree(i), counters: map[string]int64{}, always: true}
		for _, step := range s.steps {
			var pairs [][2]string
			for _, entry := range step.request.Descriptors[0].Entries {
				pairs = append(pairs, [2]string{entry.Key, entry.Value})
			}
			refused, verdicts := m.ask(0, [][][2]string{pairs}, 1)
			if refused != (overallPart(step.there) == pb.RateLimitResponse_OVER_LIMIT.String()) {
				t.Errorf("%s: %s: the model refuses: %t; %s", step.where, step.text, refused, step.there)
			}
			if limit := verdicts[0].limit; (limit != nil) != strings.Contains(step.there, " of ") {
				t.Errorf("%s: %s: the model's limit: %v; %s", step.where, step.text, limit, step.there)
			} else if limit != nil {
				told++
			}
			if refused {
				over++
			}
		}
	}
	if over < 50 || told < 100 {
		t.Errorf("%d requests over a limit, %d with one", over, told)
	}
}
