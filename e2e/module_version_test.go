// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// loader is the source of a program that loads a module as Envoy does, but without Envoy's
// functions.
const loader = `#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **arguments) {
  void *module = count == 2 ? dlopen(arguments[1], RTLD_LAZY | RTLD_LOCAL) : NULL;
  if (module == NULL) return fprintf(stderr, "%s\n", dlerror()), 2;
  const char *(*begin)(void) = (const char *(*)(void))dlsym(module, "envoy_dynamic_module_on_program_init");
  if (begin == NULL) return fprintf(stderr, "%s\n", dlerror()), 2;
  const char *version = begin();
  puts(version == NULL ? "rejected" : version);
  return 0;
}
`

// TestModuleNamesAnUnsuitableEnvoy tests that the module rejects an Envoy whose interface lacks a
// function. The message names the function and the versions of Envoy that have it.
func TestModuleNamesAnUnsuitableEnvoy(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	source, program := filepath.Join(folder, "loader.c"), filepath.Join(folder, "loader")
	if err := os.WriteFile(source, []byte(loader), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-o", program, source, "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	library, err := filepath.Abs(module(t))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(program, library).CombinedOutput()
	const want = "penstock: this Envoy lacks log of its interface for modules: libpenstock.so is for Envoy 1.38, 1.39 and 1.40\n"
	if err != nil || !strings.Contains(string(out), want) || !strings.HasSuffix(string(out), "rejected\n") {
		t.Errorf("%v: %s, want %s", err, out, want)
	}
}

// TestModuleMatchesTheInterface tests that Envoy does not warn that the module is for another
// version of the interface.
func TestModuleMatchesTheInterface(t *testing.T) {
	t.Parallel()
	e, sites := startModule(t, module(t), nil, threeADay)
	if a := sites[0].get(t, "/"); a.header.Get("RateLimit") == "" {
		t.Errorf("status %d, %v", a.status, a.header)
	}
	if log := e.log.String(); strings.Contains(log, "ABI version") {
		t.Errorf("Envoy warns:\n%s", log)
	}
}
