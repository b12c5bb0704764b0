// SPDX-License-Identifier: Apache-2.0

// Command gubernator runs one node of gubernator. Gubernator's own command discovers other nodes
// only by services that this benchmark does not have. The arguments are the node's addresses for
// gRPC and HTTP, and the gRPC addresses of all nodes.
package main

import (
	"context"
	"io"
	"log"
	"os"
	"strings"

	"github.com/mailgun/gubernator/v2"
	"github.com/sirupsen/logrus"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: gubernator GRPC HTTP NODES")
	}
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	daemon, err := gubernator.SpawnDaemon(context.Background(), gubernator.DaemonConfig{Logger: quiet,
		GRPCListenAddress: os.Args[1], HTTPListenAddress: os.Args[2], AdvertiseAddress: os.Args[1], CacheSize: 200_000})
	if err != nil {
		log.Fatal(err)
	}
	var peers []gubernator.PeerInfo
	for node := range strings.SplitSeq(os.Args[3], ",") {
		peers = append(peers, gubernator.PeerInfo{GRPCAddress: node, IsOwner: node == os.Args[1]})
	}
	daemon.SetPeers(peers)
	select {}
}
