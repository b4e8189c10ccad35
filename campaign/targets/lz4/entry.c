/* Decodes LZ4 frames until the input ends, through an output window smaller than a block. */
#include <lz4frame.h>

#include "entry.h"

/* Smaller than every block size of the format, so that the decoder's own buffering runs too. */
#define WINDOW_BYTES 4096
/* A few bytes may describe megabytes; the rest of such a frame teaches nothing new. */
#define OUTPUT_LIMIT (16 * WINDOW_BYTES)

int entry(const unsigned char *input, unsigned length) {
  LZ4F_dctx *context = NULL;
  if (LZ4F_isError(LZ4F_createDecompressionContext(&context, LZ4F_VERSION))) {
    return 1;
  }
  unsigned char window[WINDOW_BYTES];
  size_t written = 0;
  size_t expected = 1;
  unsigned at = 0;
  int refused = 0;
  while (at < length && written < OUTPUT_LIMIT) {
    size_t produced = sizeof window;
    size_t consumed = length - at;
    expected = LZ4F_decompress(context, window, &produced, input + at, &consumed, NULL);
    if (LZ4F_isError(expected) || (consumed == 0 && produced == 0)) {
      refused = 1;
      break;
    }
    at += (unsigned)consumed;
    written += produced;
  }
  /* The decoder answers 0 exactly at the end of a frame. */
  refused |= expected != 0;
  LZ4F_freeDecompressionContext(context);
  return refused;
}
