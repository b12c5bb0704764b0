// SPDX-License-Identifier: Apache-2.0

#include <stdlib.h>

#include "../../envoy-module/abi/envoy.h"

#include "_cgo_export.h"

enum { HEADERS_MOST = 64 };

// fields are what Penstock sets in a response by default, with values of the usual length.
static const char *const fields[][2] = {
    {"x-ratelimit-limit", "1000000000"},
    {"x-ratelimit-remaining", "999999999"},
    {"x-ratelimit-reset", "1795420980"},
    {"ratelimit", "\"one\";r=999999999;t=3600"},
    {"ratelimit-policy", "\"one\";q=1000000000;w=3600"},
};

static text of(const char *s) {
  size_t n = 0;
  while (s[n] != 0) n++;
  return (text){s, n};
}

const char *HOOK(program_init)(void) {
  benchInit(CALLBACK(get_concurrency)());
  return "v0.2.0";
}

// The configuration is the word reads, or anything else for a module that does nothing.
void *HOOK(http_filter_config_new)(void *envoy, text name, text settings) {
  (void)envoy, (void)name;
  bool *reads = malloc(sizeof *reads);
  *reads = settings.length == 5;
  return reads;
}
void HOOK(http_filter_config_destroy)(void *config) { free(config); }
void *HOOK(http_filter_per_route_config_new)(text name, text settings) {
  (void)name, (void)settings;
  return NULL;
}
void HOOK(http_filter_per_route_config_destroy)(void *config) { (void)config; }
void *HOOK(http_filter_new)(void *config, void *envoy) {
  (void)envoy;
  return config;
}
void HOOK(http_filter_destroy)(void *config) { (void)config; }

size_t HOOK(http_filter_request_headers)(void *envoy, bool *reads, bool ends) {
  (void)ends;
  if (!*reads) {
    benchNothing();
    return HEADERS_CONTINUE;
  }
  header all[HEADERS_MOST];
  size_t count = CALLBACK(http_get_headers_size)(envoy, REQUEST_HEADERS);
  if (count > HEADERS_MOST || !CALLBACK(http_get_headers)(envoy, REQUEST_HEADERS, all)) count = 0;
  text source = {NULL, 0};
  CALLBACK(http_filter_get_attribute_string)(envoy, SOURCE_ADDRESS, &source);
  benchReads(all, count, (char *)source.at, source.length);
  return HEADERS_CONTINUE;
}

size_t HOOK(http_filter_response_headers)(void *envoy, bool *reads, bool ends) {
  (void)ends;
  if (!*reads) return HEADERS_CONTINUE;
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    CALLBACK(http_set_header)(envoy, RESPONSE_HEADERS, of(fields[i][0]), of(fields[i][1]));
  return HEADERS_CONTINUE;
}

size_t HOOK(http_filter_request_body)(void) { return 0; }
size_t HOOK(http_filter_request_trailers)(void) { return 0; }
size_t HOOK(http_filter_response_body)(void) { return 0; }
size_t HOOK(http_filter_response_trailers)(void) { return 0; }
size_t HOOK(http_filter_local_reply)(void) { return 0; }
void HOOK(http_filter_stream_complete)(void) {}
void HOOK(http_filter_scheduled)(void) {}

// the hooks of calls that this module does not make
#include "../../envoy-module/abi/unused.h"
