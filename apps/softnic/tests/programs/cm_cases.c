// Connection cases that no program of rdmacm-utils shows: private data both ways, refusal with private data,
// events without waiting. `cm_cases serve CASE ADDRESS PORT` waits for one request, and
// `cm_cases ask CASE ADDRESS PORT [SOURCE]` makes it. Exit status 0: as it should be.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno);     \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

static struct rdma_event_channel *channel;

// The next event, which must be of this kind; without O_NONBLOCK it is waited for.
static struct rdma_cm_event *expect(enum rdma_cm_event_type kind)
{
    struct rdma_cm_event *event;
    CHECK(rdma_get_cm_event(channel, &event) == 0);
    if (event->event != kind)
        fprintf(stderr, "%s, status %d\n", rdma_event_str(event->event), event->status);
    CHECK(event->event == kind);
    return event;
}

static void acknowledge(enum rdma_cm_event_type kind)
{
    CHECK(rdma_ack_cm_event(expect(kind)) == 0);
}

static struct ibv_qp_init_attr queue(void)
{
    struct ibv_qp_init_attr attr = {0};
    attr.qp_type = IBV_QPT_RC;
    attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    return attr;
}

static struct rdma_conn_param with(const char *private_data)
{
    struct rdma_conn_param param = {0};
    param.private_data = private_data;
    param.private_data_len = strlen(private_data) + 1;
    param.retry_count = param.rnr_retry_count = 7;
    return param;
}

static void serve(const char *what, struct sockaddr_in *at)
{
    struct rdma_cm_id *listener;
    CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(listener, (struct sockaddr *)at) == 0);
    CHECK(rdma_listen(listener, 4) == 0);
    if (!strcmp(what, "poll")) {
        struct pollfd entry = {.fd = channel->fd, .events = POLLIN};
        struct rdma_cm_event *event;
        CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
        CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
        CHECK(poll(&entry, 1, 0) == 0);
        puts("listening");
        fflush(stdout);
        CHECK(poll(&entry, 1, 60000) == 1 && entry.revents == POLLIN);
    } else {
        puts("listening");
        fflush(stdout);
    }
    struct rdma_cm_event *event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *id = event->id;
    CHECK(event->listen_id == listener);
    CHECK(event->param.conn.private_data_len == 56);
    CHECK(!strcmp(event->param.conn.private_data, "may I"));
    CHECK(rdma_ack_cm_event(event) == 0);
    CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) & ~O_NONBLOCK) == 0);
    if (!strcmp(what, "reject")) {
        CHECK(rdma_reject(id, "no room", 8) == 0);
    } else {
        struct ibv_qp_init_attr attr = queue();
        struct rdma_conn_param param = with("come in");
        CHECK(rdma_create_qp(id, NULL, &attr) == 0);
        CHECK(rdma_accept(id, &param) == 0);
        acknowledge(RDMA_CM_EVENT_ESTABLISHED);
        acknowledge(RDMA_CM_EVENT_DISCONNECTED);
        CHECK(rdma_disconnect(id) == 0);
        rdma_destroy_qp(id);
    }
    CHECK(rdma_destroy_id(id) == 0);
    CHECK(rdma_destroy_id(listener) == 0);
}

static void ask(const char *what, struct sockaddr_in *at, struct sockaddr_in *from)
{
    struct rdma_cm_id *id;
    struct ibv_qp_init_attr attr = queue();
    struct rdma_conn_param param = with("may I");
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_resolve_addr(id, (struct sockaddr *)from, (struct sockaddr *)at, 2000) == 0);
    acknowledge(RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(rdma_resolve_route(id, 2000) == 0);
    acknowledge(RDMA_CM_EVENT_ROUTE_RESOLVED);
    CHECK(rdma_create_qp(id, NULL, &attr) == 0);
    char too_long[57] = {0};
    struct rdma_conn_param wrong = {.private_data = too_long, .private_data_len = sizeof too_long};
    CHECK(rdma_connect(id, &wrong) == -1 && errno == EINVAL);
    CHECK(rdma_connect(id, &param) == 0);
    if (!strcmp(what, "reject")) {
        struct rdma_cm_event *event = expect(RDMA_CM_EVENT_REJECTED);
        CHECK(event->status == 28);
        CHECK(event->param.conn.private_data_len == 148);
        CHECK(!strcmp(event->param.conn.private_data, "no room"));
        CHECK(rdma_ack_cm_event(event) == 0);
    } else {
        struct rdma_cm_event *event = expect(RDMA_CM_EVENT_ESTABLISHED);
        CHECK(!strcmp(event->param.conn.private_data, "come in"));
        CHECK(rdma_ack_cm_event(event) == 0);
        CHECK(rdma_disconnect(id) == 0);
        acknowledge(RDMA_CM_EVENT_DISCONNECTED);
        acknowledge(RDMA_CM_EVENT_TIMEWAIT_EXIT);
    }
    rdma_destroy_qp(id);
    CHECK(rdma_destroy_id(id) == 0);
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET}, from = at;
    CHECK((argc == 5 || argc == 6) && inet_pton(AF_INET, argv[3], &at.sin_addr) == 1);
    at.sin_port = htons(atoi(argv[4]));
    CHECK(argc == 5 || inet_pton(AF_INET, argv[5], &from.sin_addr) == 1);
    channel = rdma_create_event_channel();
    CHECK(channel);
    if (!strcmp(argv[1], "serve"))
        serve(argv[2], &at);
    else
        ask(argv[2], &at, argc == 6 ? &from : NULL);
    rdma_destroy_event_channel(channel);
    puts("done");
    return 0;
}
