/* The same program; the test compiles it with AddressSanitizer. */
#include "open_device.c"
