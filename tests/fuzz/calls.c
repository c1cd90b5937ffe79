/* SPDX-License-Identifier: Apache-2.0 */
/* Calls with any content to a whole sidecar that runs in this process: each is answered, and it
 * serves on. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "config/config.h"
#include "proto/ttrpc.h"
#include "proxy/proxy.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/types.h"

#define CONFIG                                                                                   \
    "{\"stage\":\"fuzz\",\"socket\":{\"path\":\"%s/sock\"},\"inbox\":{\"cells\":8,\"depth\":4}," \
    "\"ring\":{\"control_dir\":\"%s\",\"body_dir\":\"%s\",\"pages\":\"4Ki\",\"lock\":\"off\","   \
    "\"classes\":[{\"slot_bytes\":\"4Ki\",\"slots\":6}]},\"log\":{\"level\":\"error\"},"         \
    "\"routes\":{\"self\":{\"to\":[\"unix:%s/sock\"],\"when_full\":\"error\"}}}"

#define BUILT_BYTES (255u * 4) /* said of a payload: it is one that makes sense */

static char base[48];

static void *serve(void *argument)
{
    CHECK(proxy_run(argument) >= 0);
    return NULL;
}

static void remove_files(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf '%s'", base);
    CHECK(system(command) == 0);
}

static int connect_to(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s/sock", base);
    for (int i = 0; connect(fd, (struct sockaddr *)&address, sizeof address) < 0; i++) {
        CHECK(i < 10000);
        usleep(1000);
    }
    return fd;
}

static void begin(void)
{
    static struct rs_config config;
    static pthread_t thread; /* static: it runs as long as the process */
    char text[1024], error[RS_CONFIG_ERROR_BYTES];

    snprintf(base, sizeof base, "/dev/shm/ringside-fuzz-%d", (int)getpid());
    CHECK(mkdir(base, 0700) == 0);
    int length = snprintf(text, sizeof text, CONFIG, base, base, base, base);
    CHECK(rs_config_parse(&config, text, (size_t)length, "fuzz", error, sizeof error) == 0);
    atexit(remove_files);
    CHECK(pthread_create(&thread, NULL, serve, &config) == 0);
}

/* What the sidecar gave last on this connection: names in requests that are more than noise. */
static struct {
    Ringside__V1__Lease loan, held;
} leases;

static void keep(const char *method, const struct rs_frame *answer)
{
    const ProtobufCMessageDescriptor *type = strcmp(method, "Loan") == 0
                                                 ? &ringside__v1__loan_response__descriptor
                                                 : &ringside__v1__receive_response__descriptor;
    ProtobufCMessage *message = NULL;
    char text[64];

    if ((strcmp(method, "Loan") != 0 && strcmp(method, "Receive") != 0) ||
        rs_ttrpc_response_decode(answer, type, &message, text, sizeof text) < 0)
        return;
    if (strcmp(method, "Loan") == 0)
        leases.loan = *((Ringside__V1__LoanResponse *)message)->lease;
    else
        leases.held = *((Ringside__V1__ReceiveResponse *)message)->message->lease;
    /* Of the own ring, as everything here: no incarnation. */
    leases.loan.ring.len = leases.held.ring.len = 0;
    protobuf_c_message_free_unpacked(message, NULL);
}

/* A request of that method about what was given before, with the rest from the input. Bytes of `payload`. */
static size_t build(const char *method, struct input *input, uint8_t payload[1024])
{
    Ringside__V1__Tensor tensor = RINGSIDE__V1__TENSOR__INIT, *tensors[1] = {&tensor};
    Ringside__V1__LoanRequest loan = RINGSIDE__V1__LOAN_REQUEST__INIT;
    Ringside__V1__CallRequest call = RINGSIDE__V1__CALL_REQUEST__INIT;
    Ringside__V1__ReplyRequest reply = RINGSIDE__V1__REPLY_REQUEST__INIT;
    Ringside__V1__LeaseRequest lease = RINGSIDE__V1__LEASE_REQUEST__INIT;
    unsigned choice = (unsigned)next(input, 1);
    int64_t shape[1] = {choice};
    char text[17] = "";

    next_bytes(input, (uint8_t *)text, choice % 16);
    if (strcmp(method, "Loan") == 0) {
        tensor.dtype = RINGSIDE__V1__DTYPE__UINT8;
        tensor.n_shape = 1;
        tensor.shape = shape;
        loan.n_tensors = 1;
        loan.tensors = tensors;
        loan.metadata_bytes = 64;
        return protobuf_c_message_pack(&loan.base, payload);
    }
    if (strncmp(method, "Call", 4) == 0) {
        call.lease = &leases.loan;
        call.route = "self";
        call.method = text;
        call.request_id = strcmp(method, "Call") == 0 ? choice >> 6 : 1 + choice % 3;
        call.credits = strcmp(method, "Call") == 0 ? 0 : choice >> 2;
        return protobuf_c_message_pack(&call.base, payload);
    }
    if (strcmp(method, "Reply") == 0) {
        reply.request = &leases.held;
        reply.reply = choice & 1 ? &leases.loan : NULL;
        reply.status = choice & 1 ? 0 : choice;
        reply.more = (choice & 2) != 0;
        reply.text = text;
        return protobuf_c_message_pack(&reply.base, payload);
    }
    lease.lease = choice & 1 ? &leases.loan : &leases.held;
    return strcmp(method, "Receive") == 0 ? 0 : protobuf_c_message_pack(&lease.base, payload);
}

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* Sends a request whose payload is any bytes, and waits for its answer or the end of the
 * connection; not for that of one that waits for us. */
