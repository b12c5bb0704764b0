// SPDX-License-Identifier: Apache-2.0

#include "stream.h"
#include "version.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"

// The numbers of headers, fields of a reply, and pieces of a body that need no allocation.
enum { HEADERS_USUAL = 64, FIELDS_USUAL = 32, CHUNKS_USUAL = 16 };

// The events of a stream's scheduler.
enum { EVENT_WOKEN = 0, EVENT_TURN_ENDS = 1 };

// A config is one configuration of the filter, or of a route.
typedef struct {
  uint64_t front;
  counters counters; // of the filter
} config;

// Set when the process ends. Envoy's log may no longer exist then.
static atomic_bool exiting;

static void free_stream(stream *s) {
  if (s->reply != s->own) free(s->reply);
  free(s);
}

// release ends one use of a shared stream. The end of the last use frees the stream.
static void release(stream *s) {
  pthread_mutex_lock(&s->lock);
  int left = --s->uses;
  pthread_mutex_unlock(&s->lock);
  if (left > 0) return;
  if (s->scheduler != NULL) CALLBACK(http_filter_scheduler_delete)(s->scheduler);
  pthread_mutex_destroy(&s->lock);
  free_stream(s);
}

void stream_waits(stream *s) {
  if (!s->shared) {
    s->shared = true;
    s->scheduler = CALLBACK(http_filter_scheduler_new)(s->envoy);
    pthread_mutex_init(&s->lock, NULL);
  }
  pthread_mutex_lock(&s->lock);
  s->uses++;
  pthread_mutex_unlock(&s->lock);
}

// The scheduler refers to the worker's event loop, which lives as long as the worker's streams. So
// the scheduler is used under the lock with which Envoy's destroy hook marks the stream.
void stream_wake(stream *s) {
  pthread_mutex_lock(&s->lock);
  if (!s->gone && s->scheduler != NULL) CALLBACK(http_filter_scheduler_commit)(s->scheduler, EVENT_WOKEN);
  pthread_mutex_unlock(&s->lock);
  release(s);
}

void stream_unwaits(stream *s) { release(s); }

char *stream_room(stream *s, uint32_t length) {
  if (length <= s->room) return s->reply;
  char *more = malloc(length);
  if (more == NULL) return NULL;
  if (s->reply != s->own) free(s->reply);
  s->reply = more;
  s->room = length;
  return more;
}

bool attribute_text(stream *s, int id, text *value) {
  return CALLBACK(http_filter_get_attribute_string)(s->envoy, id, value);
}
bool attribute_number(stream *s, int id, uint64_t *value) {
  return CALLBACK(http_filter_get_attribute_int)(s->envoy, id, value);
}
bool attribute_bool(stream *s, int id, bool *value) {
  return CALLBACK(http_filter_get_attribute_bool)(s->envoy, id, value);
}
void write_log(int level, const char *at, size_t length) {
  if (atomic_load(&exiting)) {
    fprintf(stderr, "%.*s\n", (int)length, at);
  } else {
    CALLBACK(log)(level, (text){at, length});
  }
}
bool writes_log(int level) { return atomic_load(&exiting) || CALLBACK(log_enabled)(level); }

// next_field reads the field at a place in a reply and returns the place of the next one.
static const char *next_field(const char *at, header *h) {
  field_lengths lengths;
  memcpy(&lengths, at, sizeof lengths);
  h->name = at + sizeof lengths;
  h->name_length = lengths.name;
  h->value = h->name + lengths.name;
  h->value_length = lengths.value;
  return h->value + lengths.value;
}

// respond sends the response that the reply holds.
static void respond(stream *s) {
  response_head head;
  memcpy(&head, s->reply, sizeof head);
  header usual[FIELDS_USUAL], *headers = usual;
  if (head.count > FIELDS_USUAL && (headers = malloc(head.count * sizeof *headers)) == NULL) {
    headers = usual;
    head.count = FIELDS_USUAL;
  }
  const char *at = s->reply + sizeof head;
  for (uint32_t i = 0; i < head.count; i++) at = next_field(at, &headers[i]);
  s->answered = true;
  s->count = 0;
  // Sending calls the hooks of the response, and may destroy the stream.
  if (head.ends) {
    CALLBACK(http_send_response_headers)(s->envoy, headers, head.count, true);
  } else {
    static const char details[] = "penstock";
    CALLBACK(http_send_response)(s->envoy, head.status, headers, head.count, (text){at, head.body},
                                 (text){details, sizeof details - 1});
  }
  if (headers != usual) free(headers);
}

// gather reads all headers into room for HEADERS_USUAL of them, or into allocated memory that the
// caller frees. It returns NULL if no memory can be allocated.
static header *gather(stream *s, int kind, header *usual, size_t *count) {
  *count = CALLBACK(http_get_headers_size)(s->envoy, kind);
  header *all = usual;
  if (*count > HEADERS_USUAL && (all = malloc(*count * sizeof *all)) == NULL) return NULL;
  if (*count > 0 && !CALLBACK(http_get_headers)(s->envoy, kind, all)) *count = 0;
  return all;
}

