/* Starts a program whose system calls go through a filter, as a container's do. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Returns when the program, the first of the words, cannot be started: an exit status. */
static int start_filtered(struct sock_filter *filter, size_t steps, char **words)
{
	struct sock_fprog program = { .len = steps, .filter = filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("seccomp");
		return 2;
	}
	execvp(words[0], words);
	perror(words[0]);
	return 2;
}
