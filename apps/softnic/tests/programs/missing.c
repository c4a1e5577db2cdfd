/* Asks three times, in each of two contexts, for what the device lacks: EOPNOTSUPP, as from a kernel. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); return 1; } } while (0)

int main(void)
{
	int count, open, time;
	struct ibv_device **devices = ibv_get_device_list(&count);
	CHECK(devices && count == 1);
	for (open = 0; open < 2; open++) {
		struct ibv_context *context = ibv_open_device(devices[0]);
		CHECK(context);
		struct ibv_pd *pd = ibv_alloc_pd(context);
		CHECK(pd);
		for (time = 0; time < 3; time++) {
			struct ibv_xrcd_init_attr xrcd = {
				.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT,
			};
			struct ibv_counters_init_attr counters = { .comp_mask = 0 };
			errno = 0;
			CHECK(!ibv_create_counters(context, &counters) && errno == EOPNOTSUPP);
			errno = 0;
			CHECK(!ibv_open_xrcd(context, &xrcd) && errno == EOPNOTSUPP);
		}
		CHECK(!ibv_dealloc_pd(pd));
		CHECK(!ibv_close_device(context));
	}
	ibv_free_device_list(devices);
	return 0;
}
