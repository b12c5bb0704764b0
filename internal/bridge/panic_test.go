// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// explosive is a verifier that panics at every credential.
type explosive struct{}

func (explosive) Verify(string) (*core.Identity, core.CredentialState) { panic("provoked") }

// TestAPanicIsOneQuestions: whoever finds a request that panics would otherwise take the limits from all that ride with it.
func TestAPanicIsOneQuestions(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys.toml")
	if err := os.WriteFile(keys, []byte("keys = []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	h := open(t, "name: shop\nidentify: [{ api_key: { keys_file: "+keys+" } }, { ip: {} }]\nrules: [{ name: api, limit: 2/1h fixed_window }]\n",
		func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	e := *h.b.editions.inForce()
	var err error
	if e.ruleset, err = e.document.CompileWith([]core.Verifier{explosive{}, nil}); err != nil {
		t.Fatal(err)
	}
	h.b.editions.known.Store(&[]*edition{&e})
	bad := h.question("/", "192.0.2.1")
	i := slices.Index(e.reads.Headers, "X-Api-Key")
	bad.Ask.Headers[i] = wire.Value{Text: "key", Given: true}
	good := h.question("/", "192.0.2.1")
	for range 3 {
		h.ask(bad)
	}
	answers := h.ask(good, bad, good, good)
	for i, want := range []wire.Status{wire.StatusOK, wire.StatusInvalid, wire.StatusOK, wire.StatusOK} {
		if got := answers[i].Status; got != want {
			t.Errorf("answer %d: status %d, want %d", i, got, want)
		}
	}
	if answers[2].Results[0].Refused || !answers[3].Results[0].Refused {
		t.Errorf("not decided by the limit: %+v", answers)
	}
	if n := strings.Count(log.String(), "provoked"); n == 0 || n > 2 {
		t.Errorf("logged %d times: %s", n, log.String())
	}
}
