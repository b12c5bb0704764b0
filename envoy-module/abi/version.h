// SPDX-License-Identifier: Apache-2.0

#ifndef PENSTOCK_VERSION_H
#define PENSTOCK_VERSION_H

// interface_version returns the version of Envoy's interface for modules. It returns NULL, after it
// has written what is missing, if the module cannot work in this Envoy.
const char *interface_version(void);

#endif
