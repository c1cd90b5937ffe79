/* SPDX-License-Identifier: Apache-2.0 */
/* The sidecar's life: files, loop, drain, end. */
#include "proxy/proxy.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "proto/err.h"
#include "proxy/control.h"
#include "proxy/exit_code.h"
#include "proxy/mend.h"
#include "proxy/notify.h"
#include "proxy/peers.h"
#include "proxy/tables.h"
#include "proxy/watch.h"

#define DRAIN_LOOK_MS          50
#define DESCRIPTORS_OF_OURS    1024 /* rings of peers, connections without a session, files */
#define DESCRIPTORS_PER_CLIENT 8    /* connection, pidfd, epoll and timer of a wait */

struct drain_call {
    struct drain_call *next;
    struct proxy *proxy;
    struct conn_call *call;
    int64_t deadline_ns;
};

void proxy_dispatch(struct conn_call *call)
{
    if (strcmp(call->service, "ringside.v1.Control") == 0 && !conn_is_outgoing(call->conn))
        control_dispatch(call);
    else if (strcmp(call->service, "ringside.peer.v1.Peer") == 0 && !call->streaming)
        peers_dispatch(call);
    else
        conn_reply_error(call, -RINGSIDE_E_UNIMPLEMENTED, "no service %.128s here%s", call->service,
                         call->streaming ? " that streams" : "");
}

/* ---- the end ---- */

/* Of the stage itself, or of others that read its messages. */
static bool has_live_client(const struct proxy *proxy, bool foreign)
{
    for (uint32_t i = 1; i < clients_end(proxy); i++) {
        enum client_phase phase = clients_phase(proxy, (uint16_t)i);
        if ((phase == CLIENT_ATTACHED || phase == CLIENT_DETACHED) &&
            clients_is_foreign(proxy, (uint16_t)i) == foreign)
            return true;
    }
    return false;
}

static void decide_files(struct proxy *proxy)
{
    const struct census *load = census_now(proxy);

    clients_tick(proxy);
    bool used = load->waiting + load->loaned + load->leased + load->reading + load->kept > 0;
    bool live = has_live_client(proxy, false);
    bool judged = proxy->phase != PROXY_STARTING || !proxy->files.adopted;
    proxy->remove_files = proxy->damaged || (!used && !live && judged);
    if (!proxy->remove_files)
        log_info(&proxy->log, "ring", 0,
                 "the ring stays for the next sidecar: %u queued, %u loaned, %u held, %u read, %u "
                 "kept by ticket, %s client alive (%s, %s)",
                 load->waiting, load->loaned, load->leased, load->reading, load->kept,
                 live ? "a" : "no", proxy->files.control_path, proxy->files.body_path);
}

static void begin_close(struct proxy *proxy)
{
    if (proxy->phase == PROXY_CLOSING)
        return;
    if (proxy->opened && proxy->clients != NULL)
        decide_files(proxy);
    else
        proxy->remove_files = proxy->opened && !proxy->files.adopted;
    proxy->phase = PROXY_CLOSING;
    conn_listen_close(proxy);
    peers_close(proxy);
    conn_close_all(proxy);
    control_close(proxy);
    watch_close(proxy);
    if (proxy->clients != NULL)
        clients_close(proxy);
    mend_close(proxy);
    census_close(proxy);
    uv_close((uv_handle_t *)&proxy->terminate, NULL);
    uv_close((uv_handle_t *)&proxy->interrupt, NULL);
    uv_close((uv_handle_t *)&proxy->drain_timer, NULL);
}

static void release(struct proxy *proxy)
{
    if (proxy->opened) {
        peers_destroy(proxy);
        control_destroy(proxy);
        watch_destroy(proxy);
        mend_destroy(proxy);
        census_destroy(proxy);
        clients_destroy(proxy, proxy->remove_files);
        routes_finish(&proxy->routes);
        tables_destroy(proxy);
        rs_repair_finish(&proxy->repair);
        ring_files_close(&proxy->files, &proxy->ring, proxy->remove_files);
    }
    if (proxy->inbox_event >= 0)
        close(proxy->inbox_event);
    if (proxy->bell_event >= 0)
        close(proxy->bell_event);
    free(proxy->listener);
    rs_config_finish(&proxy->config);
}

/* ---- drain ---- */

static bool is_drained(const struct proxy *proxy, const struct census *load)
{
    return load->waiting + load->loaned + load->leased + load->reading + load->arrived == 0 &&
           !mend_busy(proxy);
}

