/* SPDX-License-Identifier: Apache-2.0 */
/* Names, directories, socket paths and peer addresses: what they may be, and when two are one. */
#include "config/address.h"

#include <string.h>

#define NAME_EXPECTED \
    "a name of 1 to 63 characters a-z 0-9 . _ - that starts with a letter or digit"
#define DIRECTORY_EXPECTED "an absolute directory of at most 1023 bytes"
#define SOCKET_EXPECTED    "an absolute path of at most 107 bytes (longer ones fit no UNIX socket)"
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
    if (is_name(name))
        return true;
    rs_json_refuse(object, "each key to be " NAME_EXPECTED ", not \"%.80s\"", name);
    return false;
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

void rs_address_read_socket(struct rs_json at, char path[RS_CONFIG_SOCKET_PATH_BYTES])
{
    const char *text = rs_json_text(at, SOCKET_EXPECTED);

    if (text == NULL)
        return;
    if (is_socket_path(text))
        strcpy(path, text);
    else
        rs_json_refuse(at, SOCKET_EXPECTED ", not %zu", strlen(text));
}

void rs_address_read_peer(struct rs_json at, char path[RS_CONFIG_SOCKET_PATH_BYTES])
{
    static const char prefix[] = "unix:";
    const size_t prefix_length = sizeof(prefix) - 1;
    const char *text = rs_json_text(at, PEER_EXPECTED);

    if (text == NULL)
        return;
    if (strncmp(text, prefix, prefix_length) == 0 && is_socket_path(text + prefix_length))
        strcpy(path, text + prefix_length);
    else if (strncmp(text, "tcp:", 4) == 0)
        rs_json_refuse(at,
                       PEER_EXPECTED "; \"tcp:\" is reserved: this release has no remote peers");
    else
        rs_json_refuse(at, PEER_EXPECTED);
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
