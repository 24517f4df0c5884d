/* HTTP traffic on one core, for tests and benchmarks of the live capture.
 *
 *   traffic serve PORT EVERY WORK
 *       Answers every request on 127.0.0.1: with one small JSON body, or each EVERYth one with a stream of 24 chunks, each
 *       a segment of its own; 0: none. Before it answers it computes for so many microseconds of its core's time, as
 *       measured once at its start: the same number of steps each time. PORT 0 is any free one, printed. Until SIGTERM.
 *
 *   traffic send PORT RATE SECONDS CONNECTIONS COUNTERS TEMPLATE
 *       Sends requests over keep-alive connections, one in flight on each: RATE a second, evenly, or as fast as answers
 *       come if RATE is 0. A request's body is TEMPLATE with its `########` replaced by the request's number. COUNTERS is
 *       a file of two 64-bit numbers, sent and answered, kept up to date. Prints both, and the seconds that it took.
 *
 * Both have one thread. A request that is due while no connection is free waits for the next that is.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_EVENTS = 256, ROOM = 1 << 16, MOST_FILES = 4096, CHUNKS = 24 };

struct peer {
    int fd;
    size_t have; /* bytes of `data` */
    char data[ROOM];
};

static struct peer *peers[MOST_FILES];
static int poller;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static struct peer *meet(int fd) {
    if (fd >= MOST_FILES) {
        fprintf(stderr, "too many connections\n");
        exit(1);
    }
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    struct peer *peer = malloc(sizeof *peer);
    if (!peer) fail("malloc");
    peer->fd = fd;
    peer->have = 0;
    peers[fd] = peer;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl");
    return peer;
}

static void part(struct peer *peer) {
    close(peer->fd);
    peers[peer->fd] = NULL;
    free(peer);
}

/* All of it: what does not fit into the socket's buffer waits for room. */
static void say(int fd, const char *data, size_t length) {
    while (length) {
        ssize_t sent = send(fd, data, length, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) return;
        if (sent > 0) data += sent, length -= sent;
    }
}

/* Length of the first whole message in `data`, 0 if there is none yet. Ends by Content-Length or, if chunked, by its
 * last chunk; `data` is a string. */
static size_t whole(const char *data, size_t have) {
    const char *body = strstr(data, "\r\n\r\n");
    if (!body) return 0;
    body += 4;
    const char *length = strcasestr(data, "content-length:");
    if (length && length < body) {
        size_t wanted = body - data + strtoul(length + 15, NULL, 10);
        return have >= wanted ? wanted : 0;
    }
    if (have >= 5 && !memcmp(data + have - 5, "0\r\n\r\n", 5)) return have;
    return 0;
}

/* Reads what there is; how many whole messages that were, -1 at the connection's end. */
static int hear(struct peer *peer) {
    ssize_t got = recv(peer->fd, peer->data + peer->have, ROOM - 1 - peer->have, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return -1;
    if (got < 0) return 0;
    peer->have += got;
    int messages = 0;
    size_t length;
    while (peer->data[peer->have] = 0, (length = whole(peer->data, peer->have))) {
        memmove(peer->data, peer->data + length, peer->have - length);
        peer->have -= length;
        messages++;
    }
    return messages;
}

/* --- the server ------------------------------------------------------------------------------------------------- */

static const char ANSWER[] =
    "{\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"yes\"},\"finish_reason\":\"stop\"}],"
    "\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":1}}";
static const char HEAD[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
static const char CHUNK[] = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n";
static const char LAST[] =
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],"
    "\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":24}}\n\ndata: [DONE]\n\n";

static volatile uint64_t chewed;
static long steps;

static void chew(long count) {
    for (long i = 0; i < count; i++) chewed = chewed * 6364136223846793005u + 1442695040888963407u;
}

/* Steps that take so many microseconds: the fastest of some tries, in which nobody else had the core. */
static long calibrated(double wanted_us) {
    double best = 1;
    for (int i = 0; i < 50; i++) {
        double begin = now();
        chew(100000);
        double took = now() - begin;
        if (took < best) best = took;
    }
    return wanted_us * 1e-6 / best * 100000;
}

