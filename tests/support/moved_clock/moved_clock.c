/* A wall clock that a test sets, for one process and its children. LD_PRELOAD this library; MOVED_CLOCK names a file
 * with the seconds by which the clock is wrong (a long, changed in place). The monotonic clock is not changed.
 *
 * With DEAF_WAITS set, a wait for a lock ignores its timeout. A Python built for a C library older than 2.30 (conda,
 * uv, RHEL 8) behaves like that for a while after the clock was set back, because its timeouts are wall-clock times. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *wrong_by;

static long moved(void) {
    if (!wrong_by) {
        const char *name = getenv("MOVED_CLOCK");
        int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
        if (fd < 0) return 0;
        void *at = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
        close(fd);
        if (at == MAP_FAILED) return 0;
        wrong_by = at;
    }
    return *wrong_by;
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI)) at->tv_sec += moved();
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    int failed = syscall(SYS_gettimeofday, at, zone);
    if (!failed) at->tv_sec += moved();
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

static int deaf(void) {
    static int known = -1;
    if (known < 0) known = getenv("DEAF_WAITS") != NULL;
    return known;
}

/* All functions of a C library that wait until a time of the wall clock or of another clock. */
#define DEAF(name, declared, given, wait)                          \
    int name declared {                                            \
        static int(*real) declared;                                \
        if (deaf()) return wait;                                   \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);      \
        return real given;                                         \
    }

DEAF(sem_timedwait, (sem_t *restrict sem, const struct timespec *restrict until), (sem, until), sem_wait(sem))
DEAF(sem_clockwait, (sem_t *restrict sem, clockid_t id, const struct timespec *restrict until), (sem, id, until),
     sem_wait(sem))
DEAF(pthread_cond_timedwait,
     (pthread_cond_t *restrict cond, pthread_mutex_t *restrict lock, const struct timespec *restrict until),
     (cond, lock, until), pthread_cond_wait(cond, lock))
DEAF(pthread_cond_clockwait,
     (pthread_cond_t *restrict cond, pthread_mutex_t *restrict lock, clockid_t id, const struct timespec *restrict until),
     (cond, lock, id, until), pthread_cond_wait(cond, lock))
