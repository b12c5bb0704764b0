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

	"github.com/penstock/penstock/internal/store/redisadmin"
	"github.com/penstock/penstock/internal/store/redisstore"
)

const redisHelp = `Inspect, back up and restore the Redis that holds the counters.

--redis names one server, any node of a cluster, or any sentinel: the mode is detected, and the others
are reached the same way. The words of penstock bridge say it as well, --redis-mode and --redis-addrs, which are asked in turn;
of a ring all are named. --redis-env takes REDIS_MODE, REDIS_ADDR, REDIS_ADDRS and so on from the environment.`

func newRedis() *cobra.Command {
	cmd := &cobra.Command{Use: "redis", Short: "Inspect, back up and restore the Redis that holds the counters", Long: redisHelp, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(newSetupCluster(), newRedisHealth(), newRedisDoctor(), newRedisInspect(), newRedisBackup(), newRedisRestore())
	return cmd
}

func newSetupCluster() *cobra.Command {
	dir, port := "", 0
	cmd := &cobra.Command{
		Use:   "setup-cluster",
		Short: "Start a Redis cluster for experiments: three masters and their replicas, on this machine",
		Long: "Start a Redis cluster for experiments: three masters with a replica each, on this machine, on six ports from\n" +
			"--port on and their buses 10000 above. Servers that run already are left alone; stopped ones are started again.\n" +
			"Only the cluster's configuration is kept on disk. Needs redis-server.",
		Example: "  penstock redis setup-cluster --dir /tmp/cluster",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			trial, err := redisadmin.StartTrial(cmd.Context(), dir, port)
			if err != nil {
				return err
			}
			return printTrial(cmd.OutOrStdout(), trial)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "penstock-cluster", "the `FOLDER` for its files; it is made if it is missing")
	cmd.Flags().IntVar(&port, "port", redisadmin.TrialPort, "the first of six ports")
	return cmd
}

func printTrial(out io.Writer, trial *redisadmin.Trial) error {
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

// redisFlags select the servers to inspect.
type redisFlags struct {
	storeFlags
	timeout time.Duration
}

func (f *redisFlags) addFlags(cmd *cobra.Command) {
	f.storeFlags.register(cmd.Flags(), "a server, a node of a cluster or a sentinel")
	cmd.Flags().Lookup("redis-mode").Usage = "the mode the servers should have: single, sentinel or cluster; a ring cannot be detected (detected)"
	cmd.Flags().StringVar(&f.Master, "master", "", "the same as --redis-master")
}

func (f *redisFlags) options() (o redisadmin.Options, err error) {
	if !f.given() {
		return o, errors.New("--redis is missing; write --redis redis://host:6379, or --redis-env")
	}
	o.Timeout = f.timeout
	o.Redis, err = f.storeFlags.options()
	if o.Master = o.Redis.Master; o.Redis.Mode == "" {
		o.Redis.Master = "" // without sentinels the name of their master is irrelevant
	}
	return o, err
}

// runWithDeployment returns a command's Run function, which connects to the servers and calls
// do(...). The result ok of do(...) is true if it found no problem.
func (f *redisFlags) runWithDeployment(do func(context.Context, *cobra.Command, *redisadmin.Deployment) (ok bool, err error)) func(*cobra.Command, []string) error {
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
		Short:   "Print the health of the servers: state, slots, memory, replication lag",
		Long:    "Print the health of the servers: state, slots, memory, replication lag. The exit status is 1 if something is wrong.",
		Example: "  penstock redis health --redis redis://localhost:6379",
		Args:    noArgs,
		RunE: f.runWithDeployment(func(_ context.Context, cmd *cobra.Command, servers *redisadmin.Deployment) (bool, error) {
			return servers.Health().Print(cmd.OutOrStdout())
		}),
	}
	f.addFlags(cmd)
	return cmd
}

func newRedisDoctor() *cobra.Command {
	f := new(redisFlags)
	cmd := &cobra.Command{
		Use:   "doctor --redis URL",
		Short: "Find problems that would make limits fail, and print the commands that fix them",
		Long: "Find problems that would make limits fail, as the limiter's user: eviction, memory, persistence, version, rights of the\n" +
			"user, clocks, the time of the script. Each finding comes with the commands that fix it. The script is tried\n" +
			"on a counter of its own, which is deleted. The exit status is 1 if something is wrong.",
		Example: "  penstock redis doctor --redis 'redis://limiter:{env.REDIS_PASSWORD}@redis.internal:6379'",
		Args:    noArgs,
		RunE: f.runWithDeployment(func(ctx context.Context, cmd *cobra.Command, servers *redisadmin.Deployment) (bool, error) {
			return redisadmin.PrintFindings(cmd.OutOrStdout(), servers.Doctor(ctx))
		}),
	}
	f.addFlags(cmd)
	cmd.Flags().DurationVar(&f.timeout, "redis-timeout", redisstore.TimeoutDefault, "the timeout of the limiter's store, which the script is measured against")
	return cmd
}
