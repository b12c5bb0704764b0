// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
)

// redisFrom reads the address of Redis from the environment, unless a flag sets it.
func (f *bridgeFlags) redisFrom(getenv func(string) string, logger *slog.Logger) error {
	flagged, mode := inRedis(&f.redis), f.redis.Mode
	said, err := redisVariables(&f.redis, getenv)
	variable := modeVariable(getenv)
	switch {
	case err != nil || !said:
	case !flagged && mode != "" && variable != "" && mode != variable:
		logger.Info("--redis-mode is given, so REDIS_MODE is ignored", "mode", mode, "REDIS_MODE", getenv("REDIS_MODE"))
	case flagged:
		logger.Info("--redis or --redis-addrs is given, so REDIS_MODE, REDIS_ADDR and REDIS_ADDRS are ignored")
	}
	return err
}
