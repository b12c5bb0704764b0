// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

func main() {}

func init() { proxywasm.SetVMContext(new(vm)) }

// vm runs in one worker, with the plugins of all configurations that have the same vm_id.
type vm struct {
	types.DefaultVMContext
	plugins []*plugin // plugins that have started
}

// NewPluginContext implements [types.VMContext].
func (v *vm) NewPluginContext(id uint32) types.PluginContext { return &plugin{id: id, vm: v} }
