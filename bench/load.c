/* A load generator: closed loops of requests, or open streams, counted and timed.
 *
 *   load PORT -c CONNECTIONS -t SECONDS [-w SECONDS] [-s EVENTS] [-p PROMPT_BYTES] [-k KEY]
 *        [-r RATE]
 *
 * One thread, epoll, 127.0.0.1 only. Each connection asks again as soon as it has its answer;
 * with -r they ask RATE times a second together, as far as any of them is free. With -s each
 * request is a stream of so many events. After a warm-up (-w, 0.5 s) it prints
 * `start`, and at the end one line of JSON: what came in between, errors, and percentiles of
 * latency (of gaps between reads, for streams) in microseconds. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

struct loop {
    int fd, in_body;
    size_t left; /* of a body with a length */
    uint64_t since;
    char kept[16384];
    size_t have;
};

static int port, is_stream, rate;
static struct loop **idle; /* with a rate: those whose turn has not come */
static int idles;
static char *request;
static size_t request_size;
static uint64_t answers, events, errors;
static uint32_t *times;
static size_t timed, times_room = 1 << 22;

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static void note(uint64_t took)
{
    if (timed < times_room) times[timed++] = took;
}

static void ask(struct loop *l)
{
    size_t sent = 0;
    l->have = l->in_body = 0;
    while (sent < request_size) {
        ssize_t n = send(l->fd, request + sent, request_size - sent, MSG_NOSIGNAL);
        if (n <= 0) return;
        sent += n;
    }
    l->since = now_us();
}

static int dial(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons(port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (void *)&there, sizeof there)) {
        perror("load: cannot connect");
        exit(1);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void finish(struct loop *l)
{
    answers++;
    if (!is_stream) note(now_us() - l->since);
    if (rate) idle[idles++] = l;
    else ask(l);
}

static void fail(struct loop *l, int loop_fd)
{
    errors++;
    close(l->fd);
    l->fd = dial();
    epoll_ctl(loop_fd, EPOLL_CTL_ADD, l->fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = l});
    ask(l);
}

static void take(struct loop *l, int loop_fd)
{
    ssize_t n = recv(l->fd, l->kept + l->have, sizeof l->kept - l->have - 1, MSG_DONTWAIT);
    if (n <= 0) {
        fail(l, loop_fd);
        return;
    }
    l->have += n;
    l->kept[l->have] = 0;
    if (!l->in_body) {
        char *end = strstr(l->kept, "\r\n\r\n");
        if (!end) return;
        if (strncmp(l->kept, "HTTP/1.1 200", 12)) {
            fail(l, loop_fd);
            return;
        }
        *end = 0;
        char *length = strcasestr(l->kept, "\ncontent-length:");
        l->left = length ? strtoul(length + 16, NULL, 10) : 0;
        l->in_body = 1;
        l->have -= end + 4 - l->kept;
        memmove(l->kept, end + 4, l->have + 1);
    }
    if (!is_stream) {
        l->left = l->left > l->have ? l->left - l->have : 0;
        l->have = 0;
        if (!l->left) finish(l);
        return;
    }
    uint64_t now = now_us();
    note(now - l->since);
    l->since = now;
    for (char *at = l->kept; (at = strstr(at, "data: ")); at += 6) events++;
    if (strstr(l->kept, "[DONE]") && strstr(l->kept, "\r\n0\r\n\r\n")) {
        events--;
        finish(l);
    } else {
        size_t tail = l->have < 32 ? l->have : 32; /* [DONE] and the end may come apart */
        char *keep = strstr(l->kept + l->have - tail, "data: [D");
        l->have = keep ? l->kept + l->have - keep : 0;
        if (keep) {
            events--;
            memmove(l->kept, keep, l->have + 1);
        }
    }
}

static int by_size(const void *a, const void *b)
{
    return (*(uint32_t *)a > *(uint32_t *)b) - (*(uint32_t *)a < *(uint32_t *)b);
}

int main(int count, char **words)
{
    int connections = 1, stream_events = 0, prompt = 512;
    double seconds = 2, warm_up = 0.5;
    int is_warm = 0;
    const char *key = "none";
    if (count < 2) return 2;
    port = atoi(words[1]);
    for (int i = 2; i + 1 < count; i += 2) switch (words[i][1]) {
        case 'c': connections = atoi(words[i + 1]); break;
        case 't': seconds = atof(words[i + 1]); break;
        case 'w': warm_up = atof(words[i + 1]); break;
        case 's': stream_events = atoi(words[i + 1]); break;
        case 'p': prompt = atoi(words[i + 1]); break;
        case 'k': key = words[i + 1]; break;
        case 'r': rate = atoi(words[i + 1]); break;
    }
    is_stream = stream_events > 0;
    times = malloc(times_room * sizeof *times);
    char *filler = malloc(prompt + 1), *body;
    memset(filler, 'x', prompt);
    filler[prompt] = 0;
    int size = asprintf(&body, "{\"model\":\"bench\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],"
        "\"stream\":%s,\"max_tokens\":%d}", filler, is_stream ? "true" : "false",
        is_stream ? stream_events : 64);
    request_size = asprintf(&request, "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\n"
        "content-type: application/json\r\naccept: */*\r\nauthorization: Bearer %s\r\n"
        "user-agent: load\r\ncontent-length: %d\r\n\r\n%s", key, size, body);
    int loop_fd = epoll_create1(0);
    struct loop *loops = calloc(connections, sizeof *loops);
    for (int i = 0; i < connections; i++) {
        loops[i].fd = dial();
        epoll_ctl(loop_fd, EPOLL_CTL_ADD, loops[i].fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = &loops[i]});
    }
    uint64_t start = now_us() + warm_up * 1e6, end = start + seconds * 1e6, now;
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    idle = malloc(connections * sizeof *idle);
    for (int i = 0; i < connections; i++) {
        if (rate) idle[idles++] = &loops[i];
        else ask(&loops[i]);
    }
    if (rate) {
        struct timespec every = {.tv_nsec = 1000000000 / rate};
        timerfd_settime(timer, 0, &(struct itimerspec){every, every}, NULL);
        epoll_ctl(loop_fd, EPOLL_CTL_ADD, timer, &(struct epoll_event){.events = EPOLLIN});
    }
    while ((now = now_us()) < end) {
        if (!is_warm && now >= start) {
            is_warm = 1;
            answers = events = errors = timed = 0;
            puts("start");
            fflush(stdout);
        }
        struct epoll_event ready[512];
        int many = epoll_wait(loop_fd, ready, 512, 10);
        for (int i = 0; i < many; i++) {
            uint64_t turns;
            if (ready[i].data.ptr) take(ready[i].data.ptr, loop_fd);
            else if (read(timer, &turns, sizeof turns) == sizeof turns)
                while (turns-- && idles) ask(idle[--idles]);
        }
    }
    qsort(times, timed, sizeof *times, by_size);
    printf("{\"seconds\":%.3f,\"answers\":%lu,\"events\":%lu,\"errors\":%lu,\"p50_us\":%u,\"p99_us\":%u}\n",
           (now - start) / 1e6, answers, events, errors, timed ? times[timed / 2] : 0,
           timed ? times[timed * 99 / 100] : 0);
}
