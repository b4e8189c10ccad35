/*
 * The part of libc that the campaign's programs need, without a system below it.
 *
 * The image that the concolic engine replays has no kernel, no loader and no files: every function
 * here is plain code over memory, so a replay of the same bytes takes the same branches each time.
 *
 * S1. The heap is zeroed memory that is handed out once and never reused. A program that reads
 *     memory it did not write sees zeros, in every replay alike.
 * S2. Running out of heap is a null pointer, never a wrapped address.
 * S3. Nothing here returns after `abort`: the engine ends a replay at the `hlt` instruction.
 * S4. Streams exist only as names. Reading one gives end of file, writing one swallows the bytes.
 *
 * `memset`, `memcpy` and `memmove` are complete, but the engine replaces them by one step each.
 */
#include <stddef.h>
#include <stdint.h>

#define HEAP_BYTES (24u << 20)
#define ALIGNMENT 16u

/* Keeps the length of a block in front of it; as large as the alignment, so blocks stay aligned. */
typedef struct {
  size_t length;
  size_t unused;
} block_header;

static unsigned char heap[HEAP_BYTES] __attribute__((aligned(ALIGNMENT)));
static size_t heap_used;
static int last_error;

void *stdin;
void *stdout;
void *stderr;

/* ---- memory blocks ---- */

void *malloc(size_t length) {
  size_t available = HEAP_BYTES - heap_used;
  if (available < sizeof(block_header) || length > available - sizeof(block_header) - ALIGNMENT) {
    return NULL;
  }
  block_header *header = (block_header *)(heap + heap_used);
  header->length = length;
  heap_used += sizeof(block_header) + ((length + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1));
  return header + 1;
}

/* Blocks are never reused, so a fresh one is already zero (S1). */
void *calloc(size_t count, size_t size) {
  if (size != 0 && count > HEAP_BYTES / size) {
    return NULL;
  }
  return malloc(count * size);
}

void free(void *block) { (void)block; }

void *memcpy(void *restrict to, const void *restrict from, size_t length) {
  unsigned char *out = to;
  const unsigned char *in = from;
  while (length-- > 0) {
    *out++ = *in++;
  }
  return to;
}

void *realloc(void *block, size_t length) {
  if (block == NULL) {
    return malloc(length);
  }
  size_t old_length = ((block_header *)block - 1)->length;
  if (length <= old_length) {
    return block;
  }
  void *grown = malloc(length);
  if (grown != NULL) {
    memcpy(grown, block, old_length);
  }
  return grown;
}

void *reallocarray(void *block, size_t count, size_t size) {
  if (size != 0 && count > HEAP_BYTES / size) {
    return NULL;
  }
  return realloc(block, count * size);
}

/* ---- bytes ---- */

void *memset(void *to, int value, size_t length) {
  unsigned char *out = to;
  while (length-- > 0) {
    *out++ = (unsigned char)value;
  }
  return to;
}

void *memmove(void *to, const void *from, size_t length) {
  unsigned char *out = to;
  const unsigned char *in = from;
  if (out <= in) {
    return memcpy(to, from, length);
  }
  while (length-- > 0) {
    out[length] = in[length];
  }
  return to;
}

int memcmp(const void *left, const void *right, size_t length) {
  const unsigned char *a = left;
  const unsigned char *b = right;
  for (size_t i = 0; i < length; i++) {
    if (a[i] != b[i]) {
      return a[i] < b[i] ? -1 : 1;
    }
  }
  return 0;
}

void *memchr(const void *in, int value, size_t length) {
  const unsigned char *at = in;
  for (size_t i = 0; i < length; i++) {
    if (at[i] == (unsigned char)value) {
      return (void *)(at + i);
    }
  }
  return NULL;
}

/* ---- strings ---- */

size_t strlen(const char *text) {
  size_t length = 0;
  while (text[length] != '\0') {
    length++;
  }
  return length;
}

int strncmp(const char *left, const char *right, size_t limit) {
  for (size_t i = 0; i < limit; i++) {
    unsigned char a = (unsigned char)left[i];
    unsigned char b = (unsigned char)right[i];
    if (a != b) {
      return a < b ? -1 : 1;
    }
    if (a == '\0') {
      return 0;
    }
  }
  return 0;
}

int strcmp(const char *left, const char *right) { return strncmp(left, right, SIZE_MAX); }

char *strchr(const char *text, int wanted) {
  for (;; text++) {
    if (*text == (char)wanted) {
      return (char *)text;
    }
    if (*text == '\0') {
      return NULL;
    }
  }
}

char *strcpy(char *restrict to, const char *restrict from) {
  memcpy(to, from, strlen(from) + 1);
  return to;
}

char *strdup(const char *text) {
  size_t length = strlen(text) + 1;
  char *copy = malloc(length);
  return copy == NULL ? NULL : memcpy(copy, text, length);
}

/* ---- streams (S4) ---- */

size_t fread(void *to, size_t size, size_t count, void *stream) {
  (void)to, (void)size, (void)count, (void)stream;
  return 0;
}

size_t fwrite(const void *from, size_t size, size_t count, void *stream) {
  (void)from, (void)size, (void)stream;
  return count;
}

int ferror(void *stream) {
  (void)stream;
  return 0;
}

int fclose(void *stream) {
  (void)stream;
  return 0;
}

void *fdopen(int descriptor, const char *mode) {
  (void)descriptor, (void)mode;
  return NULL;
}

int open(const char *path, int flags, ...) {
  (void)path, (void)flags;
  return -1;
}

int close(int descriptor) {
  (void)descriptor;
  return 0;
}

int *__errno_location(void) { return &last_error; }

/* ---- the end (S3) ---- */

__attribute__((noreturn)) void abort(void) {
  for (;;) {
    __asm__ volatile("hlt");
  }
}

__attribute__((noreturn)) void exit(int status) {
  (void)status;
  abort();
}

__attribute__((noreturn)) void __assert_fail(const char *claim, const char *file, unsigned line,
                                             const char *function) {
  (void)claim, (void)file, (void)line, (void)function;
  abort();
}
