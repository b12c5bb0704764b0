// SPDX-License-Identifier: Apache-2.0

#ifndef PENSTOCK_STREAM_H
#define PENSTOCK_STREAM_H

#include "envoy.h"

#include <pthread.h>

// The verdicts of package front.
enum { VERDICT_CONTINUE = 0, VERDICT_RESPOND = 1, VERDICT_WAIT = 2 };

// REPLY_ROOM is the room for a reply within a stream. The fields about three limits take about 300
// bytes. A longer reply is allocated.
enum { REPLY_ROOM = 640 };

// DETAILS_ROOM is how many bytes of response.code_details are kept. Longer details end with an
// error of TLS.
enum { DETAILS_ROOM = 128 };

// COUNTS is the number of counters of package front.
enum { COUNTS = 8 };

// counters are Envoy's counters of a configuration of the filter.
typedef struct {
  size_t ids[COUNTS];
  bool defined;
} counters;

// A pace says when a worker yields to Go's scheduler.
typedef struct {
  int64_t yielded;   // when the worker last yielded, in nanoseconds
  uint32_t requests; // since then
} pace;

// A stream is one request. Envoy's worker uses it and, while the request waits, so does the
// goroutine that decides the request. The last of the two frees the stream.
typedef struct stream {
  void *envoy;
  const counters *counters;
  pace *pace;       // of the worker
  uint8_t counted;  // the counter of the decision; 0 for none
  void *scheduler;  // NULL until the request waits
  uint64_t front;   // the configuration, as Go knows it
  uint64_t waiting; // the request, as Go knows it; 0 unless it waits
  uint64_t settling; // the settlement of the response, as Go knows it; 0 for none
  bool shared;          // it waits or has waited, so that a goroutine may use it
  pthread_mutex_t lock; // of a shared stream; guards gone, uses, and every use of the scheduler by the goroutine
  bool gone;            // Envoy has destroyed the stream
  int uses;
  bool announces; // an event is under way that announces the requests of this turn
  bool traced;    // Envoy traces the request
  void *span;     // of the check, within Envoy's trace; NULL unless the check is under way
  bool answered;  // the module has made the response
  bool over;      // Envoy has made the response, or has ended the stream
  bool complete;  // the request has come to its end
  bool listens;   // Go must see the body of the response
  int64_t remaining; // the units that the fields of the reply report
  uint32_t count;    // fields in the reply
  uint32_t length;
  uint32_t room;
  char *reply; // own, or allocated
  uint32_t details_length;
  char own[REPLY_ROOM];
  char details[DETAILS_ROOM]; // why Envoy made the response, if it did: the beginning of response.code_details
} stream;

// A reply is a block of fields. A field consists of the lengths of its name and its value, the
// name, and the value. A response begins with its status, the number of its fields, and the length
// of its body. The body follows the fields.
typedef struct {
  uint32_t name, value;
} field_lengths;

typedef struct {
  uint32_t status, count, body;
  uint32_t ends; // the response is a block of headers alone, sent as it is
} response_head;

// stream_waits prepares a stream for stream_wake.
void stream_waits(stream *s);
// stream_wake makes Envoy call back the stream, if the stream still exists. It ends the goroutine's
// use.
void stream_wake(stream *s);
// stream_unwaits ends the goroutine's use without waking the stream.
void stream_unwaits(stream *s);
// stream_room makes room for a reply of that length. It returns NULL if no memory can be allocated.
char *stream_room(stream *s, uint32_t length);

// span_find notes whether Envoy traces the request of a stream.
void span_find(stream *s);
// span_begin begins the span of a check as a child of the request's span.
void span_begin(stream *s);
// span_tag sets an attribute of the span.
void span_tag(stream *s, const char *name, size_t name_length, const char *value, size_t value_length);
// span_end ends the span, if one is under way.
void span_end(stream *s);

// counters_define defines the counters of a configuration that Envoy makes.
void counters_define(counters *c, void *envoy);
// stream_count adds the stream to the counter of its decision.
void stream_count(stream *s);

bool attribute_text(stream *s, int id, text *value);
bool attribute_number(stream *s, int id, uint64_t *value);
bool attribute_bool(stream *s, int id, bool *value);
void write_log(int level, const char *at, size_t length);
bool writes_log(int level);

#endif
