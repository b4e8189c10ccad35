/* A file system that cannot sync. */
#include <errno.h>
int fsync(int fd) { (void)fd; errno = EINVAL; return -1; }
