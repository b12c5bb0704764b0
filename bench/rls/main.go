// SPDX-License-Identifier: Apache-2.0

// Command rls serves Penstock's rate limit service for the benchmark, by itself or behind Go's own HTTP server.
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policy"
	"github.com/penstock/penstock/internal/redisstore"
	"github.com/penstock/penstock/internal/rls"
)

func main() {
	listen := flag.String("listen", "", "host:port")
	redis := flag.String("redis", "", "the address of a Redis")
	file := flag.String("policy", "", "a policy file")
	shared := flag.Bool("shared", false, "share the port with HTTP: gRPC goes through net/http")
	flag.Parse()
	if err := serve(*listen, *redis, *file, *shared); err != nil {
		fmt.Fprintln(os.Stderr, "rls:", err)
		os.Exit(1)
	}
}

func serve(listen, redis, file string, shared bool) error {
	document, err := policy.Load(file)
	if err != nil {
		return err
	}
	rules, err := document.Compile()
	if err != nil {
		return err
	}
	store, err := redisstore.New(redisstore.Options{URL: "redis://" + redis, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer store.Close()
	server := grpc.NewServer()
	rls.New(rls.Options{Store: store, Ruleset: func(string) *core.Ruleset { return rules }}).Register(server)
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	if !shared {
		return server.Serve(l)
	}
	h := &http.Server{Handler: server, Protocols: new(http.Protocols)}
	h.Protocols.SetUnencryptedHTTP2(true)
	return h.Serve(l)
}
