// SPDX-License-Identifier: Apache-2.0

package main

import "log/slog"

// redisFrom says where Redis is, unless a flag does.
func (f *bridgeFlags) redisFrom(getenv func(string) string, logger *slog.Logger) error {
	flagged := inRedis(&f.redis)
	said, err := redisVariables(&f.redis, getenv)
	if err == nil && said && flagged {
		logger.Info("--redis or --redis-addrs is given, so REDIS_MODE, REDIS_ADDR and REDIS_ADDRS are not looked at")
	}
	return err
}
