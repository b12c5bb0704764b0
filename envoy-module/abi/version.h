// SPDX-License-Identifier: Apache-2.0

#ifndef PENSTOCK_VERSION_H
#define PENSTOCK_VERSION_H

#include <stdbool.h>

// interface_version returns the version of Envoy's interface for modules. It returns NULL, after it
// has written what is missing, if the module cannot work in this Envoy.
const char *interface_version(void);

// gives_all_attributes reports whether Envoy gives connection.requested_server_name,
// response.code_details and upstream.request_attempt_count, as it does from version 1.39 on.
bool gives_all_attributes(void);

#endif
