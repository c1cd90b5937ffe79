/* SPDX-License-Identifier: Apache-2.0 */
/* Names, directories, socket paths and peer addresses: what they may be, and when two are one. */
#include "config/address.h"

#include <string.h>

#define NAME_EXPECTED \
    "a name of 1 to 63 characters a-z 0-9 . _ - that starts with a letter or digit"
#define DIRECTORY_EXPECTED "an absolute directory of at most 1023 bytes"
#define SOCKET_EXPECTED    "an absolute path of at most 107 bytes that does not end in /"
#define PEER_EXPECTED      "\"unix:\" and " SOCKET_EXPECTED

static bool is_name(const char *text)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t length = strspn(text, allowed);

    return length > 0 && length < RS_CONFIG_NAME_BYTES && text[length] == '\0' &&
           strchr("._-", text[0]) == NULL;
}

void rs_address_read_name(struct rs_json at, char name[RS_CONFIG_NAME_BYTES])
{
    const char *text = rs_json_text(at, NAME_EXPECTED);

    if (text == NULL)
        return;
    if (is_name(text))
        strcpy(name, text);
    else
        rs_json_refuse(at, NAME_EXPECTED);
}

bool rs_address_check_key(struct rs_json object, const char *name)
{
    bool good = is_name(name);

    if (!good) {
        object.value = json_string(name);
        rs_json_refuse(object, NAME_EXPECTED);
        json_decref(object.value);
    }
    return good;
}

void rs_address_read_directory(struct rs_json at, char path[RS_CONFIG_DIR_BYTES])
{
    const char *text = rs_json_text(at, DIRECTORY_EXPECTED);

    if (text == NULL)
        return;
    if (text[0] == '/' && strlen(text) < RS_CONFIG_DIR_BYTES)
        strcpy(path, text);
    else
        rs_json_refuse(at, DIRECTORY_EXPECTED);
}

static bool is_socket_path(const char *text)
{
    size_t length = strlen(text);

    return text[0] == '/' && text[length - 1] != '/' && length < RS_CONFIG_SOCKET_PATH_BYTES;
}

/* Reads prefix and a socket path; the path is kept. */
static void read_path(struct rs_json at, const char *prefix, const char *expected, char *path)
{
    const char *text = rs_json_text(at, expected);

    if (text == NULL)
        return;
    if (strncmp(text, prefix, strlen(prefix)) == 0)
        text += strlen(prefix);
    else
        prefix = NULL;
    if (prefix != NULL && is_socket_path(text))
        strcpy(path, text);
    else if (strncmp(text, "tcp:", 4) == 0)
        rs_json_refuse(at, "%s; \"tcp:\" is reserved: this release has no remote peers", expected);
    else if (prefix != NULL && strlen(text) >= RS_CONFIG_SOCKET_PATH_BYTES)
        rs_json_refuse(at, "%s; this path has %zu, and no UNIX socket takes it", expected,
                       strlen(text));
    else
        rs_json_refuse(at, "%s", expected);
}

void rs_address_read_socket(struct rs_json at, char path[RS_CONFIG_SOCKET_PATH_BYTES])
{
    read_path(at, "", SOCKET_EXPECTED, path);
}

void rs_address_read_peer(struct rs_json at, char path[RS_CONFIG_SOCKET_PATH_BYTES])
{
    read_path(at, "unix:", PEER_EXPECTED, path);
}

/* Lexically: a symbolic link may still make two paths one, which only a running stage can see. */
static void normalise(const char *path, char out[RS_CONFIG_SOCKET_PATH_BYTES])
{
    size_t used = 0;

    while (*path != '\0') {
        size_t length = strcspn(path += strspn(path, "/"), "/");

        if (length == 2 && path[0] == '.' && path[1] == '.') {
            while (used > 0 && out[--used] != '/')
                ;
        } else if (length > 0 && !(length == 1 && path[0] == '.')) {
            out[used++] = '/';
            memcpy(out + used, path, length);
            used += length;
        }
        path += length;
    }
    out[used] = '\0';
}

bool rs_address_same_path(const char *left, const char *right)
{
    char plain_left[RS_CONFIG_SOCKET_PATH_BYTES], plain_right[RS_CONFIG_SOCKET_PATH_BYTES];

    normalise(left, plain_left);
    normalise(right, plain_right);
    return strcmp(plain_left, plain_right) == 0;
}
