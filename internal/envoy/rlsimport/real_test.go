// SPDX-License-Identifier: Apache-2.0

package rlsimport

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/eventually"
)

const testdata = "testdata/service"

// knownDifference is an intended difference between the imported policy and the service.
type knownDifference struct {
	word, why string
	answers   int // the number of recorded answers that differ for this reason
	decisions int // the number of these answers in which only one of the two admits
}

var knownDifferences = []knownDifference{
	{"charged", "a request that is refused charges nothing; there all of it is charged, or, by STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT, " +
		"the limits that refuse", 31, 9},
	{"once", "a counter that two descriptors of a request meet is charged once; there twice", 11, 4},
	{"left", "a refusal of more hits than are left says how many are left; there 0", 8, 0},
	{"shadow", "clients are told nothing of a limit in shadow_mode; there its limit, and what is left", 149, 0},
	{"zero", "clients are told nothing where a limit of 0 refuses, for nothing is asked of a store; there 0 of 0", 26, 0},
	{"free", "an entry without a limit, with less specific ones that have one, is one without a limit: LimitRemaining is the most there " +
		"is; there 0", 18, 0},
	{"replaced", "an unlimited entry that is replaced is told of no more; there LimitRemaining is the most there is", 2, 0},
	{"look", "hits_addend 0 of a descriptor is refused where nothing is left; there where more than the limit was used", 4, 4},
	{"negative", "is_negative_hits gives back; there it is not known, and the hits are charged", 2, 1},
	{"own", "a limit that a descriptor brings has a counter of its own; there it charges the configuration's of the same unit", 2, 1},
	{"domain", "a limit that a descriptor brings holds in every domain; there in those of the configuration", 7, 4},
	{"strictest", "of several limits of one unit that one descriptor brings, the strictest holds and is told for each; there each is charged, " +
		"and told for itself", 4, 1},
	{"several", "a limit that a descriptor brings may be for several units of time, 31 days at most; there it is for one", 5, 2},
	{"pattern", "the importer refuses patterns of keys; there they are for what key and value begin with, joined by an underscore", 5, 5},
	{"joined", "a descriptor has the keys of the configuration; there key and value are joined by an underscore, so that user=id is one of user_id", 7, 4},
	{"letter", "the first pattern counts; there one that is the value to the letter, stars included, goes before", 2, 1},
}

// TestImportedDecidesAsTheRealService replays requests that envoyproxy/ratelimit answered with a
// real Redis. The configurations are those of its repository and its README. Every answer must be
// the same, except for knownDifferences.
func TestImportedDecidesAsTheRealService(t *testing.T) {
	if *theService != "" {
		copyConfigurations(t)
		if _, err := os.Stat(filepath.Join(testdata, "drawn.txt")); err != nil {
			writeDrawn(t) // the file was removed so that the answers are recorded again
		}
	}
	paths, err := filepath.Glob(filepath.Join(testdata, "*.txt"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	seen := map[string]*knownDifference{}
	for _, known := range knownDifferences {
		seen[known.word] = &knownDifference{}
	}
	asked := 0
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			r := readRecording(t, path)
			if *theService != "" {
				r.record(t)
			}
			asked += r.replay(t, seen)
			if *theService != "" {
				r.write(t)
			}
		})
	}
	for _, known := range knownDifferences {
		got := seen[known.word]
		if got.answers != known.answers || got.decisions != known.decisions {
			t.Errorf("%s: %d answers differ and %d decisions, not %d and %d", known.word, got.answers, got.decisions,
				known.answers, known.decisions)
		}
	}
	t.Logf("%d requests", asked)
}

// recording.replay sends the recorded requests to the imported policy, and returns their number.
func (r *recording) replay(t *testing.T, seen map[string]*knownDifference) (asked int) {
	t.Helper()
	if r.refused != "" {
		if _, _, err := Import("envoy", r.files(t), nil); err == nil || err.Error() != r.refused {
			t.Errorf("%s: the importer says %v, not %s", r.path, err, r.refused)
		}
	}
	for _, s := range r.sequences {
		ours, client := r.serve(t)
		for _, step := range s.steps {
			switch step.wait {
			case "second":
				ours.now += counter.Second
				continue
			case "minute":
				ours.now += counter.Minute - ours.now%counter.Minute
				continue
			}
			asked++
			got := "refused"
			if r.refused == "" {
				got = answerText(client.ShouldRateLimit(eventually.Context(t), step.request))
			}
			want := step.there
			if step.here != "" {
				want = step.here
			}
			switch {
			case *theService != "":
				step.mark(got)
			case got != want:
				t.Errorf("%s: %s: %s\n  there %s\n  here  %s\n  not   %s", step.where, s.name, step.text, step.there, got, want)
			case step.here == step.there:
				t.Errorf("%s: %s: here it is as there", step.where, s.name)
			}
			if step.here == "" {
				continue
			}
			known := seen[step.because]
			if known == nil {
				t.Errorf("%s: %s: because %q: is none of knownDifferences", step.where, s.name, step.because)
				continue
			}
			known.answers++
			if overallPart(step.here) != overallPart(step.there) {
				known.decisions++
			}
		}
	}
	return asked
}

// step.mark writes the imported policy's answer below a new answer of the service. A person
// must then explain the difference.
func (s *step) mark(got string) {
	switch {
	case got == s.there:
		s.here, s.because = "", ""
	case got != s.here:
		s.here, s.because = got, "?"
	}
}

// recording.files reads the recording's configurations.
func (r *recording) files(t *testing.T) (files []File) {
	t.Helper()
	for _, name := range r.configurations {
		text, err := os.ReadFile(filepath.Join(testdata, name))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, File{Name: name, Data: text})
	}
	return files
}

// recording.serve serves the imported configurations by gRPC, with empty counters at the beginning
// of a minute.
func (r *recording) serve(t *testing.T) (*importedService, pb.RateLimitServiceClient) {
	t.Helper()
	if r.refused != "" {
		return nil, nil
	}
	var texts []string
	for _, f := range r.files(t) {
		texts = append(texts, string(f.Data))
	}
	s := importAll(t, texts...)
	s.now -= s.now % counter.Day
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	s.Register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, pb.NewRateLimitServiceClient(conn)
}
