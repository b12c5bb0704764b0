// SPDX-License-Identifier: Apache-2.0

#include <stdlib.h>
#include <string.h>

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

// The mode says what the module does. READS reads and sets what every limiter must read and set.
// CALLS makes every call to Envoy that Penstock's module makes, in the same order.
typedef enum { NOTHING, READS, CALLS } mode;

// A config is a configuration of the filter, with a counter of Envoy.
typedef struct {
  mode mode;
  size_t counter;
} config;

// A stream is one request. In the mode CALLS, it has as much memory as a stream of Penstock's
// module.
typedef struct {
  const config *config;
  char room[];
} stream;

enum { ROOM_OF_CALLS = 800 };

static bool equals(text a, const char *word) {
  text b = of(word);
  return a.length == b.length && memcmp(a.at, b.at, b.length) == 0;
}

// The configuration is "reads" or "calls", or anything else for a module that does nothing.
void *HOOK(http_filter_config_new)(void *envoy, text name, text settings) {
  (void)name;
  config *c = malloc(sizeof *c);
  c->mode = equals(settings, "reads") ? READS : equals(settings, "calls") ? CALLS : NOTHING;
  CALLBACK(http_filter_config_define_counter)(envoy, of("baseline.allowed"), NULL, 0, &c->counter);
  return c;
}
void HOOK(http_filter_config_destroy)(void *config) { free(config); }
void *HOOK(http_filter_per_route_config_new)(text name, text settings) {
  (void)name, (void)settings;
  return NULL;
}
void HOOK(http_filter_per_route_config_destroy)(void *config) { (void)config; }
void *HOOK(http_filter_new)(config *c, void *envoy) {
  (void)envoy;
  stream *s = malloc(sizeof *s + (c->mode == CALLS ? ROOM_OF_CALLS : 0));
  s->config = c;
  return s;
}
void HOOK(http_filter_destroy)(stream *s) { free(s); }

// gather reads all headers, and returns their number; 0 if there are more than HEADERS_MOST.
static size_t gather(void *envoy, int kind, header *all) {
  size_t count = CALLBACK(http_get_headers_size)(envoy, kind);
  return count <= HEADERS_MOST && CALLBACK(http_get_headers)(envoy, kind, all) ? count : 0;
}

size_t HOOK(http_filter_request_headers)(void *envoy, stream *s, bool ends) {
  (void)ends;
  if (s->config->mode == NOTHING) {
    benchNothing();
    return HEADERS_CONTINUE;
  }
  header all[HEADERS_MOST];
  size_t count = gather(envoy, REQUEST_HEADERS, all);
  if (s->config->mode == CALLS) CALLBACK(http_get_active_span)(envoy);
  text source = {NULL, 0};
  CALLBACK(http_filter_get_attribute_string)(envoy, SOURCE_ADDRESS, &source);
  benchReads(all, count, (char *)source.at, source.length);
  if (s->config->mode == CALLS) CALLBACK(http_filter_increment_counter)(envoy, s->config->counter, NULL, 0, 1);
  return HEADERS_CONTINUE;
}

size_t HOOK(http_filter_response_headers)(void *envoy, stream *s, bool ends) {
  (void)ends;
  if (s->config->mode == NOTHING) return HEADERS_CONTINUE;
  bool (*set)(void *, int, text, text) = CALLBACK(http_set_header);
  if (s->config->mode == CALLS) {
    header all[HEADERS_MOST];
    gather(envoy, RESPONSE_HEADERS, all);
    set = CALLBACK(http_add_header);
  }
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) set(envoy, RESPONSE_HEADERS, of(fields[i][0]), of(fields[i][1]));
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
