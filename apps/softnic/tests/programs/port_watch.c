/* Prints every port event of mlx5_0 with what ibv_query_port says then; ends when the port is active again. */
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
    if (!context) return 1;
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        struct ibv_async_event event;
        struct ibv_port_attr port;
        if (ibv_get_async_event(context, &event) || ibv_query_port(context, 1, &port)) return 1;
        printf("event %d port %d state %d physical %d\n", event.event_type, event.element.port_num, port.state,
               port.phys_state);
        fflush(stdout);
        ibv_ack_async_event(&event);
        if (event.event_type == IBV_EVENT_PORT_ACTIVE) break;
    }
    ibv_close_device(context);
    ibv_free_device_list(list);
    return 0;
}
