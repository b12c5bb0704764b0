// SPDX-License-Identifier: Apache-2.0

package penstock_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestTheClientOfRedisIsCompiledInFewPackages tests that other packages do not see the type
// redis.Client: the compiler compiles its methods again in each package that does. See
// redisstore.Client.
func TestTheClientOfRedisIsCompiledInFewPackages(t *testing.T) {
	out, err := exec.Command("go", "list", "-export", "-f", "{{.ImportPath}} {{.Export}}", "./caddy", "./cmd/penstock", "./envoy-module/...",
		"./internal/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	few := map[string]bool{module + "/internal/store/redisstore": true, module + "/internal/test/redistest": true}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		if file == "" { // it has only tests
			continue
		}
		object, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// The name of a method of an instance of weak.Pointer has the client's fields in it.
		compiled := bytes.Contains(object, []byte("struct { *github.com/redis/go-redis/v9.baseClient; github.com/redis/go-redis/v9.cmdable;"))
		if compiled != few[name] {
			t.Errorf("%s compiles the methods of redis.Client: %v, want %v", name, compiled, few[name])
		}
	}
}
