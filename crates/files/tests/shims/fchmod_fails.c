/* A file system that cannot change modes. */
#include <errno.h>
#include <sys/types.h>
int fchmod(int fd, mode_t mode) { (void)fd; (void)mode; errno = EPERM; return -1; }
