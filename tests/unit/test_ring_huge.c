/* SPDX-License-Identifier: Apache-2.0 */
/* What a ring is made of: huge pages. */
#include "tests/unit/child_fixture.h"
#include "tests/unit/emulator.h"

static long knob(const char *path, long value)
{
    FILE *file = fopen(path, value < 0 ? "re" : "we");
    long result = -1;

    if (!file)
        return -1;
    if (value >= 0)
        result = fprintf(file, "%ld\n", value) > 0 ? value : -1;
    else if (fscanf(file, "%ld", &result) != 1)
        result = -1;
    if (fclose(file) != 0)
        result = -1;
    return result;
}

#define HUGE_KNOB "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"

/* Runs the body in a child while `pages` further 2 MiB pages exist. */
static void with_huge_pages(long pages, void (*body)(void))
{
    long before = knob(HUGE_KNOB, -1);

    if (before < 0 || knob(HUGE_KNOB, before + pages) < 0 || knob(HUGE_KNOB, -1) < before + pages) {
        if (before >= 0)
            knob(HUGE_KNOB, before);
        print_message("skipped: %ld pages of 2 MiB cannot be allocated here (needs root)\n", pages);
        skip();
    }
    int status = child_status(body);
    knob(HUGE_KNOB, knob(HUGE_KNOB, -1) - pages); /* by difference: others may have changed it meanwhile */
    judge_child(status);
}

static void huge_body(void)
{
    struct stage a;

    private_mounts();
    mount_at("huge", "hugetlbfs", "pagesize=2M");
    drop_lock_capability();
    set_memlock(0);
    configure(&a, "", "\"lock\":\"require\",", LARGE_CLASS);
    CHECK(start(&a) == 0); /* auto: 32 pages are free and 32 are needed */
    CHECK(a.files.page_bytes == 2u << 20 && a.ring.layout.page_bytes == 2u << 20);
    CHECK(strstr(a.files.pages, "2 MiB pages") && strstr(a.files.pages, "1 GiB: "));
    CHECK(strstr(a.files.body_path, "/huge/") && strstr(a.files.lock, "never swapped"));
    memset(a.ring.body, 1, a.ring.layout.body_bytes);
    char body[PATH_MAX];
    strcpy(body, a.files.body_path);
    ring_files_close(&a.files, &a.ring, false);
    CHECK(start(&a) == 0 && a.files.adopted && a.files.page_bytes == 2u << 20);
    CHECK(strcmp(a.files.body_path, body) == 0 && a.ring.body[5] == 1);

    /* A second stage finds none left; it must not fail, and must say why. */
    struct stage b;
    configure(&b, "", "", SMALL_CLASS);
    strcpy(b.config.stage, "second");
    CHECK(start(&b) == 0);
    CHECK(b.files.page_bytes == 4096 && strstr(b.files.pages, "2 MiB: 0 of 1 pages free"));
    ring_files_close(&b.files, &b.ring, true);
    b.config.ring.page_bytes = 2u << 20;
    CHECK(start(&b) == -ENOSPC);
    CHECK(strstr(b.error, "2097152") && strstr(b.error, "0 are available"));
    CHECK(strstr(b.error, "nr_hugepages"));
    b.config.ring.page_bytes = 1u << 30;
    CHECK(start(&b) == -ENOENT);
    CHECK(strstr(b.error, "mount -t hugetlbfs") && strstr(b.error, "1073741824"));
    stop(&a, true);
    CHECK(entries("huge") == 0 && entries("control") == 0);

    /* body_dir may be a hugetlbfs itself; the size is rounded up to its pages. */
    snprintf(b.config.ring.body_dir, sizeof(b.config.ring.body_dir), "%s/huge", base_dir);
    b.config.ring.page_bytes = 0;
    CHECK(start(&b) == 0);
    CHECK(b.ring.layout.body_bytes == 2u << 20 && strstr(b.files.body_path, "/huge/second.body"));
    stop(&b, true);
}

static void huge_pages(void **state)
{
    (void)state;
    skip_if_emulated("cannot map huge pages");
    mkdir(base_dir, 0755);
    with_huge_pages(32, huge_body);
}