/* What is in the own inbox is for the stage's own workers, the rest for those of others. */
static bool somebody_may_take(const struct proxy *proxy, const struct census *load)
{
    if (has_live_client(proxy, false) || mend_busy(proxy))
        return true;
    return load->waiting + load->leased > load->waiting_here &&
           (has_live_client(proxy, true) || peers_linked(proxy));
}

static void forget_drain(struct drain_call *drain)
{
    struct drain_call **link = &drain->proxy->drains;

    while (*link != drain)
        link = &(*link)->next;
    *link = drain->next;
    free(drain);
}

static void on_drain_cancelled(struct conn_call *call)
{
    forget_drain(call->data);
}

static void answer_drains(struct proxy *proxy, bool drained, bool hopeless,
                          const struct census *load)
{
    Ringside__V1__Empty response = RINGSIDE__V1__EMPTY__INIT;
    int64_t now = (int64_t)uv_hrtime();

    for (struct drain_call *drain = proxy->drains, *next; drain != NULL; drain = next) {
        next = drain->next;
        if (!drained && !hopeless && now < drain->deadline_ns)
            continue;
        if (drained)
            conn_reply(drain->call, &response.base, NULL, 0);
        else
            conn_reply_error(drain->call, hopeless ? -RINGSIDE_E_UNAVAILABLE : -RINGSIDE_E_TIMEOUT,
                             "%s: still %u queued, %u loaned, %u held, %u read, %u of other stages",
                             hopeless ? "nobody is there to take it" : "not empty in time",
                             load->waiting, load->loaned, load->leased, load->reading,
                             load->arrived);
        forget_drain(drain);
    }
}

static void on_drain_census(struct proxy *proxy, const struct census *now, void *data)
{
    const struct census load = *now; /* closing counts again */
    bool drained = proxy->damaged || is_drained(proxy, &load);
    bool hopeless = !drained && !somebody_may_take(proxy, &load);

    (void)data;
    answer_drains(proxy, drained, hopeless, &load);
    if (!proxy->leaving) {
        if (proxy->drains == NULL)
            uv_timer_stop(&proxy->drain_timer);
    } else if (drained || hopeless || (int64_t)uv_hrtime() >= proxy->drain_deadline_ns) {
        if (!drained)
            log_warn(&proxy->log, "drain", 0,
                     "%s: %u queued, %u loaned, %u held, %u read, %u of other stages",
                     hopeless ? "nobody is there to take what is left"
                              : "not empty after drain_timeout_ms",
                     load.waiting, load.loaned, load.leased, load.reading, load.arrived);
        begin_close(proxy);
    }
}

static void on_drain_timer(uv_timer_t *timer)
{
    struct proxy *proxy = timer->data;

    if (proxy->drain_census.done == NULL)
        census_ask(proxy, &proxy->drain_census, on_drain_census, NULL);
}

static void start_draining(struct proxy *proxy, const char *why)
{
    if (proxy->phase == PROXY_SERVING) {
        proxy->phase = PROXY_DRAINING;
        rs_store_release(&proxy->ring.shared->draining, 1);
        log_info(&proxy->log, "drain", 0, "draining (%s): no new attaches and loans", why);
    }
    if (!uv_is_active((uv_handle_t *)&proxy->drain_timer))
        uv_timer_start(&proxy->drain_timer, on_drain_timer, 0, DRAIN_LOOK_MS);
}

void proxy_drain_for(struct proxy *proxy, struct conn_call *call, uint64_t timeout_ms)
{
    struct drain_call *drain = calloc(1, sizeof *drain);

    if (drain == NULL) {
        conn_reply_error(call, -ENOMEM, "out of memory");
        return;
    }
    if (timeout_ms > INT64_MAX / 2000000)
        timeout_ms = INT64_MAX / 2000000;
    *drain = (struct drain_call){.next = proxy->drains,
                                 .proxy = proxy,
                                 .call = call,
                                 .deadline_ns = (int64_t)(uv_hrtime() + timeout_ms * 1000000)};
    proxy->drains = drain;
    call->data = drain;
    call->cancelled = on_drain_cancelled;
    start_draining(proxy, "asked by a client");
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct proxy *proxy = handle->data;

    if (proxy->leaving) {
        log_info(&proxy->log, "drain", 0, "second signal: ending now");
        if (!proxy->opened) {
            log_finish(&proxy->log);
            _exit(
                EXIT_CODE_FAILURE); /* the ring's pages are still being made: nobody has seen it */
        }
        begin_close(proxy);
        return;
    }
    proxy->leaving = true;
    notify("STOPPING=1");
    if (proxy->phase == PROXY_STARTING)
        return; /* ends when the files are there */
    uint64_t timeout_ms = proxy->config.drain_timeout_ms;
    if (timeout_ms > INT64_MAX / 2000000)
        timeout_ms = INT64_MAX / 2000000;
    proxy->drain_deadline_ns = (int64_t)(uv_hrtime() + timeout_ms * 1000000);
    start_draining(proxy, number == SIGTERM ? "SIGTERM" : "SIGINT");
}

