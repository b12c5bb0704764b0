// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"

	"github.com/penstock/penstock/internal/redisstore"
)

// redisFrom says where Redis is, unless a flag does.
func (f *bridgeFlags) redisFrom(getenv func(string) string, logger *slog.Logger) error {
	flagged, mode := inRedis(&f.redis), f.redis.Mode
	said, err := redisVariables(&f.redis, getenv)
	variable := getenv("REDIS_MODE")
	if variable == "standalone" {
		variable = redisstore.ModeSingle
	}
	switch {
	case err != nil || !said:
	case !flagged && mode != "" && variable != "" && mode != variable:
		logger.Info("--redis-mode is given, so REDIS_MODE is not looked at", "mode", mode, "REDIS_MODE", getenv("REDIS_MODE"))
	case flagged:
		logger.Info("--redis or --redis-addrs is given, so REDIS_MODE, REDIS_ADDR and REDIS_ADDRS are not looked at")
	}
	return err
}