// end waits for configurations that are being closed. Envoy has dropped them, and exits.
static void end(void) {
  atomic_store(&exiting, true);
  penstockExit();
}

// validates reports whether Envoy only validates its configuration. Older versions of Envoy do not
// tell.
static bool validates(void) { return CALLBACK(is_validation_mode) != NULL && CALLBACK(is_validation_mode)(); }

const char *HOOK(program_init)(void) {
  const char *version = interface_version();
  if (version == NULL) return NULL;
  penstockInit(CALLBACK(get_concurrency)(), validates(), gives_all_attributes());
  atexit(end);
  return version;
}

static config *open_config(text settings, bool of_route) {
  uint64_t front = penstockOpen((char *)settings.at, settings.length, of_route);
  if (front == 0) return NULL;
  config *c = malloc(sizeof *c);
  if (c == NULL) abort();
  memset(c, 0, sizeof *c);
  c->front = front;
  return c;
}

static void close_config(config *c) {
  penstockClose(c->front);
  free(c);
}

void *HOOK(http_filter_config_new)(void *envoy, text name, text settings) {
  (void)name;
  config *c = open_config(settings, false);
  if (c != NULL) counters_define(&c->counters, envoy);
  return c;
}

void HOOK(http_filter_config_destroy)(config *c) { close_config(c); }

// The number of routes' configurations. While it is 0, requests do not look for the configuration
// of their route.
static atomic_int of_routes;

void *HOOK(http_filter_per_route_config_new)(text name, text settings) {
  (void)name;
  config *c = open_config(settings, true);
  if (c != NULL) of_routes++;
  return c;
}

void HOOK(http_filter_per_route_config_destroy)(config *c) {
  of_routes--;
  close_config(c);
}

// When this worker yields to Go's scheduler.
static _Thread_local pace own_pace;

// The stream whose event announces all requests that began to wait in this turn of the worker; NULL
// for none. The worker handles the event after it has read what had arrived on its connections.
static _Thread_local stream *announcer;

static void announce(stream *s) {
  if (!s->announces) return;
  s->announces = false;
  announcer = NULL;
  penstockAnnounce(s);
}

// announce_later has the request announced at the end of the turn. A request whose configuration is
// not that of the turn's first request is announced at once.
static void announce_later(stream *s) {
  if (announcer == NULL && s->scheduler != NULL) {
    announcer = s;
    s->announces = true;
    CALLBACK(http_filter_scheduler_commit)(s->scheduler, EVENT_TURN_ENDS);
  } else if (announcer == NULL || announcer->front != s->front) {
    penstockAnnounce(s);
  }
}

void *HOOK(http_filter_new)(config *c, void *envoy) {
  stream *s = malloc(sizeof *s);
  if (s == NULL) abort();
  memset(s, 0, offsetof(stream, own));
  s->envoy = envoy;
  s->front = c->front;
  s->counters = &c->counters;
  s->pace = &own_pace;
  s->uses = 1;
  s->reply = s->own;
  s->room = REPLY_ROOM;
  return s;
}

void HOOK(http_filter_destroy)(stream *s) {
  if (s->shared) {
    pthread_mutex_lock(&s->lock);
    s->gone = true;
    pthread_mutex_unlock(&s->lock);
    announce(s);
    if (s->waiting != 0) penstockGone(s->waiting);
  }
  if (s->settling != 0) penstockEnded(s->settling);
  span_end(s);
  s->waiting = s->settling = 0;
  if (s->shared) {
    release(s);
  } else {
    free_stream(s);
  }
}

size_t HOOK(http_filter_request_headers)(void *envoy, stream *s, bool ends) {
  s->envoy = envoy;
  s->complete = ends;
  // The configuration of the route exists as long as the request.
  const config *route = of_routes > 0 ? CALLBACK(get_most_specific_route_config)(envoy) : NULL;
  if (route != NULL) s->front = route->front;
  header usual[HEADERS_USUAL];
  size_t count;
  header *all = gather(s, REQUEST_HEADERS, usual, &count);
  if (all == NULL) return HEADERS_CONTINUE;
  span_find(s);
  text source = {NULL, 0};
  if (!CALLBACK(http_filter_get_attribute_string)(envoy, SOURCE_ADDRESS, &source)) source.length = 0;
  int verdict = penstockRequest(s, all, count, (char *)source.at, source.length);
  if (all != usual) free(all);
  stream_count(s);
  switch (verdict) {
  case VERDICT_RESPOND:
    respond(s);
    return HEADERS_STOP;
  case VERDICT_WAIT:
    announce_later(s);
    // Any other status would let a request with a body pass before it is decided.
    return HEADERS_STOP_ALL_AND_WATERMARK;
  }
  return HEADERS_CONTINUE;
}

