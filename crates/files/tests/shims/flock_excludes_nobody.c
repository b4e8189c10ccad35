/* A file system whose lock call succeeds and excludes nobody. */
int flock(int fd, int operation) { (void)fd; (void)operation; return 0; }
