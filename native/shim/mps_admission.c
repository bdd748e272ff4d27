/*
 * Admission to the multi-process service, one program at a time.
 *
 * A server of that service gives its present settings to the next client that joins, so the pool sets them for
 * one program at a time: the one that connects to the socket named by CALABASH_MPS_DOOR. The kernel tells the
 * pool which process that is. A program that does not connect, or is not admitted in time, starts nevertheless,
 * and gets the smallest share of all.
 */
#define _GNU_SOURCE
#include "shim/mps_admission.h"

#include "shim/real.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE_S 20

int cb_mps_admission_enter(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = PATIENCE_S};
    char word[16];
    int saved = errno, door = -1;
    const char *path = getenv("CALABASH_MPS_DOOR");
    if (path == NULL || strlen(path) >= sizeof(address.sun_path)) return -1;
    strcpy(address.sun_path, path);
    door = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (door >= 0) {
        setsockopt(door, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
        ssize_t got = -1;
        if (connect(door, (struct sockaddr *)&address, sizeof(address)) == 0) {
            do
                got = recv(door, word, sizeof(word), 0);
            while (got < 0 && errno == EINTR);
        }
        if (got <= 0) {
            close(door);
            door = -1;
        }
    }
    if (door < 0)
        cb_say("cannot connect to the admission socket of the multi-process service, %s: this program gets "
               "the smallest share",
               path);
    errno = saved;
    return door;
}

void cb_mps_admission_leave(int door, CUresult result)
{
    char text[32];
    int count = 0, saved = errno;
    if (door < 0) return;
    if (result != CUDA_SUCCESS ||
        CB_REAL(cuDeviceGetAttribute)(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0) != CUDA_SUCCESS)
        count = 0;
    int length = snprintf(text, sizeof(text), "sms %d", count);
    send(door, text, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT);
    close(door);
    errno = saved;
}
