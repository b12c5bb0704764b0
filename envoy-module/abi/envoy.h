// SPDX-License-Identifier: Apache-2.0

// The part of Envoy's interface for native modules that this module uses, of the versions 0.1.0
// (Envoy 1.38 and 1.39) and 0.2.0 (Envoy 1.40). The names are prescribed by Envoy. The functions are
// weak, so that the module can report which of them an Envoy lacks.
#ifndef PENSTOCK_ENVOY_H
#define PENSTOCK_ENVOY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Text of Envoy or of the module. It is valid only during the call.
typedef struct {
  const char *at;
  size_t length;
} text;

typedef struct {
  const char *name;
  size_t name_length;
  const char *value;
  size_t value_length;
} header;

enum { REQUEST_HEADERS = 0, RESPONSE_HEADERS = 2, RESPONSE_TRAILERS = 3 };
enum { RECEIVED_RESPONSE_BODY = 2 };
enum { HEADERS_CONTINUE = 0, HEADERS_STOP = 1, HEADERS_STOP_ALL_AND_WATERMARK = 4 };
enum { CODE_DETAILS = 16, SOURCE_ADDRESS = 24, REQUEST_ATTEMPT_COUNT = 53 };

#define HOOK(name) envoy_dynamic_module_on_##name
#define CALLBACK(name) envoy_dynamic_module_callback_##name
#define WEAK __attribute__((weak))

WEAK void CALLBACK(log)(int level, text message);
WEAK bool CALLBACK(log_enabled)(int level);
WEAK uint32_t CALLBACK(get_concurrency)(void);
WEAK bool CALLBACK(is_validation_mode)(void);
WEAK size_t CALLBACK(http_get_headers_size)(void *filter, int kind);
WEAK bool CALLBACK(http_get_headers)(void *filter, int kind, header *into);
WEAK bool CALLBACK(http_set_header)(void *filter, int kind, text name, text value);
WEAK bool CALLBACK(http_add_header)(void *filter, int kind, text name, text value);
WEAK bool CALLBACK(http_filter_get_attribute_string)(void *filter, int id, text *value);
WEAK bool CALLBACK(http_filter_get_attribute_int)(void *filter, int id, uint64_t *value);
WEAK bool CALLBACK(http_filter_get_attribute_bool)(void *filter, int id, bool *value);
WEAK size_t CALLBACK(http_get_body_chunks_size)(void *filter, int kind);
WEAK bool CALLBACK(http_get_body_chunks)(void *filter, int kind, text *into);
WEAK void CALLBACK(http_send_response)(void *filter, uint32_t status, header *headers, size_t count, text body, text details);
WEAK void CALLBACK(http_send_response_headers)(void *filter, header *headers, size_t count, bool ends);
WEAK void CALLBACK(http_filter_continue_decoding)(void *filter);
WEAK int CALLBACK(http_filter_config_define_counter)(void *config, text name, text *labels, size_t count, size_t *id);
WEAK int CALLBACK(http_filter_increment_counter)(void *filter, size_t id, text *labels, size_t count, uint64_t by);
WEAK void *CALLBACK(http_filter_scheduler_new)(void *filter);
WEAK void CALLBACK(http_filter_scheduler_commit)(void *scheduler, uint64_t event);
WEAK void CALLBACK(http_filter_scheduler_delete)(void *scheduler);
WEAK void *CALLBACK(get_most_specific_route_config)(void *filter);
// Without these four there are no spans.
WEAK void *CALLBACK(http_get_active_span)(void *filter);
WEAK void *CALLBACK(http_span_spawn_child)(void *filter, void *span, text name);
WEAK void CALLBACK(http_span_set_tag)(void *span, text name, text value);
WEAK void CALLBACK(http_child_span_finish)(void *span);
// Not called: version 0.2.0 of the interface has it, and 0.1.0 does not.
WEAK bool CALLBACK(http_get_timing_info)(void *, void *);
// Not called: Envoy 1.39 has it, and 1.38 does not.
WEAK bool CALLBACK(http_get_header_values)(void);

#endif
