/* Starts a program for which one system call, by its number, fails with EPERM, as by a container's filter. */
#include <stdlib.h>

#include "filtered.h"

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(argv[1]), 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	return start_filtered(filter, sizeof(filter) / sizeof(filter[0]), argv + 2);
}
