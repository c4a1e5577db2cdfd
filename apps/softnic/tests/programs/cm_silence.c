// Connections whose other end is late, silent or killed: how long each end waits, and how its wait ends.
//
// `cm_silence serve CASE ADDRESS PORT` listens, and in CASE
//   dies   takes a request, and is killed before it can answer;
//   late   accepts it after SLOW seconds, and ends when the other end does;
//   hold   accepts it, takes nothing that comes, and never ends.
// `cm_silence ask CASE ADDRESS PORT SOURCE` asks from SOURCE, and in CASE
//   nobody    is told that nobody can be reached;
//   unserved  is refused since nobody listens;
//   orphan    is refused for a process that is no more;
//   late      is accepted, and ends it;
//   widow     sends one message, which is never taken, and ends the connection when it has failed.
// Prints `waited N ms` for what it waited for last, and `done`. Exit status 0: as it should be.
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno);     \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

// Longer than the requesting end would wait without an MRA.
#define SLOW 7
// Code of the local ACK time-out: the smallest that changes nothing of what is waited for here (4 ms).
#define ACK_TIMEOUT 10
// Longest wait for anything, in milliseconds.
#define PATIENCE 60000

static struct rdma_event_channel *channel;

static unsigned long milliseconds(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return now.tv_sec * 1000UL + now.tv_nsec / 1000000;
}

static void say(const char *what)
{
    puts(what);
    fflush(stdout);
}

static void say_since(unsigned long begun)
{
    printf("waited %lu ms\n", milliseconds() - begun);
    fflush(stdout);
}

// The next event, which must be of this kind and status, and its id.
static struct rdma_cm_id *expect(enum rdma_cm_event_type kind, int status)
{
    struct pollfd entry = {.fd = channel->fd, .events = POLLIN};
    struct rdma_cm_event *event;
    CHECK(poll(&entry, 1, PATIENCE) == 1);
    CHECK(rdma_get_cm_event(channel, &event) == 0);
    if (event->event != kind || event->status != status)
        fprintf(stderr, "%s, status %d\n", rdma_event_str(event->event), event->status);
    CHECK(event->event == kind && event->status == status);
    struct rdma_cm_id *id = event->id;
    CHECK(rdma_ack_cm_event(event) == 0);
    return id;
}

static void make_queue(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1};
    attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    CHECK(rdma_create_qp(id, NULL, &attr) == 0);
}

// A queue that retries without limit while the peer answers RNR NAK, and twice when it does not answer.
static struct rdma_conn_param param(void)
{
    struct rdma_conn_param param = {.retry_count = 2, .rnr_retry_count = 7};
    return param;
}

static void serve(const char *what, struct sockaddr_in *at)
{
    struct rdma_cm_id *listener;
    struct rdma_conn_param accepted = param();
    CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(listener, (struct sockaddr *)at) == 0);
    CHECK(rdma_listen(listener, 4) == 0);
    say("listening");
    struct rdma_cm_id *id = expect(RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    say("asked");
    if (!strcmp(what, "dies"))
        raise(SIGKILL);
    if (!strcmp(what, "late"))
        sleep(SLOW);
    make_queue(id);
    CHECK(rdma_accept(id, &accepted) == 0);
    expect(RDMA_CM_EVENT_ESTABLISHED, 0);
    say("connected");
    if (!strcmp(what, "hold"))
        pause();
    expect(RDMA_CM_EVENT_DISCONNECTED, 0);
    CHECK(rdma_disconnect(id) == 0);
    rdma_destroy_qp(id);
    CHECK(rdma_destroy_id(id) == 0);
    CHECK(rdma_destroy_id(listener) == 0);
}

static void send_to_nobody(struct rdma_cm_id *id)
{
    static char text[64];
    struct ibv_mr *mr = ibv_reg_mr(id->pd, text, sizeof text, 0);
    struct ibv_wc completion;
    CHECK(mr);
    CHECK(rdma_post_send(id, NULL, text, sizeof text, mr, 0) == 0);
    say("sending");
    unsigned long begun = milliseconds();
    int got;
    while ((got = ibv_poll_cq(id->send_cq, 1, &completion)) == 0) {
        CHECK(milliseconds() - begun < PATIENCE);
        usleep(1000);
    }
    CHECK(got == 1);
    if (completion.status != IBV_WC_RETRY_EXC_ERR)
        fprintf(stderr, "%s\n", ibv_wc_status_str(completion.status));
    CHECK(completion.status == IBV_WC_RETRY_EXC_ERR);
    CHECK(ibv_dereg_mr(mr) == 0);
}

static void ask(const char *what, struct sockaddr_in *at, struct sockaddr_in *from)
{
    struct rdma_cm_id *id;
    struct rdma_conn_param asked = param();
    uint8_t ack_timeout = ACK_TIMEOUT;
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_resolve_addr(id, (struct sockaddr *)from, (struct sockaddr *)at, 2000) == 0);
    expect(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack_timeout, 1) == 0);
    CHECK(rdma_resolve_route(id, 2000) == 0);
    expect(RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
    make_queue(id);
    unsigned long begun = milliseconds();
    CHECK(rdma_connect(id, &asked) == 0);
    if (!strcmp(what, "nobody")) {
        expect(RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
        say_since(begun);
    } else if (!strcmp(what, "unserved") || !strcmp(what, "orphan")) {
        // IBTA vol. 1 §12.6.7.2: 8 invalid service id; 28 consumer, a kernel's reason for a dead program.
        expect(RDMA_CM_EVENT_REJECTED, !strcmp(what, "orphan") ? 28 : 8);
        say_since(begun);
    } else {
        expect(RDMA_CM_EVENT_ESTABLISHED, 0);
        say_since(begun);
        int answered = !!strcmp(what, "widow");
        if (!answered)
            send_to_nobody(id);
        begun = milliseconds();
        CHECK(rdma_disconnect(id) == 0);
        expect(RDMA_CM_EVENT_DISCONNECTED, answered ? 0 : -ETIMEDOUT);
        if (!answered)
            say_since(begun);
        expect(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    }
    rdma_destroy_qp(id);
    CHECK(rdma_destroy_id(id) == 0);
}

static struct sockaddr_in address(const char *ip, const char *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    CHECK(inet_pton(AF_INET, ip, &at.sin_addr) == 1);
    return at;
}

int main(int argc, char **argv)
{
    CHECK(argc == 5 || argc == 6);
    struct sockaddr_in at = address(argv[3], argv[4]);
    channel = rdma_create_event_channel();
    CHECK(channel);
    if (argc == 5) {
        serve(argv[2], &at);
    } else {
        struct sockaddr_in from = address(argv[5], "0");
        ask(argv[2], &at, &from);
    }
    rdma_destroy_event_channel(channel);
    say("done");
    return 0;
}
