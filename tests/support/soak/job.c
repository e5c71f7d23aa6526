/* A job that starts in a millisecond and allocates memory by a plan, through libcuda like any job.
 *
 * job STEP… [+ STEP…]   a separate process performs each list of steps, both at the same time
 *
 *   d1    the following steps use the second of the job's devices
 *   a512  allocate 512 MiB
 *   f     free the last allocation
 *   s40   sleep for 40 ms
 *
 * Each process first prints its pid and its start time in the kernel's ticks, so that each step in the fake driver's
 * record can be matched to its run. Exits with 3 when the device is full, with 4 for every other error of CUDA.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 256, FULL = 2 };

static int (*init)(unsigned), (*get)(int *, int), (*retain)(void **, int), (*release)(int), (*use)(void *);
static int (*take)(uint64_t *, size_t), (*give)(uint64_t);

static void must(const char *what, int code) {
    if (!code) return;
    printf("%s: %s\n", what, code == FULL ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA error");
    fflush(stdout);
    _exit(code == FULL ? 3 : 4);
}

static void *named(void *library, const char *name) {
    void *found = dlsym(library, name);
    must(name, found == NULL);
    return found;
}

static void load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    must("libcuda.so.1", library == NULL);
    *(void **)&init = named(library, "cuInit");
    *(void **)&get = named(library, "cuDeviceGet");
    *(void **)&retain = named(library, "cuDevicePrimaryCtxRetain");
    *(void **)&release = named(library, "cuDevicePrimaryCtxRelease_v2");
    *(void **)&use = named(library, "cuCtxSetCurrent");
    *(void **)&take = named(library, "cuMemAlloc_v2");
    *(void **)&give = named(library, "cuMemFree_v2");
}

static void say_who(void) {
    char line[1024] = "", *at;
    FILE *stat = fopen("/proc/self/stat", "r");
    if (!stat || !fgets(line, sizeof line, stat) || !(at = strrchr(line, ')'))) _exit(4);
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    printf("process %d %lu\n", getpid(), at ? strtoul(at + 1, NULL, 10) : 0);
    fflush(stdout);
}

static void *contexts[16];
static int devices[16];

static void choose(int ordinal) {
    if (!contexts[ordinal]) {
        must("cuDeviceGet", get(&devices[ordinal], ordinal));
        must("cuDevicePrimaryCtxRetain", retain(&contexts[ordinal], devices[ordinal]));
    }
    must("cuCtxSetCurrent", use(contexts[ordinal]));
}

static void walk(char **steps) {
    uint64_t taken[MOST];
    int count = 0;
    load();
    say_who();
    must("cuInit", init(0));
    if (!*steps || **steps != 'd') choose(0);
    for (; *steps; steps++) {
        unsigned long figure = strtoul(*steps + 1, NULL, 10);
        if (**steps == 'd') choose(figure % 16);
        if (**steps == 'a' && count < MOST) must("cuMemAlloc_v2", take(&taken[count++], figure << 20));
        if (**steps == 'f' && count) must("cuMemFree_v2", give(taken[--count]));
        if (**steps == 's') usleep(figure * 1000);
    }
    for (int i = 0; i < 16; i++) /* the last step of the record */
        if (contexts[i]) must("cuDevicePrimaryCtxRelease", release(devices[i]));
}

int main(int count, char **words) {
    pid_t second = 0;
    for (int i = 1; i < count; i++) {
        if (strcmp(words[i], "+")) continue;
        words[i] = NULL;
        second = fork(); /* before CUDA: a forked child of a process that uses CUDA cannot use it */
        if (second == 0) {
            walk(words + i + 1);
            return 0;
        }
        break;
    }
    walk(words + 1);
    int status = 0;
    if (second && waitpid(second, &status, 0) < 0) return 4;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
}
