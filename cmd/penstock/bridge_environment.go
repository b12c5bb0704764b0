// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/big"
	"strconv"
	"strings"

	"github.com/penstock/penstock/internal/policyfile"
)

// The defaults of the environment.
const (
	redisAddrDefault  = "localhost:6379"
	bucketSizeDefault = "10"
	refillRateDefault = "1.0"
)

// fromEnvironment reads environment variables for the options that the flags omit. If there is no
// policy file, it returns the policy that the variables describe. An empty variable counts as
// unset.
func (f *bridgeFlags) fromEnvironment(getenv func(string) string, logger *slog.Logger) (*policyfile.Document, error) {
	if err := f.redisFrom(getenv, logger); err != nil {
		return nil, err
	}
	size, rate := getenv("BUCKET_SIZE"), getenv("REFILL_RATE")
	if f.policy != "" {
		for _, variable := range [][2]string{{"BUCKET_SIZE", size}, {"REFILL_RATE", rate}} {
			if variable[1] != "" {
				return nil, fmt.Errorf("%s is set, and --policy defines the limits: unset %[1]s, or leave --policy out", variable[0])
			}
		}
		return nil, nil
	}
	limit, err := bucket(cmp.Or(size, bucketSizeDefault), cmp.Or(rate, refillRateDefault))
	if err != nil {
		return nil, err
	}
	d, err := policyfile.Decode("environment", policyfile.YAML,
		[]byte("name: bridge\nidentify: [ip: {}]\nrules: [{name: default, per: [client], limit: "+limit+"}]\n"))
	if err == nil {
		err = d.Check()
	}
	if err != nil {
		return nil, fmt.Errorf("BUCKET_SIZE and REFILL_RATE make the limit %q: %w", limit, err)
	}
	logger.Info("there is no --policy: every client address has a token bucket", "limit", limit)
	return d, nil
}

// redisFrom reads the address of Redis from the environment, unless a flag sets it.
func (f *bridgeFlags) redisFrom(getenv func(string) string, logger *slog.Logger) error {
	flagged, mode := namesServer(&f.redis), f.redis.Mode
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

// bucket returns the exact limit of a token bucket: 0.5 tokens a second are 1/2s.
func bucket(size, rate string) (string, error) {
	tokens, err := strconv.ParseInt(size, 10, 64)
	if err != nil || tokens < 1 {
		return "", fmt.Errorf("BUCKET_SIZE is %q: write a whole number of tokens, 1 at least", size)
	}
	if strings.HasPrefix(strings.TrimPrefix(size, "+"), "0") {
		return "", fmt.Errorf("BUCKET_SIZE is %q, which begins with 0, which some parsers read as octal: write %d", size, tokens)
	}
	whole, fraction, _ := strings.Cut(rate, ".")
	for _, c := range whole + fraction {
		if c < '0' || c > '9' {
			whole = ""
		}
	}
	exact, ok := new(big.Rat).SetString(rate)
	if !ok || whole == "" || len(rate) > 20 || exact.Sign() <= 0 {
		return "", fmt.Errorf("REFILL_RATE is %q: write a decimal number of tokens a second, above 0, as 1, 0.5 or 2.25", rate)
	}
	if digits := strings.TrimLeft(whole, "0"); digits != whole && whole != "0" {
		return "", fmt.Errorf("REFILL_RATE is %q, which begins with 0, which some parsers read as octal: write %s", rate,
			cmp.Or(digits, "0")+rate[len(whole):])
	}
	return fmt.Sprintf("%s/%ss burst %d", exact.Num(), exact.Denom(), tokens), nil
}
