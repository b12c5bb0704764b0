// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

func main() {}

func init() { proxywasm.SetVMContext(new(vm)) }

// vm is what a worker runs: the plugins of all configurations with the same vm_id.
type vm struct {
	types.DefaultVMContext
	plugins []*plugin // those that have started
}

// NewPluginContext implements [types.VMContext].
func (v *vm) NewPluginContext(id uint32) types.PluginContext { return &plugin{id: id, vm: v} }
