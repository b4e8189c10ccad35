/* Decodes every image of a GIF file that is already in memory. */
#include <string.h>

#include "gif_lib.h"

#include "entry.h"

/* A header of ten bytes may ask for gigabytes of pixels; a decoder that refuses is realistic. */
#define PIXEL_LIMIT (1 << 12)

typedef struct {
  const unsigned char *bytes;
  unsigned length;
  unsigned at;
} reader;

static int read_bytes(GifFileType *gif, GifByteType *to, int wanted) {
  reader *from = gif->UserData;
  unsigned left = from->length - from->at;
  unsigned count = wanted < 0 ? 0 : (unsigned)wanted;
  if (count > left) {
    count = left;
  }
  memcpy(to, from->bytes + from->at, count);
  from->at += count;
  return (int)count;
}

/* Skips one extension with all its sub-blocks. */
static int skip_extension(GifFileType *gif) {
  int code;
  GifByteType *block;
  if (DGifGetExtension(gif, &code, &block) == GIF_ERROR) {
    return GIF_ERROR;
  }
  while (block != NULL) {
    if (code == GRAPHICS_EXT_FUNC_CODE) {
      GraphicsControlBlock control;
      (void)DGifExtensionToGCB(block[0], block + 1, &control);
    }
    if (DGifGetExtensionNext(gif, &block) == GIF_ERROR) {
      return GIF_ERROR;
    }
  }
  return GIF_OK;
}

/* Reads one image line by line, so that a file cut short still decodes as far as it goes. */
static int read_image(GifFileType *gif) {
  static GifPixelType line[PIXEL_LIMIT];
  if (DGifGetImageDesc(gif) == GIF_ERROR) {
    return GIF_ERROR;
  }
  int width = gif->Image.Width;
  int height = gif->Image.Height;
  if (width <= 0 || height <= 0 || width > PIXEL_LIMIT || height > PIXEL_LIMIT / width) {
    return GIF_ERROR;
  }
  for (int row = 0; row < height; row++) {
    if (DGifGetLine(gif, line, width) == GIF_ERROR) {
      return GIF_ERROR;
    }
  }
  return GIF_OK;
}

int entry(const unsigned char *input, unsigned length) {
  reader from = {.bytes = input, .length = length, .at = 0};
  int error = 0;
  GifFileType *gif = DGifOpen(&from, read_bytes, &error);
  if (gif == NULL) {
    return 1;
  }
  int status = GIF_OK;
  GifRecordType record = UNDEFINED_RECORD_TYPE;
  while (status == GIF_OK && record != TERMINATE_RECORD_TYPE) {
    status = DGifGetRecordType(gif, &record);
    if (status == GIF_OK && record == IMAGE_DESC_RECORD_TYPE) {
      status = read_image(gif);
    } else if (status == GIF_OK && record == EXTENSION_RECORD_TYPE) {
      status = skip_extension(gif);
    }
  }
  (void)DGifCloseFile(gif, &error);
  return status != GIF_OK;
}