/* ---- the beginning ---- */

static void ignore_poll(uv_poll_t *poll, int status, int events)
{
    (void)poll, (void)status, (void)events;
}

/* libuv ends the process when its table of watchers, by descriptor, cannot grow: it grows now, while
 * memory is there, to what this sidecar may ever open. */
static void grow_watchers(struct proxy *proxy)
{
    struct rlimit limit;
    rlim_t most = DESCRIPTORS_OF_OURS + DESCRIPTORS_PER_CLIENT * (rlim_t)proxy->config.clients.max;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    int fd = fcntl(proxy->bell_event, F_DUPFD_CLOEXEC,
                   (int)(most < limit.rlim_cur ? most : limit.rlim_cur) - 1);
    if (fd < 0)
        return;
    if (uv_poll_init(&proxy->loop, &proxy->highest, fd) == 0) {
        uv_poll_start(&proxy->highest, UV_READABLE, ignore_poll);
        uv_close((uv_handle_t *)&proxy->highest, NULL);
    }
    close(fd);
}

static int open_events(struct proxy *proxy)
{
    proxy->inbox_event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    proxy->bell_event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (proxy->inbox_event < 0 || proxy->bell_event < 0)
        return -errno;
    grow_watchers(proxy);
    return 0;
}

static int open_ring(struct proxy *proxy)
{
    int rc = rs_repair_init(&proxy->repair, &proxy->ring);

    if (rc < 0)
        return rc;
    proxy->ring.bell_fd = proxy->bell_event;
    rs_inbox_init(&proxy->inbox, &proxy->ring, proxy->inbox_event);
    proxy->repair.own = &proxy->inbox;
    if (proxy->files.adopted)
        rs_repair_adopt(&proxy->repair);
    rs_store_release(&proxy->ring.shared->draining, 0);
    rc = routes_init(&proxy->routes, &proxy->config, &proxy->ring);
    if (rc < 0)
        return rc;
    rs_inbox_admit(&proxy->inbox, 0, &proxy->ring, proxy->routes.self, 0);
    if (proxy->routes.self != RS_NO_DESTINATION) {
        proxy->repair.inboxes[proxy->routes.self] = &proxy->inbox;
        proxy->repair.ring_number[proxy->routes.self] = 0;
    }
    return 0;
}

static int open_parts(struct proxy *proxy)
{
    static const struct {
        int (*open)(struct proxy *proxy);
        const char *what;
    } parts[] = {
        {open_events, "eventfds"}, {open_ring, "ring"},     {tables_open, "tables"},
        {mend_open, "repair"},     {census_open, "census"}, {control_open, "control"},
        {clients_open, "clients"}, {watch_open, "watch"},   {peers_open, "peers"},
        {conn_listen, "socket"},
    };

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int rc = parts[i].open(proxy);
        if (rc < 0) {
            log_error(&proxy->log, "proxy", 0, "cannot start the %s: %s", parts[i].what,
                      rs_strerror(rc));
            return rc;
        }
    }
    return 0;
}

static void report_files(struct proxy *proxy)
{
    const struct ring_files *files = &proxy->files;

    if (files->found[0] != '\0')
        log_warn(&proxy->log, "ring", 0, "%s", files->found);
    log_write(&proxy->log, files->numa_degraded ? RS_CONFIG_WARN : RS_CONFIG_DEBUG, "ring", 0,
              "numa: %s", files->numa);
    log_write(&proxy->log, files->lock_degraded ? RS_CONFIG_WARN : RS_CONFIG_DEBUG, "ring", 0,
              "lock: %s", files->lock);
    log_info(&proxy->log, "ring", 0, "%s ring of %u slots, %llu bytes, pages: %s",
             files->adopted ? "took over the" : "made a", proxy->ring.layout.slot_count,
             (unsigned long long)proxy->ring.layout.body_bytes, files->pages);
}

