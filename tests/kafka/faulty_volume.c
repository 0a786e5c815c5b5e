/* A volume that fails, for one program: load it with LD_PRELOAD.
 *
 * Calls that write below $FAULTY_FOLDER are counted. From the call number $FAULTY_AFTER on, and for
 * $FAULTY_FOR calls (0: for good), they fail with $FAULTY_ERRNO; or, if that is 0, each takes
 * $FAULTY_SLOW_US longer, and the wall clock is $FAULTY_STEP_S seconds off. From the beginning,
 * whole-file locks (flock) there fail with $FAULTY_FLOCK, and POSIX locks (fcntl) with
 * $FAULTY_FCNTL. At its end the program appends the count to the file $FAULTY_COUNT. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static atomic_long calls;
static const char *folder;
static long after, how_many, error, slow_us, step_s, no_flock, no_fcntl;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? atol(text) : otherwise;
}

__attribute__((constructor)) static void begin(void) {
    folder = getenv("FAULTY_FOLDER");
    after = number("FAULTY_AFTER", 1L << 60);
    how_many = number("FAULTY_FOR", 0);
    error = number("FAULTY_ERRNO", 0);
    slow_us = number("FAULTY_SLOW_US", 0);
    step_s = number("FAULTY_STEP_S", 0);
    no_flock = number("FAULTY_FLOCK", 0);
    no_fcntl = number("FAULTY_FCNTL", 0);
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("FAULTY_COUNT");
    FILE *file = path && calls ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%ld\n", (long)calls);
        fclose(file);
    }
}

static int below(const char *path) {
    return folder && path && strncmp(path, folder, strlen(folder)) == 0;
}

static int is_below(int handle) {
    char link[64], path[4096];
    ssize_t size;
    if (!folder || handle < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return below(path);
}

/* Whether this call, which writes there, fails. */
static int fails(int there) {
    int kept = errno;
    long at;
    if (!there) return 0;
    at = ++calls;
    errno = kept;
    if (at < after || (how_many && at >= after + how_many)) return 0;
    if (slow_us) usleep(slow_us);
    if (!error) return 0;
    errno = (int)error;
    return 1;
}

static int writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT); }

#define OPENS(name)                                                                     \
    int name(const char *path, int flags, ...) {                                        \
        va_list more;                                                                   \
        mode_t mode;                                                                    \
        va_start(more, flags);                                                          \
        mode = va_arg(more, mode_t);                                                    \
        va_end(more);                                                                   \
        if (writes(flags) && fails(below(path))) return -1;                             \
        return REAL(name)(path, flags, mode);                                           \
    }
OPENS(open)
OPENS(open64)

FILE *fopen(const char *path, const char *mode) {
    if (*mode != 'r' && fails(below(path))) return NULL;
    return REAL(fopen)(path, mode);
}
FILE *fopen64(const char *path, const char *mode) {
    if (*mode != 'r' && fails(below(path))) return NULL;
    return REAL(fopen64)(path, mode);
}
ssize_t write(int handle, const void *data, size_t size) {
    return fails(is_below(handle)) ? -1 : REAL(write)(handle, data, size);
}
ssize_t pwrite(int handle, const void *data, size_t size, off_t at) {
    return fails(is_below(handle)) ? -1 : REAL(pwrite)(handle, data, size, at);
}
ssize_t pwrite64(int handle, const void *data, size_t size, off64_t at) {
    return fails(is_below(handle)) ? -1 : REAL(pwrite64)(handle, data, size, at);
}
ssize_t writev(int handle, const struct iovec *parts, int count) {
    return fails(is_below(handle)) ? -1 : REAL(writev)(handle, parts, count);
}
int fsync(int handle) { return fails(is_below(handle)) ? -1 : REAL(fsync)(handle); }
int fdatasync(int handle) { return fails(is_below(handle)) ? -1 : REAL(fdatasync)(handle); }
int rename(const char *old, const char *new) {
    return fails(below(new)) ? -1 : REAL(rename)(old, new);
}
int mkdir(const char *path, mode_t mode) {
    struct stat found;
    if (stat(path, &found) == 0) return REAL(mkdir)(path, mode);
    return fails(below(path)) ? -1 : REAL(mkdir)(path, mode);
}
int link(const char *old, const char *new) {
    return fails(below(new)) ? -1 : REAL(link)(old, new);
}

int flock(int handle, int operation) {
    if (no_flock && is_below(handle)) {
        errno = (int)no_flock;
        return -1;
    }
    return REAL(flock)(handle, operation);
}
#define CONTROLS(name)                                                                  \
    int name(int handle, int command, ...) {                                            \
        va_list more;                                                                   \
        void *argument;                                                                 \
        va_start(more, command);                                                        \
        argument = va_arg(more, void *);                                                \
        va_end(more);                                                                   \
        if (no_fcntl && (command == F_SETLK || command == F_SETLKW) &&                  \
            is_below(handle)) {                                                         \
            errno = (int)no_fcntl;                                                      \
            return -1;                                                                  \
        }                                                                               \
        return REAL(name)(handle, command, argument);                                   \
    }
CONTROLS(fcntl)
CONTROLS(fcntl64)

int clock_gettime(clockid_t which, struct timespec *now) {
    int done = REAL(clock_gettime)(which, now);
    if (step_s && which == CLOCK_REALTIME && calls >= after) now->tv_sec += step_s;
    return done;
}
