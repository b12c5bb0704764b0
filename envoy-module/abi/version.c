// SPDX-License-Identifier: Apache-2.0

#include <stdio.h>

#include "envoy.h"
#include "version.h"

// The functions of Envoy without which the module does not work.
static const struct {
  const char *name;
  const void *at;
} needed[] = {
#define NEEDED(name) {#name, (const void *)CALLBACK(name)}
    NEEDED(log),
    NEEDED(log_enabled),
    NEEDED(get_concurrency),
    NEEDED(http_get_headers_size),
    NEEDED(http_get_headers),
    NEEDED(http_set_header),
    NEEDED(http_add_header),
    NEEDED(http_filter_get_attribute_string),
    NEEDED(http_filter_get_attribute_int),
    NEEDED(http_filter_get_attribute_bool),
    NEEDED(http_get_body_chunks_size),
    NEEDED(http_get_body_chunks),
    NEEDED(http_send_response),
    NEEDED(http_send_response_headers),
    NEEDED(http_filter_continue_decoding),
    NEEDED(http_filter_scheduler_new),
    NEEDED(http_filter_scheduler_commit),
    NEEDED(http_filter_scheduler_delete),
    NEEDED(get_most_specific_route_config),
};

const char *interface_version(void) {
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
    if (needed[i].at != NULL) continue;
    // Envoy's log might not be available.
    fprintf(stderr,
            "penstock: this Envoy lacks %s of its interface for modules: libpenstock.so is for Envoy 1.38, 1.39 and 1.40\n",
            needed[i].name);
    return NULL;
  }
  return CALLBACK(http_get_timing_info) != NULL ? "v0.2.0" : "v0.1.0";
}

bool gives_all_attributes(void) { return CALLBACK(http_get_header_values) != NULL; }
