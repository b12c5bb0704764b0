// SPDX-License-Identifier: Apache-2.0

// Hooks of calls that a module does not make. Envoy rejects a module that lacks one of them. One file
// of a module includes this one.

void HOOK(http_filter_http_callout_done)(void) {}
void HOOK(http_filter_http_stream_headers)(void) {}
void HOOK(http_filter_http_stream_data)(void) {}
void HOOK(http_filter_http_stream_trailers)(void) {}
void HOOK(http_filter_http_stream_complete)(void) {}
void HOOK(http_filter_http_stream_reset)(void) {}
void HOOK(http_filter_downstream_above_write_buffer_high_watermark)(void) {}
void HOOK(http_filter_downstream_below_write_buffer_low_watermark)(void) {}
void HOOK(http_filter_config_scheduled)(void) {}
void HOOK(http_filter_config_http_callout_done)(void) {}
void HOOK(http_filter_config_http_stream_headers)(void) {}
void HOOK(http_filter_config_http_stream_data)(void) {}
void HOOK(http_filter_config_http_stream_trailers)(void) {}
void HOOK(http_filter_config_http_stream_complete)(void) {}
void HOOK(http_filter_config_http_stream_reset)(void) {}
