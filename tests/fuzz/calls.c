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

/* Sends a request whose payload is any bytes, and waits for its answer or the end of the
 * connection. */
static bool call(int fd, uint32_t stream, const ProtobufCServiceDescriptor *service,
                 unsigned method, const uint8_t *payload, size_t bytes)
{
    Ringside__Ttrpc__V1__Request request = RINGSIDE__TTRPC__V1__REQUEST__INIT;
    uint8_t frame[RS_FRAME_HEADER_BYTES + 4096];
    struct rs_ttrpc_reader reader;
    struct rs_frame answer;
    int rc = 0;

    request.service =
        (char *)(service == services[0] ? "ringside.v1.Control" : "ringside.peer.v1.Peer");
    request.method = (char *)service->methods[method].name;
    request.timeout_nano = 100000;
    request.payload = (ProtobufCBinaryData){bytes, (uint8_t *)payload};
    struct rs_frame_header header = {
        .length = (uint32_t)ringside__ttrpc__v1__request__get_packed_size(&request),
        .stream = stream,
        .type = RS_FRAME_REQUEST,
        .flags = strcmp(request.method, "ReceiveStream") == 0 ? RS_FRAME_REMOTE_CLOSED : 0};
    CHECK(header.length <= sizeof frame - RS_FRAME_HEADER_BYTES);
    rs_frame_header_encode(&header, frame);
    ringside__ttrpc__v1__request__pack(&request, frame + RS_FRAME_HEADER_BYTES);
    if (TEMP_FAILURE_RETRY(send(fd, frame, RS_FRAME_HEADER_BYTES + header.length, MSG_NOSIGNAL)) < 0)
        return false;
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
    int fd = connect_to();
    for (; alive && stream < 64 && input.left > 0; stream += 2) {
        unsigned method = (unsigned)next(&input, 1);
        const ProtobufCServiceDescriptor *service = services[method % 8 == 7];
        size_t bytes = next_bytes(&input, payload, (size_t)next(&input, 1) * 4);

        method = method / 8 % service->n_methods;
        if (strcmp(service->methods[method].name, "Drain") !=
            0) /* afterwards it would refuse all */
            alive = call(fd, stream, service, method, payload, bytes);
    }
    close(fd);
    fd = connect_to();
    CHECK(call(fd, 1, services[0], 13, payload, 0)); /* Status */
    close(fd);
    return 0;
}
