/* Opens and closes the first device. With an argument it then closes descriptors above 2 and reopens it. */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <unistd.h>

static int open_once(void)
{
	int count;
	struct ibv_device **devices = ibv_get_device_list(&count);
	struct ibv_context *context = devices && count ? ibv_open_device(devices[0]) : NULL;
	int error = errno;

	if (context)
		ibv_close_device(context);
	if (devices)
		ibv_free_device_list(devices);
	printf("devices %d, opened %d, errno %d\n", devices ? count : -1, context != NULL, context ? 0 : error);
	fflush(stdout);
	return context ? 0 : 1;
}

int main(int argc, char **argv)
{
	int result = open_once();

	(void)argv;
	if (argc > 1) {
		closefrom(3);
		result = open_once();
	}
	return result;
}
