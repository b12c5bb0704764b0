// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

func main() {}

func init() { proxywasm.SetVMContext(new(vm)) }

type vm struct{ types.DefaultVMContext }

// NewPluginContext implements [types.VMContext].
func (*vm) NewPluginContext(id uint32) types.PluginContext { return &plugin{id: id} }
