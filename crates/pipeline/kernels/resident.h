/*! The routines of the kernels of a turn, without the kernels: for one kernel that does it all. */
#ifndef DB_RESIDENT
#define DB_RESIDENT

#include "send.cu"
#include "wait.cu"

#endif /* DB_RESIDENT */