static void huge_size_option(void)
{
    struct stage a;

    private_mounts();
    mount_at("huge", "hugetlbfs", "pagesize=2M,size=4M");
    configure(&a, "", "\"pages\":\"2Mi\",", "{\"slot_bytes\":\"2Mi\",\"slots\":3}");
    CHECK(start(&a) == -ENOSPC);
    CHECK(strstr(a.error, "4194304 are available"));
    configure(&a, "", "\"pages\":\"2Mi\",", "{\"slot_bytes\":\"2Mi\",\"slots\":2}");
    CHECK(start(&a) == 0);
    stop(&a, true);
}

static void huge_mount_limit(void **state)
{
    (void)state;
    skip_if_emulated("cannot map huge pages");
    mkdir(base_dir, 0755);
    with_huge_pages(4, huge_size_option);
}

#define CGROUP "/sys/fs/cgroup/unified"
static char cgroup_dir[96];

static int put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t done = fd < 0 ? -1 : write(fd, text, strlen(text));

    if (fd >= 0)
        close(fd);
    return done < 0 ? -1 : 0;
}

static void enter_cgroup(const char *file, const char *value)
{
    char path[160];

    snprintf(path, sizeof(path), "%s/%s", cgroup_dir, file);
    if (put(path, value) < 0)
        SKIP("%s: %s", path, strerror(errno));
    snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup_dir);
    if (put(path, "0") < 0)
        SKIP("%s: %s", path, strerror(errno));
}

/* The pages are there, but the first touch of one would be a SIGBUS. */
static void huge_forbidden(void)
{
    struct stage a;

    private_mounts();
    mount_at("huge", "hugetlbfs", "pagesize=2M");
    enter_cgroup("hugetlb.2MB.max", "0");
    configure(&a, "", "\"pages\":\"2Mi\",", "{\"slot_bytes\":\"2Mi\",\"slots\":2}");
    CHECK(start(&a) == -ENOSPC);
    CHECK(strstr(a.error, "4194304") && strstr(a.error, "hugetlb cgroup controller"));
    CHECK(entries("huge") == 0 && entries("control") == 0);
    a.config.ring.page_bytes = 0; /* auto does without, and says why */
    CHECK(start(&a) == 0);
    CHECK(a.files.page_bytes == 4096 && strstr(a.files.pages, "2 MiB: "));
    stop(&a, true);
}

static void huge_reservation_forbidden(void)
{
    struct stage a;

    private_mounts();
    mount_at("huge", "hugetlbfs", "pagesize=2M");
    enter_cgroup("hugetlb.2MB.rsvd.max", "0");
    configure(&a, "", "\"pages\":\"2Mi\",", "{\"slot_bytes\":\"2Mi\",\"slots\":2}");
    CHECK(start(&a) == -ENOSPC);
    CHECK(strstr(a.error, "hugetlb cgroup controller"));
    CHECK(entries("huge") == 0 && entries("control") == 0);
}

static void huge_cgroup(void **state)
{
    (void)state;
    skip_if_emulated("cannot map huge pages");
    char line[512] = "";
    FILE *file = fopen(CGROUP "/cgroup.subtree_control", "re");

    if (!file) {
        print_message("skipped: no cgroup v2 at " CGROUP "\n");
        skip();
    }
    bool was_on = fgets(line, sizeof(line), file) && strstr(line, "hugetlb");
    fclose(file);
    snprintf(cgroup_dir, sizeof(cgroup_dir), CGROUP "/ringside-test-%d", (int)getpid());
    if (put(CGROUP "/cgroup.subtree_control", "+hugetlb") < 0 || mkdir(cgroup_dir, 0755) < 0) {
        print_message("skipped: the hugetlb controller cannot be turned on (needs root)\n");
        skip();
    }
    long before = knob(HUGE_KNOB, -1);
    knob(HUGE_KNOB, before + 4);
    void (*bodies[])(void) = {huge_forbidden, huge_reservation_forbidden};
    int statuses[2];
    mkdir(base_dir, 0755);
    for (int i = 0; i < 2; i++)
        statuses[i] = child_status(bodies[i]);
    knob(HUGE_KNOB, before);
    for (int i = 0; i < 100 && rmdir(cgroup_dir) < 0; i++)
        usleep(10000);
    if (!was_on)
        put(CGROUP "/cgroup.subtree_control", "-hugetlb");
    for (int i = 0; i < 2; i++)
        judge_child(statuses[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(huge_pages),
        CASE(huge_mount_limit),
        CASE(huge_cgroup),
    };

    return run_ring_tests(tests, sizeof(tests) / sizeof(tests[0]));
}
