// SPDX-License-Identifier: Apache-2.0

package ecds

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	wasm "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// resourceName is the name of the resource in Envoy's configuration.
const resourceName = "penstock"

// Options are the parts of the filter's configuration other than the policy.
type Options struct {
	// Wasm is the path of the filter on Envoy's machine. Required.
	Wasm string
	// Filter is the filter's configuration: lines of "name: value", without a policy. Filter may be
	// empty.
	Filter string
}

// Options.check returns an error if the options are not valid.
func (o *Options) check() error {
	if o.Wasm == "" {
		return errors.New("the path of the filter is missing: say where penstock.wasm is where Envoy runs")
	}
	for line := range strings.Lines(o.Filter) {
		word, _, ok := strings.Cut(strings.TrimSpace(line), ":")
		switch {
		case strings.HasPrefix(word, "#"), word == "" && !ok:
		case !ok:
			return fmt.Errorf("the filter's configuration: %q is not a line of the form name: value", strings.TrimSpace(line))
		case strings.TrimSpace(word) == "policy":
			return errors.New("the filter's configuration has policy, which the bridge sets: leave that line out")
		}
	}
	return nil
}

// HoldsToken reports whether the configuration contains a token. Every Envoy that gets the
// configuration then gets the token.
func (o *Options) HoldsToken() bool {
	for line := range strings.Lines(o.Filter) {
		if word, _, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(word) == "token" {
			return true
		}
	}
	return false
}

// Options.version identifies the resource: the policy's version and a hash of everything else,
// which can change at a restart.
func (o *Options) version(policy string) string {
	sum := sha256.Sum256([]byte(resourceName + "\x00" + o.Wasm + "\x00" + o.Filter))
	return policy + "-" + hex.EncodeToString(sum[:4])
}

// Options.resource returns the filter's configuration with a compact policy inside.
func (o *Options) resource(policy []byte) (*anypb.Any, error) {
	lines := o.Filter
	if lines != "" && !strings.HasSuffix(lines, "\n") {
		lines += "\n"
	}
	settings, err := anypb.New(wrapperspb.String(lines + "policy: " + base64.StdEncoding.EncodeToString(policy) + "\n"))
	if err != nil {
		return nil, err
	}
	code := &core.DataSource{Specifier: &core.DataSource_Filename{Filename: o.Wasm}}
	filter, err := anypb.New(&httpwasm.Wasm{Config: &wasm.PluginConfig{
		Name: resourceName, RootId: resourceName, Configuration: settings, FailurePolicy: wasm.FailurePolicy_FAIL_RELOAD,
		Vm: &wasm.PluginConfig_VmConfig{VmConfig: &wasm.VmConfig{
			// While the identifier and the code stay the same, Envoy keeps its Wasm machine, so the
			// filter keeps its memory.
			VmId: resourceName, Runtime: "envoy.wasm.runtime.v8",
			Code: &core.AsyncDataSource{Specifier: &core.AsyncDataSource_Local{Local: code}},
		}},
	}})
	if err != nil {
		return nil, err
	}
	resource := new(anypb.Any)
	err = anypb.MarshalFrom(resource, &core.TypedExtensionConfig{Name: resourceName, TypedConfig: filter},
		proto.MarshalOptions{Deterministic: true})
	return resource, err
}