static bool call(int fd, uint32_t stream, const ProtobufCServiceDescriptor *service,
                 unsigned method, const uint8_t *payload, size_t bytes, bool waits)
{
    Ringside__Ttrpc__V1__Request request = RINGSIDE__TTRPC__V1__REQUEST__INIT;
    uint8_t frame[RS_FRAME_HEADER_BYTES + 4096];
    struct rs_ttrpc_reader reader;
    struct rs_frame answer;
    int rc = 0;

    request.service =
        (char *)(service == services[0] ? "ringside.v1.Control" : "ringside.peer.v1.Peer");
    request.method = (char *)service->methods[method].name;
    request.timeout_nano = waits ? 100000 : 50000000;
    request.payload = (ProtobufCBinaryData){bytes, (uint8_t *)payload};
    bool streams = strcmp(request.method, "ReceiveStream") == 0 ||
                   strcmp(request.method, "CallStream") == 0;
    struct rs_frame_header header = {
        .length = (uint32_t)ringside__ttrpc__v1__request__get_packed_size(&request),
        .stream = stream,
        .type = RS_FRAME_REQUEST,
        .flags = streams ? RS_FRAME_REMOTE_CLOSED : 0};
    CHECK(header.length <= sizeof frame - RS_FRAME_HEADER_BYTES);
    rs_frame_header_encode(&header, frame);
    ringside__ttrpc__v1__request__pack(&request, frame + RS_FRAME_HEADER_BYTES);
    if (TEMP_FAILURE_RETRY(send(fd, frame, RS_FRAME_HEADER_BYTES + header.length, MSG_NOSIGNAL)) < 0)
        return false;
    if (!waits)
        return true;
    rs_ttrpc_reader_init(&reader, RS_FRAME_MAX_BYTES);
    while (rc == 0) {
        uint8_t byte;
        /* The fuzzer's own timer interrupts. */
        if (TEMP_FAILURE_RETRY(recv(fd, &byte, 1, MSG_PEEK)) <= 0 ||
            rs_ttrpc_reader_fill(&reader, fd, 1) <= 0)
            break;
        while ((rc = rs_ttrpc_reader_next(&reader, &answer)) == 1 && answer.header.stream != stream)
            ;
    }
    if (rc == 1 && answer.header.type == RS_FRAME_RESPONSE && service == services[0])
        keep(request.method, &answer);
    rs_ttrpc_reader_finish(&reader);
    return rc == 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    uint8_t payload[1024];
    uint32_t stream = 1;
    bool alive = true;

    if (base[0] == '\0')
        begin();
    ringside__v1__lease__init(&leases.loan);
    ringside__v1__lease__init(&leases.held);
    int fd = connect_to();
    for (; alive && stream < 64 && input.left > 0; stream += 2) {
        unsigned method = (unsigned)next(&input, 1);
        const ProtobufCServiceDescriptor *service = services[method % 8 == 7];
        size_t bytes = (size_t)next(&input, 1) * 4;
        if (bytes != BUILT_BYTES)
            bytes = next_bytes(&input, payload, bytes);

        method = method / 8 % service->n_methods;
        const char *name = service->methods[method].name;
        bool built = bytes == BUILT_BYTES && service == services[0];
        if (built)
            bytes = build(name, &input, payload);
        if (strcmp(name, "Drain") != 0) /* afterwards it would refuse all */
            alive = call(fd, stream, service, method, payload, bytes,
                         !built || !starts_with(name, "Call"));
    }
    close(fd);
    fd = connect_to();
    CHECK(call(fd, 1, services[0], 13, payload, 0, true)); /* Status */
    close(fd);
    return 0;
}