void HOOK(http_filter_scheduled)(void *envoy, stream *s, uint64_t event) {
  if (event == EVENT_TURN_ENDS) {
    announce(s);
    return;
  }
  if (s->waiting == 0) return;
  int verdict = penstockWoken(s);
  s->waiting = 0;
  s->envoy = envoy;
  stream_count(s);
  if (s->over) return;
  if (verdict == VERDICT_RESPOND) {
    respond(s);
  } else {
    CALLBACK(http_filter_continue_decoding)(envoy);
  }
}

// set_fields sets the fields of the reply in the response. If the response has none of these
// fields, they are added, which costs less: to replace a field, Envoy builds an index of all
// fields.
static void set_fields(stream *s, bool replaces) {
  bool (*set)(void *, int, text, text) = replaces ? CALLBACK(http_set_header) : CALLBACK(http_add_header);
  const char *at = s->reply;
  header field;
  for (uint32_t i = 0; i < s->count; i++) {
    at = next_field(at, &field);
    set(s->envoy, RESPONSE_HEADERS, (text){field.name, field.name_length}, (text){field.value, field.value_length});
  }
}

// is_field reports whether a header has the name of a field of the reply.
static bool is_field(const stream *s, const header *h) {
  const char *at = s->reply;
  header field;
  for (uint32_t i = 0; i < s->count; i++) {
    at = next_field(at, &field);
    if (field.name_length == h->name_length && memcmp(field.name, h->name, h->name_length) == 0) return true;
  }
  return false;
}

// has_fields reports whether a response with these headers has a field of the reply already. Envoy
// has their names in lower case, as the reply does.
static bool has_fields(const stream *s, const header *all, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (is_field(s, &all[i])) return true;
  }
  return false;
}

size_t HOOK(http_filter_response_headers)(void *envoy, stream *s, bool ends) {
  if (s->answered || (s->count == 0 && s->settling == 0)) return HEADERS_CONTINUE;
  s->envoy = envoy;
  // One call reads all headers. A call for each field would cost more.
  header usual[HEADERS_USUAL];
  size_t count;
  header *all = gather(s, RESPONSE_HEADERS, usual, &count);
  if (all == NULL) return HEADERS_CONTINUE;
  bool replaces;
  if (s->settling != 0) {
    text details = {s->details, s->details_length};
    uint64_t attempts = 0;
    if (gives_all_attributes()) {
      if (!CALLBACK(http_filter_get_attribute_string)(envoy, CODE_DETAILS, &details)) details.length = 0;
      if (!CALLBACK(http_filter_get_attribute_int)(envoy, REQUEST_ATTEMPT_COUNT, &attempts)) attempts = 0;
    }
    penstockResponse(s, all, count, ends, (char *)details.at, details.length, attempts);
    replaces = has_fields(s, all, count);
  } else if ((replaces = has_fields(s, all, count))) {
    penstockMerge(s, all, count);
  }
  if (all != usual) free(all);
  set_fields(s, replaces);
  return HEADERS_CONTINUE;
}

size_t HOOK(http_filter_request_body)(void *envoy, stream *s, bool ends) {
  (void)envoy;
  if (ends) s->complete = true;
  return 0;
}

size_t HOOK(http_filter_request_trailers)(void *envoy, stream *s) {
  (void)envoy;
  s->complete = true;
  return 0;
}

size_t HOOK(http_filter_response_body)(void *envoy, stream *s, bool ends) {
  if (!s->listens && !(ends && s->settling != 0)) return 0;
  text usual[CHUNKS_USUAL], *chunks = usual;
  size_t count = s->listens ? CALLBACK(http_get_body_chunks_size)(envoy, RECEIVED_RESPONSE_BODY) : 0;
  if (count > CHUNKS_USUAL && (chunks = malloc(count * sizeof *chunks)) == NULL) {
    s->listens = false; // the response then counts as cut
    return 0;
  }
  if (count > 0 && !CALLBACK(http_get_body_chunks)(envoy, RECEIVED_RESPONSE_BODY, chunks)) count = 0;
  penstockBody(s, chunks, count, ends);
  if (chunks != usual) free(chunks);
  return 0;
}

size_t HOOK(http_filter_response_trailers)(void *envoy, stream *s) {
  if (s->settling == 0) return 0;
  s->envoy = envoy;
  header usual[HEADERS_USUAL];
  size_t count;
  header *all = gather(s, RESPONSE_TRAILERS, usual, &count);
  if (all == NULL) return 0;
  penstockTrailers(s->settling, all, count);
  if (all != usual) free(all);
  return 0;
}

void HOOK(http_filter_stream_complete)(void *envoy, stream *s) {
  (void)envoy;
  s->over = true;
}

size_t HOOK(http_filter_local_reply)(void *envoy, stream *s, uint32_t status, text details, bool resets) {
  (void)envoy, (void)status, (void)resets;
  s->over = true;
  s->details_length = details.length < sizeof s->details ? details.length : sizeof s->details;
  if (s->details_length > 0) memcpy(s->details, details.at, s->details_length);
  return 0;
}

// the hooks of calls that this module does not make
#include "unused.h"
