// SPDX-License-Identifier: Apache-2.0

#include "stream.h"

#include <string.h>

// The names of Envoy's counters, in the order of package front.
static const char *const names[COUNTS] = {NULL,
                                          "penstock.allowed",
                                          "penstock.denied",
                                          "penstock.degraded",
                                          "penstock.unavailable",
                                          "penstock.oversized",
                                          "penstock.invalid_target",
                                          "penstock.panic"};

void counters_define(counters *c, void *envoy) {
  c->defined = CALLBACK(http_filter_config_define_counter) != NULL && CALLBACK(http_filter_increment_counter) != NULL;
  for (int i = 1; i < COUNTS && c->defined; i++) {
    c->defined = CALLBACK(http_filter_config_define_counter)(envoy, (text){names[i], strlen(names[i])}, NULL, 0, &c->ids[i]) == 0;
  }
}

void stream_count(stream *s) {
  if (s->counted > 0 && s->counted < COUNTS && s->counters->defined) {
    CALLBACK(http_filter_increment_counter)(s->envoy, s->counters->ids[s->counted], NULL, 0, 1);
  }
  s->counted = 0;
}
