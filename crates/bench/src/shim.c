/* Preloaded into what is measured: counts the calls that make data durable, in memory that all
 * processes of a contender share, and sleeps after each if told to, as a slower disk would.
 *
 *   RINGFENCE_BENCH_COUNT  a file of at least 64 bytes; its first 64-bit word counts
 *   RINGFENCE_BENCH_SLEEP  microseconds to sleep after each fsync and fdatasync
 *
 * Writes to a file that was opened with O_DSYNC or O_SYNC count as well, but get no sleep: a sleep
 * there would hit writes that the disk answers while it still flushes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FDS 4096

static _Atomic uint64_t *counter;
static long sleep_us;
static _Atomic unsigned char synchronous[FDS];

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("RINGFENCE_BENCH_COUNT");
    const char *sleep = getenv("RINGFENCE_BENCH_SLEEP");
    if (sleep) sleep_us = atol(sleep);
    if (!path) return;
    int (*real_open)(const char *, int, ...) = next("open");
    int fd = real_open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *at = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) counter = at;
    close(fd);
}

static void count(void) {
    if (counter) atomic_fetch_add(counter, 1);
}

static int synced(int result) {
    int error = errno;
    count();
    if (sleep_us > 0) {
        struct timespec left = {sleep_us / 1000000, sleep_us % 1000000 * 1000};
        while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
    }
    errno = error;
    return result;
}

int fsync(int fd) {
    static int (*real)(int);
    if (!real) real = next("fsync");
    return synced(real(fd));
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = next("fdatasync");
    return synced(real(fd));
}

int syncfs(int fd) {
    static int (*real)(int);
    if (!real) real = next("syncfs");
    return synced(real(fd));
}

int msync(void *at, size_t length, int flags) {
    static int (*real)(void *, size_t, int);
    if (!real) real = next("msync");
    int result = real(at, length, flags);
    return flags & MS_SYNC ? synced(result) : result;
}

/* Which descriptors write through. O_SYNC contains O_DSYNC. */
static int opened(int fd, int flags) {
    if (fd >= 0 && fd < FDS) atomic_store(&synchronous[fd], (flags & O_DSYNC) != 0);
    return fd;
}

static void written(int fd) {
    if (fd >= 0 && fd < FDS && atomic_load(&synchronous[fd])) count();
}

static mode_t mode_of(int flags, va_list rest) {
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

#define OPEN(name)                                                     \
    int name(const char *path, int flags, ...) {                       \
        static int (*real)(const char *, int, ...);                    \
        if (!real) real = next(#name);                                 \
        va_list rest;                                                  \
        va_start(rest, flags);                                         \
        mode_t mode = mode_of(flags, rest);                            \
        va_end(rest);                                                  \
        return opened(real(path, flags, mode), flags);                 \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                   \
    int name(int dir, const char *path, int flags, ...) {              \
        static int (*real)(int, const char *, int, ...);               \
        if (!real) real = next(#name);                                 \
        va_list rest;                                                  \
        va_start(rest, flags);                                         \
        mode_t mode = mode_of(flags, rest);                            \
        va_end(rest);                                                  \
        return opened(real(dir, path, flags, mode), flags);            \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *bytes, size_t length) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = next("write");
    ssize_t result = real(fd, bytes, length);
    written(fd);
    return result;
}

#define PWRITE(name, off)                                              \
    ssize_t name(int fd, const void *bytes, size_t length, off at) {   \
        static ssize_t (*real)(int, const void *, size_t, off);        \
        if (!real) real = next(#name);                                 \
        ssize_t result = real(fd, bytes, length, at);                  \
        written(fd);                                                   \
        return result;                                                 \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int fd, const struct iovec *parts, int number) {
    static ssize_t (*real)(int, const struct iovec *, int);
    if (!real) real = next("writev");
    ssize_t result = real(fd, parts, number);
    written(fd);
    return result;
}
