/* Loads every document of a YAML stream, as a program that reads configuration would. */
#include <yaml.h>

#include "entry.h"

int entry(const unsigned char *input, unsigned length) {
  yaml_parser_t parser;
  if (!yaml_parser_initialize(&parser)) {
    return 1;
  }
  yaml_parser_set_input_string(&parser, input, length);

  int refused = 0;
  int more = 1;
  while (more) {
    yaml_document_t document;
    if (!yaml_parser_load(&parser, &document)) {
      refused = 1;
      break;
    }
    /* The stream ends with a document that has no root. */
    more = yaml_document_get_root_node(&document) != NULL;
    yaml_document_delete(&document);
  }
  yaml_parser_delete(&parser);
  return refused;
}
