// SPDX-License-Identifier: Apache-2.0

package redistest

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"
)

func (s *Server) info(section string) string {
	s.t.Helper()
	text, err := s.client.Info(context.Background(), section).Result()
	if err != nil {
		s.t.Fatalf("info %s: %v", section, err)
	}
	return text
}

// Memory returns used_memory in bytes.
func (s *Server) Memory() int64 {
	s.t.Helper()
	return parseWhole(s.t, field(s.info("memory"), "used_memory"))
}

// ServerTime returns the time that the server has spent on executing a command, according to its
// commandstats.
func (s *Server) ServerTime(command string) time.Duration {
	s.t.Helper()
	return time.Duration(statistic(s.t, s.info("commandstats"), "cmdstat_"+command, "usec")) * time.Microsecond
}

// field returns the text after "NAME:" in an INFO reply, or "".
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// statistic returns one of the numbers in a line like "cmdstat_get:calls=1,usec=2". It returns 0 if
// there is no such line, which means that the command was never executed.
func statistic(t testing.TB, info, line, name string) int64 {
	t.Helper()
	text := field(info, line)
	if text == "" {
		return 0
	}
	for pair := range strings.SplitSeq(text, ",") {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return parseWhole(t, value)
		}
	}
	t.Fatalf("%s has no %s: %q", line, name, text)
	return 0
}

func parseWhole(t testing.TB, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("info: %v", err)
	}
	return n
}

// CPU returns the processor time that the server's main thread has used.
func (s *Server) CPU() time.Duration {
	s.t.Helper()
	info, seconds := s.info("cpu"), 0.0
	for _, name := range []string{"used_cpu_user_main_thread", "used_cpu_sys_main_thread"} {
		n, err := strconv.ParseFloat(field(info, name), 64)
		if err != nil {
			s.t.Fatalf("info: %v", err)
		}
		seconds += n
	}
	return time.Duration(seconds * float64(time.Second))
}
