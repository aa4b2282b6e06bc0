/* An engine that costs next to nothing, so that what is measured is what stands before it.
 *
 *   engine PORT[,PORT...] [-i MS] [-b BYTES]
 *
 * One thread, epoll, keep-alive, 127.0.0.1 only. Any POST gets an OpenAI chat answer: JSON of
 * about BYTES (1024), or, where its body holds "stream":true, "max_tokens" events of 200 bytes,
 * one every MS milliseconds (20), then [DONE]; with "include_usage":true a usage event before
 * it. Any GET gets the list of models, by which some proxies find out what is served here. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct peer {
    int fd, is_listener, events_left, wants_usage;
    size_t have, room;
    char *in;
    uint64_t due;
    struct peer *next, *previous; /* in the list of streams */
};

static struct peer streams = {.next = &streams, .previous = &streams};
static int loop_fd, interval_ms = 20;
static char *answer;
static size_t answer_size;
static char event[256];
static size_t event_size;
static const char usage[] =
    "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"bench\","
    "\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":64,\"total_tokens\":73}}\n\n";
static const char done[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static void leave_streams(struct peer *p)
{
    if (p->next) {
        p->next->previous = p->previous;
        p->previous->next = p->next;
        p->next = p->previous = NULL;
    }
}

static void hang_up(struct peer *p)
{
    leave_streams(p);
    close(p->fd);
    free(p->in);
    free(p);
}

/* Loopback buffers hold far more than one answer; a peer that reads nothing is hung up on. */
static int put(struct peer *p, const void *data, size_t size)
{
    if (send(p->fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size) return 1;
    hang_up(p);
    return 0;
}

static void next_event(struct peer *p, uint64_t now)
{
    if (p->events_left > 0) {
        p->events_left--;
        p->due = now + interval_ms * 1000ull;
        put(p, event, event_size);
        return;
    }
    leave_streams(p);
    char last[512];
    int size = 0;
    if (p->wants_usage) size = sprintf(last, "%zx\r\n%s\r\n", sizeof usage - 1, usage);
    size += sprintf(last + size, "%s", done);
    put(p, last, size);
}

static int answer_request(struct peer *p, int is_post, const char *body)
{
    static const char models[] =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 103\r\n\r\n"
        "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\",\"created\":1,"
        "\"owned_by\":\"vllm\",\"root\":\"bench\"}]}";
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                               "transfer-encoding: chunked\r\n\r\n";
    if (!is_post) return put(p, models, sizeof models - 1);
    if (!strstr(body, "\"stream\":true")) return put(p, answer, answer_size);
    const char *tokens = strstr(body, "\"max_tokens\":");
    p->events_left = tokens ? atoi(tokens + 13) : 16;
    p->wants_usage = strstr(body, "\"include_usage\":true") != NULL;
    p->due = now_us();
    p->next = &streams;
    p->previous = streams.previous;
    streams.previous->next = p;
    streams.previous = p;
    return put(p, head, sizeof head - 1);
}

/* Returns 0 where the peer is gone. */
static int read_requests(struct peer *p)
{
    if (p->room - p->have < 65536) p->in = realloc(p->in, p->room += 65536 + p->room);
    ssize_t got = recv(p->fd, p->in + p->have, p->room - p->have - 1, MSG_DONTWAIT);
    if (got <= 0) {
        hang_up(p);
        return 0;
    }
    p->have += got;
    p->in[p->have] = 0;
    char *end;
    while ((end = memmem(p->in, p->have, "\r\n\r\n", 4))) {
        size_t size = end + 4 - p->in;
        *end = 0;
        char *length = strcasestr(p->in, "\ncontent-length:");
        size_t body = length ? strtoul(length + 16, NULL, 10) : 0;
        *end = '\r';
        if (p->have < size + body) return 1;
        char kept = p->in[size + body];
        p->in[size + body] = 0;
        if (!answer_request(p, p->in[0] == 'P', p->in + size)) return 0;
        p->in[size + body] = kept;
        memmove(p->in, p->in + size + body, p->have -= size + body);
    }
    return 1;
}

static void watch(int fd, int is_listener)
{
    struct peer *p = calloc(1, sizeof *p);
    p->fd = fd;
    p->is_listener = is_listener;
    epoll_ctl(loop_fd, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = p});
}

static void listen_on(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (void *)&here, sizeof here) || listen(fd, 4096)) {
        perror("engine: cannot listen");
        exit(1);
    }
    watch(fd, 1);
}

int main(int count, char **words)
{
    int size = 1024;
    loop_fd = epoll_create1(0);
    for (int i = 2; i + 1 < count; i += 2) {
        if (!strcmp(words[i], "-i")) interval_ms = atoi(words[i + 1]);
        if (!strcmp(words[i], "-b")) size = atoi(words[i + 1]);
    }
    if (count < 2) return 2;
    char *filler = malloc(size + 1);
    memset(filler, 'x', size);
    filler[size] = 0;
    char *json;
    int length = asprintf(&json, "{\"id\":\"c\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"bench\","
        "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"%s\"},\"finish_reason\":\"stop\"}],"
        "\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":64,\"total_tokens\":73}}", filler);
    answer_size = asprintf(&answer, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        "content-length: %d\r\n\r\n%s", length, json);
    event_size = sprintf(event, "c8\r\ndata: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,"
        "\"model\":\"bench\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%.*s\"},\"finish_reason\":null}]}\n\n\r\n",
        56, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
    size_t framed = event_size - 6; /* the size line follows the text, whatever its length */
    char digits[3];
    sprintf(digits, "%02zx", framed);
    memcpy(event, digits, 2);
    for (char *port = strtok(words[1], ","); port; port = strtok(NULL, ",")) listen_on(atoi(port));
    for (;;) {
        struct epoll_event ready[512];
        int many = epoll_wait(loop_fd, ready, 512, streams.next == &streams ? 1000 : 1);
        for (int i = 0; i < many; i++) {
            struct peer *p = ready[i].data.ptr;
            if (!p->is_listener) {
                read_requests(p);
                continue;
            }
            int fd, on = 1;
            while ((fd = accept4(p->fd, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                watch(fd, 0);
                if (many < 512) break; /* the next one raises the event again */
            }
        }
        uint64_t now = now_us();
        for (struct peer *p = streams.next, *next; p != &streams; p = next) {
            next = p->next;
            if (p->due <= now) next_event(p, now);
        }
    }
}
