/* A file system that can sync files only. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
int fsync(int fd) {
    struct stat seen;
    if (fstat(fd, &seen) == 0 && S_ISDIR(seen.st_mode)) { errno = EINVAL; return -1; }
    return (int)syscall(SYS_fsync, fd);
}
