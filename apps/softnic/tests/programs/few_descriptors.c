/* Starts a program with a limit of descriptors, of which it inherits the three standard streams alone. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	rlim_t count = (rlim_t)atoi(argv[1]);
	struct rlimit limit = { .rlim_cur = count, .rlim_max = count };

	if (close_range(3, ~0U, 0) || setrlimit(RLIMIT_NOFILE, &limit)) {
		perror("few_descriptors");
		return 2;
	}
	execvp(argv[2], argv + 2);
	perror(argv[2]);
	return 2;
}
