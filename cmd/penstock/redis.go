// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/redisadmin"
	"github.com/penstock/penstock/internal/redisstore"
)

const redisHelp = `Look after the Redis that counters are in.

--redis names one server, any node of a cluster, or any sentinel: how servers stand together is found out, and the others
are reached the same way. The words of penstock bridge say it as well, --redis-mode and --redis-addrs, which are asked in turn;
of a ring all are named. --redis-env takes REDIS_MODE, REDIS_ADDR, REDIS_ADDRS and so on from the environment.`

func newRedis() *cobra.Command {
	cmd := &cobra.Command{Use: "redis", Short: "Look after the Redis that counters are in", Long: redisHelp, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(newSetupCluster(), newRedisHealth(), newRedisDoctor(), newRedisInspect())
	return cmd
}

func newSetupCluster() *cobra.Command {
	dir, port := "", 0
	cmd := &cobra.Command{
		Use:   "setup-cluster",
		Short: "Start a Redis cluster to try things out with: three masters and their replicas, on this machine",
		Long: "Start a Redis cluster to try things out with: three masters with a replica each, on this machine, on six ports from\n" +
			"--port on and their buses 10000 above. What runs already is left alone, and what of it was stopped is started again.\n" +
			"Nothing is kept on disk but who is who. Needs redis-server.",
		Example: "  penstock redis setup-cluster --dir /tmp/cluster",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			trial, err := redisadmin.StartTrial(cmd.Context(), dir, port)
			if err != nil {
				return err
			}
			return tellTrial(cmd.OutOrStdout(), trial)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "penstock-cluster", "the `FOLDER` for its files, which is made if it is not there")
	cmd.Flags().IntVar(&port, "port", redisadmin.TrialPort, "the first of six ports")
	return cmd
}

func tellTrial(out io.Writer, trial *redisadmin.Trial) error {
	addrs, started := trial.Addrs(), fmt.Sprintf("%d of them were started now", trial.Started)
	switch trial.Started {
	case 0:
		started = "it ran already"
	case len(addrs):
		started = "it was started now"
	}
	_, err := fmt.Fprintf(out, `a Redis cluster is at %s to %s: %s
look at it   penstock redis health --redis redis://%s
use it       store redis {
                     mode cluster
                     addrs %s
             }
stop it      %s
its files    %s
`, addrs[0], addrs[len(addrs)-1], started, addrs[0], strings.Join(addrs[:3], " "), trial.Stop(), trial.Dir)
	return err
}

// redisFlags say which servers to look at.
type redisFlags struct {
	storeFlags
	timeout time.Duration
}

func (f *redisFlags) add(cmd *cobra.Command) {
	f.storeFlags.add(cmd.Flags(), "a server, a node of a cluster or a sentinel")
	cmd.Flags().Lookup("redis-mode").Usage = "how the servers should stand together, single, sentinel or cluster; ring is not found out (what is found)"
	cmd.Flags().StringVar(&f.Master, "master", "", "the same as --redis-master")
}

func (f *redisFlags) options() (o redisadmin.Options, err error) {
	if !f.given() {
		return o, errors.New("--redis is missing; write --redis redis://host:6379, or --redis-env")
	}
	o.Timeout = f.timeout
	o.Redis, err = f.storeFlags.options()
	if o.Master = o.Redis.Master; o.Redis.Mode == "" {
		o.Redis.Master = "" // it need not be said that there are sentinels
	}
	return o, err
}

// looking makes what a command runs of what it does with the servers. What it does reports whether all is in order.
func (f *redisFlags) looking(do func(context.Context, *cobra.Command, *redisadmin.Deployment) (ok bool, err error)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		options, err := f.options()
		if err != nil {
			return err
		}
		servers, err := redisadmin.Connect(cmd.Context(), options)
		if err != nil {
			return err
		}
		defer servers.Close() //nolint:errcheck // nothing was written
		ok, err := do(cmd.Context(), cmd, servers)
		if err == nil && !ok {
			err = errSaid
		}
		return err
	}
}

func newRedisHealth() *cobra.Command {
	f := new(redisFlags)
	cmd := &cobra.Command{
		Use:     "health --redis URL",
		Short:   "Print how the servers are: state, slots, memory, how far replicas are behind",
		Long:    "Print how the servers are: state, slots, memory, how far replicas are behind. The exit status is 1 if something is wrong.",
		Example: "  penstock redis health --redis redis://localhost:6379",
		Args:    noArgs,
		RunE: f.looking(func(_ context.Context, cmd *cobra.Command, servers *redisadmin.Deployment) (bool, error) {
			return servers.Health().Print(cmd.OutOrStdout())
		}),
	}
	f.add(cmd)
	return cmd
}

func newRedisDoctor() *cobra.Command {
	f := new(redisFlags)
	cmd := &cobra.Command{
		Use:   "doctor --redis URL",
		Short: "Look for what would make limits fail, and say which commands mend it",
		Long: "Look for what would make limits fail, as the user that the limiter is: eviction, memory, persistence, version, what the\n" +
			"user may do, clocks, how long the script takes. Each finding comes with the commands that mend it. The script is tried\n" +
			"on a counter of its own, which is deleted. The exit status is 1 if something is wrong.",
		Example: "  penstock redis doctor --redis 'redis://limiter:{env.REDIS_PASSWORD}@redis.internal:6379'",
		Args:    noArgs,
		RunE: f.looking(func(ctx context.Context, cmd *cobra.Command, servers *redisadmin.Deployment) (bool, error) {
			return redisadmin.PrintFindings(cmd.OutOrStdout(), servers.Doctor(ctx))
		}),
	}
	f.add(cmd)
	cmd.Flags().DurationVar(&f.timeout, "redis-timeout", redisstore.TimeoutDefault, "the timeout of the limiter's store, which the script is measured against")
	return cmd
}
