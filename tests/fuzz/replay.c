/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over files, so that its corpus is an ordinary test with any compiler. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

#define LARGEST_BYTES (1u << 20)

static int run_file(const char *path)
{
    uint8_t *data = malloc(LARGEST_BYTES);
    FILE *file = fopen(path, "rbe");

    if (data == NULL || file == NULL) {
        perror(path);
        exit(2);
    }
    size_t bytes = fread(data, 1, LARGEST_BYTES, file);
    fclose(file);
    /* Exactly as large as the input, so that a sanitizer sees a read past its end. */
    uint8_t *exact = malloc(bytes > 0 ? bytes : 1);
    if (exact == NULL)
        exit(2);
    memcpy(exact, data, bytes);
    free(data);
    printf("%s: %zu bytes\n", path, bytes);
    fflush(stdout);
    LLVMFuzzerTestOneInput(exact, bytes);
    free(exact);
    return 1;
}

static int run_directory(DIR *directory, const char *path)
{
    char name[4096];
    int count = 0;

    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        count += run_file(name);
    }
    closedir(directory);
    return count;
}

int main(int argc, char **argv)
{
    int count = 0;

    for (int i = 1; i < argc; i++) {
        DIR *directory = opendir(argv[i]);
        count += directory != NULL ? run_directory(directory, argv[i]) : run_file(argv[i]);
    }
    printf("%d inputs\n", count);
    return count > 0 ? 0 : 1;
}
