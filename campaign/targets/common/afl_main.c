/*
 * Runs `entry` over the file named by the only argument: the program as the fuzzer sees it.
 *
 * One process per input, started by the fork server: a crash or leak of one input cannot change what
 * the next one does, and an input that reaches a branch here reaches it in a replay of its own. The
 * limit on the length is the engine's, so both sides read the same bytes of every file.
 */
#include <stdio.h>
#include <stdlib.h>

#include "entry.h"

#ifndef MAX_INPUT
#error "MAX_INPUT (bytes) comes from the target's manifest"
#endif

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s FILE\n", argv[0]);
    return 64;
  }
  FILE *file = fopen(argv[1], "rb");
  if (file == NULL) {
    perror(argv[1]);
    return 66;
  }
  /* An exact allocation lets a sanitizer build see a read past the end. */
  unsigned char *wide = malloc(MAX_INPUT);
  if (wide == NULL) {
    fclose(file);
    return 71;
  }
  size_t length = fread(wide, 1, MAX_INPUT, file);
  fclose(file);
  unsigned char *input = realloc(wide, length == 0 ? 1 : length);
  int refused = entry(input == NULL ? wide : input, (unsigned)length);
  free(input == NULL ? wide : input);
  return refused;
}
