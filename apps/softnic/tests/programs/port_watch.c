/* Prints every port event of mlx5_0 with what ibv_query_port and sysfs say then, and what sysfs says of
 * mlx5_1; ends when the port is active again. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

/* The first word of a file of a device's port: "1:", "4:". */
static const char *says(const char *device, const char *file, char *word)
{
	char path[100];
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/%s", device, file);
	FILE *open = fopen(path, "r");
	if (!open || fscanf(open, "%31[^\n]", word) != 1) strcpy(word, "unreadable");
	if (open) fclose(open);
	return word;
}

static void look(const char *device)
{
	char state[32], physical[32];
	printf("%s %s, %s\n", device, says(device, "state", state), says(device, "phys_state", physical));
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	if (!context) return 1;
	look("mlx5_0");
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		struct ibv_async_event event;
		struct ibv_port_attr port;
		if (ibv_get_async_event(context, &event) || ibv_query_port(context, 1, &port)) return 1;
		printf("event %d port %d state %d physical %d\n", event.event_type, event.element.port_num, port.state,
		       port.phys_state);
		look("mlx5_0");
		look("mlx5_1");
		fflush(stdout);
		ibv_ack_async_event(&event);
		if (event.event_type == IBV_EVENT_PORT_ACTIVE) break;
	}
	ibv_close_device(context);
	ibv_free_device_list(list);
	return 0;
}
