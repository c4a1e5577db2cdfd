/*! What stands for the kernels in a build without a C++ compiler: none. */
const unsigned db_twin_has_compiler = 0;
const unsigned db_twin_kernel_count = 0, db_twin_planted_count = 0;
const void *const db_twin_kernels[1], *const db_twin_planted[1];