static void answer(int fd, int every) {
    static unsigned requests;
    char chunk[512];
    chew(steps);
    if (!every || ++requests % every) {
        int length = snprintf(chunk, sizeof chunk,
                              "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                              strlen(ANSWER), ANSWER);
        say(fd, chunk, length);
        return;
    }
    for (int number = 1; number <= CHUNKS; number++) {
        const char *data = number < CHUNKS ? CHUNK : LAST;
        int length = snprintf(chunk, sizeof chunk, "%s%zx\r\n%s\r\n%s", number == 1 ? HEAD : "", strlen(data), data,
                              number == CHUNKS ? "0\r\n\r\n" : "");
        say(fd, chunk, length);
    }
}

static void serve(int port, int every) {
    int listening = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listening, (struct sockaddr *)&address, sizeof address) || listen(listening, 1024)) fail("listen");
    struct epoll_event events[MOST_EVENTS], event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poller, EPOLL_CTL_ADD, listening, &event);
    socklen_t length = sizeof address;
    getsockname(listening, (struct sockaddr *)&address, &length);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int count = epoll_wait(poller, events, MOST_EVENTS, -1);
        for (int i = 0; i < count; i++) {
            struct peer *peer = events[i].data.ptr;
            if (!peer) {
                meet(accept(listening, NULL, NULL));
                continue;
            }
            int messages = hear(peer);
            if (messages < 0) part(peer);
            while (messages-- > 0) answer(peer->fd, every);
        }
    }
}

/* --- the clients ------------------------------------------------------------------------------------------------ */

static struct peer *idle[MOST_FILES];
static int idles;
static volatile uint64_t *counters; /* sent, answered */

static void ask(const char *template) {
    static char message[ROOM];
    struct peer *peer = idle[--idles];
    int head = snprintf(message, sizeof message,
                        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                        "Authorization: Bearer secret\r\nContent-Length: %zu\r\n\r\n",
                        strlen(template));
    int length = head + snprintf(message + head, sizeof message - head, "%s", template);
    char *place = strstr(message + head, "########"), digits[9];
    snprintf(digits, sizeof digits, "%08u", (unsigned)counters[0]);
    if (place) memcpy(place, digits, 8);
    say(peer->fd, message, length);
    counters[0]++;
}

static void drive(double rate, double seconds, const char *template) {
    struct epoll_event events[MOST_EVENTS];
    double begin = now(), end = begin + seconds;
    for (;;) {
        double at = now();
        int over = at >= end;
        if (over && (counters[1] == counters[0] || at > end + 5)) break;
        while (!over && idles && (!rate || counters[0] < (uint64_t)((at - begin) * rate))) ask(template);
        int count = epoll_wait(poller, events, MOST_EVENTS, 1);
        for (int i = 0; i < count; i++) {
            struct peer *peer = events[i].data.ptr;
            if (hear(peer) > 0) {
                counters[1]++;
                idle[idles++] = peer;
            }
        }
    }
    printf("%llu %llu %.6f\n", (unsigned long long)counters[0], (unsigned long long)counters[1], now() - begin);
}

static void join(int port, int connections) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < connections; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
        idle[idles++] = meet(fd);
    }
}

static volatile uint64_t *shared(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 16)) fail(path);
    void *memory = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) fail("mmap");
    return memory;
}

int main(int argc, char **argv) {
    poller = epoll_create1(0);
    if (argc == 5 && !strcmp(argv[1], "serve")) {
        steps = calibrated(atof(argv[4]));
        serve(atoi(argv[2]), atoi(argv[3]));
    } else if (argc == 8 && !strcmp(argv[1], "send")) {
        counters = shared(argv[6]);
        join(atoi(argv[2]), atoi(argv[5]));
        drive(atof(argv[3]), atof(argv[4]), argv[7]);
    } else {
        fprintf(stderr, "usage: traffic serve PORT EVERY WORK | send PORT RATE SECONDS CONNECTIONS COUNTERS TEMPLATE\n");
        return 2;
    }
    return 0;
}
