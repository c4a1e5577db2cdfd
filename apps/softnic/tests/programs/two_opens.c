/* Two opens of one device in one process, closed in the order asked for; what stays open goes on working.
 *
 * usage: two_opens GID_INDEX ab|ba. 3 messages from a to b, 2 from b to a, 4 in a third open, closed last.
 */
#include "loopback.h"

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	int gid_index = atoi(argv[1]), a_first = strcmp(argv[2], "ab") == 0;
	struct endpoint a = endpoint_new(), b = endpoint_new(), third;
	endpoint_connect(&a, b.qp->qp_num, gid_index);
	endpoint_connect(&b, a.qp->qp_num, gid_index);
	write_messages(&a, &b, 3);
	write_messages(&b, &a, 2);
	endpoint_close(a_first ? &a : &b);

	third = endpoint_new();
	endpoint_connect(&third, third.qp->qp_num, gid_index);
	write_messages(&third, &third, 2);
	endpoint_close(a_first ? &b : &a);
	write_messages(&third, &third, 2);
	endpoint_close(&third);
	return 0;
}
