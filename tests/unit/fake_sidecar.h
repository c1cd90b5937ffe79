/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of libringside: threads that answer Attach and Open for rings in memfds, as sidecars would. */
#ifndef RINGSIDE_TESTS_FAKE_SIDECAR_H
#define RINGSIDE_TESTS_FAKE_SIDECAR_H

#include <assert.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/control.pb-c.h"
#include "proto/err.h"
#include "proto/inbox.h"
#include "proto/layout.h"
#include "proto/ttrpc.h"
#include "proto/wait.h"

#define FAKE_UNUSED __attribute__((unused)) /* not every test needs it */
#define FAKE_STAGES 3
#define FAKE_CONNS  16
#define NEED(condition)                                                                            \
    ((condition) ? (void)0                                                                         \
                 : (fprintf(stderr, "fake sidecar: %s (%s:%d)\n", #condition, __FILE__, __LINE__),  \
                    abort()))

/* In the inbox of stage j the ring of stage i has the number 1 + i (its own: 0); destination j of each ring is the inbox
 * of stage j; the routes of each stage are "0", "1", "2" and, to all others, "all". */
struct fake_stage {
    unsigned index;
    struct rs_ring ring;
    struct rs_inbox inbox;          /* all rings admitted, as the sidecar's view */
    int control_fd, body_fd;        /* memfds */
    int event_fd, bell_fd;
    char path[100];
    pthread_t thread;
    int stop_fd;                    /* eventfd: end the thread */
    int listener;
    uint16_t next_client;
    unsigned attaches, opens;
};

static struct fake_stage fake_stages[FAKE_STAGES];
static Ringside__V1__Route__WhenFull fake_when_full;
static uint64_t fake_ttl_ns, fake_ticket_ttl_ns = 60000000000;
static unsigned fake_attempts = 3, fake_spin_us = 20;
static bool fake_no_readers, fake_unlinked_peers, fake_forget_sessions;
static unsigned fake_unlinked_ring; /* the ring with that number cannot be opened; 0: all can */
/* Ring numbers that came to mean another ring: by inbox and number, 1 + its stage. */
static unsigned fake_meaning[FAKE_STAGES][FAKE_STAGES + 1];
static char fake_dir[] = "/tmp/ringside-test-XXXXXX";

static int fake_reopen(int fd, int flags)
{
    char path[40];

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int fresh = open(path, flags | O_CLOEXEC);
    NEED(fresh >= 0);
    return fresh;
}

static void fake_make_ring(struct fake_stage *stage, const struct rs_class_spec *classes,
                           unsigned class_count, unsigned cells, unsigned depth)
{
    char name[16];
    struct rs_superblock plan;
    struct rs_geometry geometry = {
        .stage = name,
        .class_count = class_count,
        .client_count = 64,
        .inbox_cells = cells,
        .inbox_depth = depth,
        .sidecar_id = 101 + stage->index,
        .page_bytes = 4096,
        .incarnation = {0x1234567800000000u + stage->index, 42 + stage->index},
    };
    const char *why;

    snprintf(name, sizeof name, "stage%u", stage->index);
    memcpy(geometry.classes, classes, class_count * sizeof classes[0]);
    NEED(rs_layout_plan(&plan, &geometry) == 0);
    stage->control_fd = memfd_create("control", MFD_CLOEXEC);
    stage->body_fd = memfd_create("body", MFD_CLOEXEC);
    NEED(ftruncate(stage->control_fd, (off_t)plan.control_bytes) == 0);
    NEED(ftruncate(stage->body_fd, (off_t)plan.body_bytes) == 0);
    void *control = mmap(NULL, plan.control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                         stage->control_fd, 0);
    NEED(control != MAP_FAILED);
    rs_layout_format(control, &plan);
    munmap(control, plan.control_bytes);
    NEED(rs_ring_map(&stage->ring, stage->control_fd, stage->body_fd, true, &why) == 0);
    stage->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    stage->bell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rs_inbox_init(&stage->inbox, &stage->ring, stage->event_fd);
    stage->next_client = 1;
}

static unsigned fake_number(unsigned inbox, unsigned ring)
{
    return inbox == ring ? 0 : 1 + ring;
}

static void fake_connect_stages(void)
{
    for (unsigned i = 0; i < FAKE_STAGES; i++) {
        for (unsigned j = 0; j < FAKE_STAGES; j++) {
            struct rs_ring *from = &fake_stages[i].ring, *to = &fake_stages[j].ring;
            struct rs_destination *entry = &from->destinations[j];
            struct rs_ring_entry *known = &fake_stages[j].inbox.table[fake_number(j, i)];

            rs_store_relaxed(&entry->incarnation[0], to->layout.incarnation[0]);
            rs_store_relaxed(&entry->incarnation[1], to->layout.incarnation[1]);
            rs_store_release(&entry->state,
                             rs_destination_state(1, fake_attempts, fake_number(j, i), RS_DEST_INBOX,
                                                  true));
            rs_store_relaxed(&known->incarnation[0], from->layout.incarnation[0]);
            rs_store_relaxed(&known->incarnation[1], from->layout.incarnation[1]);
            rs_store_release(&known->state, (uint64_t)1 << 32 | RS_RING_KNOWN);
            rs_inbox_admit(&fake_stages[j].inbox, fake_number(j, i), from, (uint16_t)j, 0);
        }
    }
}

/* The ring of a stage leaves the inbox, and its number comes to mean the ring of another one. */
FAKE_UNUSED static void fake_renumber(unsigned inbox, unsigned number, unsigned ring)
{
    struct rs_ring *from = &fake_stages[ring].ring;
    struct rs_ring_entry *known = &fake_stages[inbox].inbox.table[number];
    uint64_t version = rs_load_relaxed(&known->state) >> 32;

    rs_store_release(&known->state, (version + 1) << 32 | RS_RING_UNUSED);
    rs_store_relaxed(&known->incarnation[0], from->layout.incarnation[0]);
    rs_store_relaxed(&known->incarnation[1], from->layout.incarnation[1]);
    rs_store_release(&known->state, (version + 2) << 32 | RS_RING_KNOWN);
    fake_meaning[inbox][number] = 1 + ring;
    rs_inbox_forget(&fake_stages[inbox].inbox, number);
    rs_inbox_admit(&fake_stages[inbox].inbox, number, from, (uint16_t)inbox, 0);
    rs_store_release(&from->destinations[inbox].state,
                     rs_destination_state(2, fake_attempts, number, RS_DEST_INBOX, true));
}

/* ---- answers ---- */

static void fake_admit(struct fake_stage *stage, Ringside__V1__Ring *info)
{
    uint16_t client = stage->next_client++;

    NEED(client < stage->ring.layout.client_count);
    ringside__v1__ring__init(info);
    info->incarnation.data = (uint8_t *)stage->ring.layout.incarnation;
    info->incarnation.len = 16;
    info->sidecar_id = stage->ring.layout.sidecar_id;
    info->client = client;
    info->reader = fake_no_readers ? RS_NO_READER : client < RS_MAX_READERS ? client : RS_NO_READER;
    info->nonce = 0xabc0000 + client;
    info->stage = stage->ring.layout.stage;
    rs_store_relaxed(&stage->ring.clients[client].nonce, info->nonce);
    rs_store_release(&stage->ring.clients[client].state, rs_client_state(1, info->reader, 0, RS_CLIENT_ALIVE));
}

static void fake_attach(struct fake_stage *stage, struct rs_ttrpc_writer *writer, uint32_t stream,
                        const Ringside__V1__AttachRequest *request)
{
    Ringside__V1__AttachResponse response = RINGSIDE__V1__ATTACH_RESPONSE__INIT;
    Ringside__V1__Ring info;
    Ringside__V1__Route routes[FAKE_STAGES + 1], *pointers[FAKE_STAGES + 1];
    Ringside__V1__Descriptor kinds[] = {1, 2, 3, 4};
    uint32_t destinations[FAKE_STAGES], others[FAKE_STAGES];
    static char *names[] = {"0", "1", "2", "all"};
    int fds[] = {fake_reopen(stage->control_fd, O_RDWR), fake_reopen(stage->body_fd, O_RDWR),
                 fcntl(stage->event_fd, F_DUPFD_CLOEXEC, 0),
                 fcntl(stage->bell_fd, F_DUPFD_CLOEXEC, 0)};
    uint16_t came_back = request->session_token.len == 2 && !fake_forget_sessions
                             ? *(uint16_t *)(void *)request->session_token.data
                             : 0;

    stage->attaches++;
    if (came_back != 0)
        stage->next_client--;
    fake_admit(stage, &info);
    if (came_back != 0) {
        stage->next_client++;
        info.client = came_back;
        response.resumed = 1;
    }
    uint16_t token = (uint16_t)info.client;
    response.session_token.data = (uint8_t *)&token;
    response.session_token.len = 2;
    info.destination = stage->index;
    for (unsigned j = 0, k = 0; j <= FAKE_STAGES; j++) {
        ringside__v1__route__init(&routes[j]);
        routes[j].name = names[j];
        routes[j].when_full = fake_when_full;
        routes[j].ttl_ns = fake_ttl_ns;
        pointers[j] = &routes[j];
        if (j == FAKE_STAGES) {
            routes[j].destinations = others;
            routes[j].n_destinations = FAKE_STAGES - 1;
            continue;
        }
        destinations[j] = j;
        routes[j].destinations = &destinations[j];
        routes[j].n_destinations = 1;
        if (j != stage->index)
            others[k++] = j;
    }
    response.ring = &info;
    response.routes = pointers;
    response.n_routes = FAKE_STAGES + 1;
    response.descriptors = kinds;
    response.n_descriptors = 4;
    response.spin_us = fake_spin_us;
    response.ticket_ttl_ns = fake_ticket_ttl_ns;
    NEED(rs_ttrpc_respond(writer, stream, &response.base, fds, 4) == 0);
}

static void fake_open(struct fake_stage *stage, struct rs_ttrpc_writer *writer, uint32_t stream,
                      const Ringside__V1__OpenRequest *request)
{
    Ringside__V1__OpenResponse response = RINGSIDE__V1__OPEN_RESPONSE__INIT;
    bool reply = request->target_case == RINGSIDE__V1__OPEN_REQUEST__TARGET_REPLY ||
                 request->target_case == RINGSIDE__V1__OPEN_REQUEST__TARGET_TICKETS;
    bool ring = request->target_case == RINGSIDE__V1__OPEN_REQUEST__TARGET_RING;
    Ringside__V1__Descriptor kinds[4] = {RINGSIDE__V1__DESCRIPTOR__CONTROL_FILE};
    Ringside__V1__Ring info;
    int fds[4];
    unsigned meaning = ring ? fake_meaning[stage->index][request->ring] : 0;
    struct fake_stage *other = &fake_stages[meaning != 0 ? meaning - 1
                                            : ring       ? request->ring - 1
                                            : reply      ? request->reply
                                                         : request->destination];

    stage->opens++;
    if (fake_unlinked_peers || (ring && request->ring == fake_unlinked_ring)) {
        NEED(rs_ttrpc_respond_error(writer, stream, -RINGSIDE_E_UNAVAILABLE, "not connected") == 0);
        return;
    }
    fds[0] = fake_reopen(other->control_fd, O_RDWR);
    if (ring || reply) {
        fake_admit(other, &info);
        info.destination = reply ? RS_NO_DESTINATION : stage->index;
        fds[1] = fake_reopen(other->body_fd, O_RDONLY);
        fds[2] = fcntl(other->bell_fd, F_DUPFD_CLOEXEC, 0);
        kinds[1] = RINGSIDE__V1__DESCRIPTOR__BODY_FILE;
        kinds[2] = RINGSIDE__V1__DESCRIPTOR__BELL_EVENT;
        fds[3] = fcntl(other->event_fd, F_DUPFD_CLOEXEC, 0);
        kinds[3] = RINGSIDE__V1__DESCRIPTOR__INBOX_EVENT;
    } else {
        ringside__v1__ring__init(&info);
        info.stage = other->ring.layout.stage;
        response.ring_number = rs_destination_ring(
            rs_load_acquire(&stage->ring.destinations[other->index].state));
        fds[1] = fcntl(other->event_fd, F_DUPFD_CLOEXEC, 0);
        kinds[1] = RINGSIDE__V1__DESCRIPTOR__INBOX_EVENT;
    }
    response.ring = &info;
    response.descriptors = kinds;
    response.n_descriptors = ring || reply ? 4 : 2;
    NEED(rs_ttrpc_respond(writer, stream, &response.base, fds, response.n_descriptors) == 0);
}

static void fake_answer(struct fake_stage *stage, const struct rs_frame *frame,
                        struct rs_ttrpc_writer *writer)
{
    struct rs_ttrpc_call call;
    Ringside__Ttrpc__V1__Request *request;
    const char *why;

    NEED(rs_ttrpc_request_decode(frame, rs_now_ns(), &call, &request, &why) == 0);
    const uint8_t *data = request->payload.data;
    size_t bytes = request->payload.len;
    if (strcmp(request->method, "Attach") == 0) {
        Ringside__V1__AttachRequest *attach = ringside__v1__attach_request__unpack(NULL, bytes, data);
        fake_attach(stage, writer, call.stream, attach);
        ringside__v1__attach_request__free_unpacked(attach, NULL);
    } else if (strcmp(request->method, "Open") == 0) {
        Ringside__V1__OpenRequest *open = ringside__v1__open_request__unpack(NULL, bytes, data);
        fake_open(stage, writer, call.stream, open);
        ringside__v1__open_request__free_unpacked(open, NULL);
    } else if (strcmp(request->method, "Read") == 0) {
        Ringside__V1__ReadRequest *read = ringside__v1__read_request__unpack(NULL, bytes, data);
        Ringside__V1__ReadResponse response = RINGSIDE__V1__READ_RESPONSE__INIT;
        Ringside__V1__Message message = RINGSIDE__V1__MESSAGE__INIT;
        Ringside__V1__Lease lease = RINGSIDE__V1__LEASE__INIT;
        struct rs_ticket ticket;
        uint32_t generation;

        NEED(rs_ticket_unpack(&ticket, read->ticket) == 0);
        struct rs_ring *ring = &fake_stages[ticket.sidecar_id - 101].ring;
        int rc = rs_ring_read_begin(ring, 0, &ticket, &generation);
        lease.ticket = read->ticket;
        message.lease = &lease;
        response.message = &message;
        NEED((rc < 0 ? rs_ttrpc_respond_error(writer, call.stream, rc, NULL)
                     : rs_ttrpc_respond(writer, call.stream, &response.base, NULL, 0)) == 0);
        ringside__v1__read_request__free_unpacked(read, NULL);
    } else if (strcmp(request->method, "Release") == 0) {
        Ringside__V1__LeaseRequest *end = ringside__v1__lease_request__unpack(NULL, bytes, data);
        struct rs_ticket ticket;

        NEED(rs_ticket_unpack(&ticket, end->lease->ticket) == 0);
        rs_ring_read_end(&fake_stages[ticket.sidecar_id - 101].ring, 0, ticket.slot, 0, true);
        NEED(rs_ttrpc_respond(writer, call.stream, NULL, NULL, 0) == 0);
        ringside__v1__lease_request__free_unpacked(end, NULL);
    } else if (strcmp(request->method, "Free") == 0) {
        Ringside__V1__FreeRequest *end = ringside__v1__free_request__unpack(NULL, bytes, data);
        struct rs_ticket ticket;

        NEED(rs_ticket_unpack(&ticket, end->ticket) == 0);
        int rc = rs_ring_ticket_free(&fake_stages[ticket.sidecar_id - 101].ring, 0, &ticket);
        NEED((rc < 0 ? rs_ttrpc_respond_error(writer, call.stream, rc, NULL)
                     : rs_ttrpc_respond(writer, call.stream, NULL, NULL, 0)) == 0);
        ringside__v1__free_request__free_unpacked(end, NULL);
    } else {
        NEED(rs_ttrpc_respond_error(writer, call.stream, -RINGSIDE_E_UNIMPLEMENTED, NULL) == 0);
    }
    rs_ttrpc_request_free(request);
}

/* ---- the loop ---- */

struct fake_conn {
    int socket;
    struct rs_ttrpc_reader reader;
    struct rs_ttrpc_writer writer;
};

static void fake_conn_end(struct fake_conn *conn)
{
    rs_ttrpc_reader_finish(&conn->reader);
    rs_ttrpc_writer_finish(&conn->writer);
    close(conn->socket);
    conn->socket = -1;
}

static void fake_serve(struct fake_stage *stage, struct fake_conn *conn)
{
    struct rs_frame frame;

    if (rs_ttrpc_reader_fill(&conn->reader, conn->socket, rs_now_ns()) <= 0) {
        fake_conn_end(conn);
        return;
    }
    while (rs_ttrpc_reader_next(&conn->reader, &frame) > 0)
        fake_answer(stage, &frame, &conn->writer);
    while (rs_ttrpc_writer_flush(&conn->writer, conn->socket) > 0)
        ;
}

static void *fake_loop(void *data)
{
    struct fake_stage *stage = data;
    struct fake_conn conns[FAKE_CONNS];
    struct pollfd polls[FAKE_CONNS + 2];

    for (unsigned i = 0; i < FAKE_CONNS; i++)
        conns[i].socket = -1;
    for (;;) {
        polls[0] = (struct pollfd){.fd = stage->stop_fd, .events = POLLIN};
        polls[1] = (struct pollfd){.fd = stage->listener, .events = POLLIN};
        for (unsigned i = 0; i < FAKE_CONNS; i++)
            polls[2 + i] = (struct pollfd){.fd = conns[i].socket, .events = POLLIN};
        if (poll(polls, FAKE_CONNS + 2, -1) <= 0)
            continue;
        if (polls[0].revents != 0)
            break;
        for (unsigned i = 0; i < FAKE_CONNS; i++) {
            if (conns[i].socket >= 0 && polls[2 + i].revents != 0)
                fake_serve(stage, &conns[i]);
        }
        for (unsigned i = 0; polls[1].revents != 0 && i < FAKE_CONNS; i++) {
            if (conns[i].socket >= 0)
                continue;
            conns[i].socket = accept4(stage->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
            NEED(conns[i].socket >= 0);
            rs_ttrpc_reader_init(&conns[i].reader, 0);
            rs_ttrpc_writer_init(&conns[i].writer, 1 << 20);
            break;
        }
    }
    for (unsigned i = 0; i < FAKE_CONNS; i++) {
        if (conns[i].socket >= 0)
            fake_conn_end(&conns[i]);
    }
    return NULL;
}

static void fake_start(struct fake_stage *stage)
{
    struct sockaddr_un address;
    socklen_t bytes;

    snprintf(stage->path, sizeof stage->path, "%s/%u.sock", fake_dir, stage->index);
    unlink(stage->path);
    NEED(rs_socket_address(&address, stage->path, &bytes) == 0);
    stage->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    NEED(bind(stage->listener, (struct sockaddr *)&address, bytes) == 0);
    NEED(listen(stage->listener, 16) == 0);
    stage->stop_fd = eventfd(0, EFD_CLOEXEC);
    NEED(pthread_create(&stage->thread, NULL, fake_loop, stage) == 0);
}

static void fake_stop(struct fake_stage *stage)
{
    rs_event_write(stage->stop_fd);
    pthread_join(stage->thread, NULL);
    close(stage->listener);
    close(stage->stop_fd);
    unlink(stage->path);
}

static void fake_start_all(const struct rs_class_spec *classes, unsigned class_count, unsigned cells,
                           unsigned depth)
{
    strcpy(fake_dir + strlen(fake_dir) - 6, "XXXXXX");
    NEED(mkdtemp(fake_dir) != NULL);
    memset(fake_stages, 0, sizeof fake_stages);
    for (unsigned i = 0; i < FAKE_STAGES; i++) {
        fake_stages[i].index = i;
        fake_make_ring(&fake_stages[i], classes, class_count, cells, depth);
    }
    fake_connect_stages();
    for (unsigned i = 0; i < FAKE_STAGES; i++)
        fake_start(&fake_stages[i]);
}

static void fake_stop_all(void)
{
    for (unsigned i = 0; i < FAKE_STAGES; i++) {
        struct fake_stage *stage = &fake_stages[i];
        int fds[] = {stage->control_fd, stage->body_fd, stage->event_fd, stage->bell_fd};

        fake_stop(stage);
        rs_ring_unmap(&stage->ring);
        rs_fd_close(fds, 4);
    }
    rmdir(fake_dir);
}

/* Slots in a phase, as the ring says. */
FAKE_UNUSED static unsigned fake_count(unsigned stage, unsigned phase)
{
    struct rs_ring *ring = &fake_stages[stage].ring;
    unsigned count = 0;

    for (uint32_t i = 0; i < ring->layout.slot_count; i++)
        count += rs_state_phase(rs_load_seq_cst(&ring->slots[i].state)) == phase;
    return count;
}

FAKE_UNUSED static uint64_t fake_counter(unsigned stage, unsigned client, unsigned counter)
{
    return rs_load_relaxed(&fake_stages[stage].ring.clients[client].counter[counter]);
}

#endif
