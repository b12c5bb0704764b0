/* SPDX-License-Identifier: Apache-2.0 */

/* Preloaded, gives a program another time of day: ahead by the seconds that the file PENSTOCK_TEST_CLOCK holds, at any time. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead;

__attribute__((constructor)) static void find(void) {
	const char *path = getenv("PENSTOCK_TEST_CLOCK");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *memory = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
	if (memory == MAP_FAILED)
		abort();
	ahead = memory;
	close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
	int failed = (int)syscall(SYS_clock_gettime, clock, at);
	if (!failed && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		at->tv_sec += *ahead;
	return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
	struct timespec now;
	int failed = clock_gettime(CLOCK_REALTIME, &now);
	(void)zone;
	at->tv_sec = now.tv_sec;
	at->tv_usec = now.tv_nsec / 1000;
	return failed;
}
