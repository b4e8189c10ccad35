/* What every program of the campaign offers: one call that reads one input. */
#ifndef CAMPAIGN_ENTRY_H
#define CAMPAIGN_ENTRY_H

/*
 * Runs the program over `length` bytes at `input`, which it only reads. Returns 0 when the input was
 * accepted as a whole, 1 when it was refused. It keeps nothing from one call to the next, opens
 * nothing and writes nothing outside its own memory.
 */
int entry(const unsigned char *input, unsigned length);

#endif