static void on_opened(uv_work_t *work, int status)
{
    struct proxy *proxy = work->data;
    int rc = status < 0 ? status : proxy->open_result;

    if (rc < 0) {
        log_error(&proxy->log, "ring", 0, "%s",
                  proxy->open_error[0] != '\0' ? proxy->open_error : rs_strerror(rc));
        proxy->exit_code = rc == -RINGSIDE_E_IN_USE ? EXIT_CODE_IN_USE : EXIT_CODE_FAILURE;
        begin_close(proxy);
        return;
    }
    proxy->opened = true;
    if (!proxy->leaving) {
        report_files(proxy);
        rc = open_parts(proxy);
    }
    if (rc < 0 || proxy->leaving) {
        proxy->exit_code = rc == -RINGSIDE_E_IN_USE ? EXIT_CODE_IN_USE
                           : rc < 0                 ? EXIT_CODE_FAILURE
                                                    : EXIT_CODE_OK;
        begin_close(proxy);
        return;
    }
    proxy->phase = PROXY_SERVING;
    mend_audit(proxy);
    log_info(&proxy->log, "proxy", 0, "stage %s serves unix:%s (pid %d, sidecar id %u, epoch %u)",
             proxy->config.stage, proxy->config.socket.path, (int)getpid(),
             proxy->ring.layout.sidecar_id, rs_load_relaxed(&proxy->ring.layout.epoch));
    rc = notify("READY=1");
    if (rc < 0)
        log_warn(&proxy->log, "proxy", 0, "cannot tell NOTIFY_SOCKET that we are ready: %s",
                 rs_strerror(rc));
}

static void do_open(uv_work_t *work)
{
    struct proxy *proxy = work->data;

    proxy->open_result = ring_files_open(&proxy->files, &proxy->ring, &proxy->config,
                                         proxy->open_error, sizeof proxy->open_error);
}

static int start(struct proxy *proxy)
{
    uv_signal_init(&proxy->loop, &proxy->terminate);
    uv_signal_init(&proxy->loop, &proxy->interrupt);
    uv_timer_init(&proxy->loop, &proxy->drain_timer);
    proxy->terminate.data = proxy->interrupt.data = proxy->drain_timer.data = proxy;
    uv_signal_start(&proxy->terminate, on_signal, SIGTERM);
    uv_signal_start(&proxy->interrupt, on_signal, SIGINT);
    int rc = conn_claim(proxy);
    if (rc < 0)
        return rc;
    proxy->opening.data = proxy;
    return uv_queue_work(&proxy->loop, &proxy->opening, do_open, on_opened);
}

int proxy_run(struct rs_config *config)
{
    struct proxy *proxy = calloc(1, sizeof *proxy);

    if (proxy == NULL) {
        rs_config_finish(config);
        return EXIT_CODE_FAILURE;
    }
    signal(SIGPIPE, SIG_IGN);
    log_init(&proxy->log, STDERR_FILENO);
    log_configure(&proxy->log, config);
    proxy->config = *config;
    proxy->inbox_event = proxy->bell_event = -1;
    proxy->files.control_fd = proxy->files.body_fd = -1;
    proxy->started_ns = (int64_t)uv_hrtime();
    int rc = uv_loop_init(&proxy->loop);
    if (rc == 0) {
        rc = start(proxy);
        if (rc < 0) {
            proxy->exit_code = rc == -RINGSIDE_E_IN_USE ? EXIT_CODE_IN_USE : EXIT_CODE_FAILURE;
            begin_close(proxy);
        }
        uv_run(&proxy->loop, UV_RUN_DEFAULT);
        release(proxy);
        rc = uv_loop_close(&proxy->loop);
    }
    if (rc < 0) {
        log_error(&proxy->log, "proxy", 0, "the event loop did not end well: %s", uv_strerror(rc));
        proxy->exit_code = EXIT_CODE_FAILURE;
    }
    int exit_code = proxy->exit_code;
    if (exit_code == EXIT_CODE_OK)
        log_info(&proxy->log, "proxy", 0, "ended");
    log_finish(&proxy->log);
    free(proxy);
    return exit_code;
}
