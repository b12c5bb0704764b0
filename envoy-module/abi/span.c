// SPDX-License-Identifier: Apache-2.0

#include "stream.h"

// Envoy makes and sends the spans. All calls are made by the worker of the stream.

static bool spans_exist(void) {
  return CALLBACK(http_get_active_span) != NULL && CALLBACK(http_span_spawn_child) != NULL &&
         CALLBACK(http_span_set_tag) != NULL && CALLBACK(http_child_span_finish) != NULL;
}

void span_find(stream *s) { s->traced = spans_exist() && CALLBACK(http_get_active_span)(s->envoy) != NULL; }

void span_begin(stream *s) {
  static const char name[] = "penstock.check";
  void *parent = CALLBACK(http_get_active_span)(s->envoy);
  if (parent != NULL) s->span = CALLBACK(http_span_spawn_child)(s->envoy, parent, (text){name, sizeof name - 1});
}

void span_tag(stream *s, const char *name, size_t name_length, const char *value, size_t value_length) {
  if (s->span != NULL) CALLBACK(http_span_set_tag)(s->span, (text){name, name_length}, (text){value, value_length});
}

void span_end(stream *s) {
  if (s->span != NULL) CALLBACK(http_child_span_finish)(s->span);
  s->span = NULL;
}
