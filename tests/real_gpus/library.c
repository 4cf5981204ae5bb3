/*
 * A stand-in for NVIDIA's libcuda.so.1 for the programs of `make gpu`: the GPUs that FAKE_CUDA names, as
 * `UUID,MiB,multiprocessors;…`.
 *
 * Under MPS (CUDA_MPS_PIPE_DIRECTORY has a socket `control`) a process has the limits of its own environment, and none of
 * memory if the list names a GPU that it does not see: so it was measured on an H100 with driver 580.159.04. The default
 * limits of the control daemon, and other processes on the GPU, do not count here. With FAKE_CUDA_CLIENT a process is a
 * client of the stand-in for MPS instead, as client.py of gpushare_plugin.testing.mps_programs, and has the limits that
 * it is told.
 *
 * Where FAKE_CUDA_DRIVER names the socket of driver.py, that part of the stand-in decides what a process gets by the driver
 * limits of its cgroup: one line is asked, and one number is the answer.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_GPUS 16
#define NOWHERE (1ULL << 44)
#define CONTEXT_MIB 400ULL
#define MIB (1ULL << 20)

enum result { SUCCESS = 0, OUT_OF_MEMORY = 2, NO_DEVICE = 100, ILLEGAL_ADDRESS = 700 };

struct gpu {
    unsigned char uuid[16];
    char text[48];
    uint64_t mib;
    int multiprocessors;
};

static struct gpu gpus[MOST_GPUS];
static int count;
static uint64_t used = CONTEXT_MIB * MIB;
static int faulty;
static uint64_t next = MIB;
static struct { uint64_t at, size; long long id; } held[4096];
static FILE *driver, *answers;

/* Asks the driver; -1 is a refusal. */
static long long ask(const char *what, unsigned long long amount) {
    long long answer = -1;
    fprintf(driver, "%s %s %llu\n", what, gpus[0].text, amount);
    fflush(driver);
    return fscanf(answers, "%lld", &answer) == 1 ? answer : -1;
}

static void find_driver(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("FAKE_CUDA_DRIVER");
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (path == NULL)
        return;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (connect(connection, (struct sockaddr *)&address, sizeof address) == 0)
        driver = fdopen(connection, "w"), answers = fdopen(connection, "r");
}

static int seen(const char *uuid) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return visible == NULL || strstr(visible, uuid) != NULL;
}

static int under_mps(void) {
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[4096];
    if (pipe == NULL)
        return 0;
    snprintf(path, sizeof path, "%s/control", pipe);
    return access(path, F_OK) == 0;
}

static char told[1 << 16];

/* The number after a text in what the stand-in for MPS told; `otherwise` without such a number. */
static double told_of(const char *text, double otherwise) {
    const char *found = strstr(told, text);
    double number;
    return found != NULL && sscanf(found + strlen(text), "\": %lf", &number) == 1 ? number : otherwise;
}

/* Becomes a client of the stand-in for MPS until the end of the process. */
static void become_client(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char hello[4096], devices[2048] = "";
    const char *list = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), *percent = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (getenv("FAKE_CUDA_CLIENT") == NULL || !under_mps())
        return;
    for (int i = 0; i < count; i++)
        snprintf(devices + strlen(devices), sizeof devices - strlen(devices), "%s\"%s\"", i ? "," : "", gpus[i].text);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/control", getenv("CUDA_MPS_PIPE_DIRECTORY"));
    snprintf(hello, sizeof hello,
             "CLIENT {\"pid\": %d, \"command\": \"cuda\", \"devices\": [%s], \"memory\": \"%s\", \"threads\": \"%s\"}",
             getpid(), devices, list ? list : "", percent ? percent : "");
    if (connect(connection, (struct sockaddr *)&address, sizeof address) == 0 && send(connection, hello, strlen(hello), 0) > 0)
        recv(connection, told, sizeof told - 1, 0);
}

static uint64_t limit(void) {
    if (*told)
        return (uint64_t)told_of(gpus[0].text, (double)gpus[0].mib);
    const char *list = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    uint64_t own = gpus[0].mib, mib;
    char name[64];
    int taken;
    if (!under_mps() || list == NULL)
        return gpus[0].mib;
    while (sscanf(list, "%63[^=]=%luM%n", name, &mib, &taken) == 2) {
        if (strcmp(name, "0") != 0 && strcmp(name, gpus[0].text) != 0)
            return gpus[0].mib;
        own = mib;
        list += taken + (list[taken] == ',');
    }
    return own;
}

static int multiprocessors(void) {
    const char *percent = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    int all = gpus[0].multiprocessors;
    if (*told)
        return (int)(all * told_of("threads", 100) / 100);
    return under_mps() && percent != NULL ? all * atoi(percent) / 100 : all;
}

EXPORT int cuInit(unsigned flags) {
    (void)flags;
    char *described = strdup(getenv("FAKE_CUDA")), *rest = NULL;
    for (char *each = strtok_r(described, ";", &rest); each != NULL; each = strtok_r(NULL, ";", &rest)) {
        struct gpu *gpu = &gpus[count];
        if (sscanf(each, "%47[^,],%lu,%d", gpu->text, &gpu->mib, &gpu->multiprocessors) != 3 || !seen(gpu->text))
            continue;
        const char *digit = gpu->text + strlen("GPU-");
        for (int i = 0; i < 16; i++, digit += 2) {
            digit += *digit == '-';
            sscanf(digit, "%2hhx", &gpu->uuid[i]);
        }
        count++;
    }
    free(described);
    find_driver();
    become_client();
    return count > 0 ? SUCCESS : NO_DEVICE;
}

EXPORT int cuDeviceGetCount(int *found) { *found = count; return SUCCESS; }
EXPORT int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return SUCCESS; }
EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { memcpy(uuid, gpus[device].uuid, 16); return SUCCESS; }
EXPORT int cuDeviceGetAttribute(int *value, int what, int device) {
    (void)what, (void)device;
    *value = multiprocessors();
    return SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = gpus;
    return driver == NULL || ask("take", used) >= 0 ? SUCCESS : OUT_OF_MEMORY;
}
EXPORT int cuCtxSetCurrent(void *context) { (void)context; return SUCCESS; }
EXPORT int cuModuleLoadData(void **module, const void *image) { (void)image; *module = gpus; return SUCCESS; }
EXPORT int cuModuleGetFunction(void **function, void *module, const char *name) {
    (void)module, (void)name;
    *function = gpus;
    return SUCCESS;
}

EXPORT int cuMemGetInfo_v2(size_t *unused, size_t *total) {
    long long limited = driver == NULL ? -1 : ask("limit", 0);
    *total = limited >= 0 ? (size_t)limited : gpus[0].mib * MIB;
    *unused = limit() * MIB - used;
    return SUCCESS;
}

static int take(uint64_t *pointer, size_t size, const char *what) {
    size_t i = 0;
    while (held[i].size != 0)
        i++;
    if (used + size > limit() * MIB || (driver != NULL && (held[i].id = ask(what, size)) < 0))
        return OUT_OF_MEMORY;
    used += size;
    *pointer = held[i].at = next += size;
    held[i].size = size;
    return SUCCESS;
}

EXPORT int cuMemAlloc_v2(uint64_t *pointer, size_t size) { return take(pointer, size, "take"); }

EXPORT int cuMemAllocManaged(uint64_t *pointer, size_t size, unsigned flags) {
    (void)flags;
    return take(pointer, size, "manage");
}

EXPORT int cuIpcGetMemHandle(unsigned char *handle, uint64_t pointer) {
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        if (held[i].size != 0 && held[i].at == pointer)
            memcpy(handle, &held[i].id, sizeof held[i].id);
    return SUCCESS;
}

struct ipc_handle { unsigned char reserved[64]; };

EXPORT int cuIpcOpenMemHandle_v2(uint64_t *pointer, struct ipc_handle handle, unsigned flags) {
    long long id;
    (void)flags;
    memcpy(&id, handle.reserved, sizeof id);
    *pointer = next += MIB;
    return ask("share", (unsigned long long)id) >= 0 ? SUCCESS : OUT_OF_MEMORY;
}

EXPORT int cuMemFree_v2(uint64_t pointer) {
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        if (held[i].size != 0 && held[i].at == pointer) {
            used -= held[i].size, held[i].size = 0;
            if (driver != NULL)
                ask("free", (unsigned long long)held[i].id);
        }
    return SUCCESS;
}

EXPORT int cuMemsetD8_v2(uint64_t pointer, unsigned char value, size_t size) {
    (void)pointer, (void)value, (void)size;
    return SUCCESS;
}

EXPORT int cuMemcpyDtoH_v2(uint32_t *target, uint64_t source, size_t size) {
    (void)source;
    for (size_t i = 0; i < size / sizeof *target; i++)
        target[i] = (uint32_t)(i % (size_t)multiprocessors());
    return faulty ? ILLEGAL_ADDRESS : SUCCESS;
}

EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **arguments, void **extra) {
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    faulty |= *(uint64_t *)arguments[1] >= NOWHERE;
    usleep(2000);
    return SUCCESS;
}

EXPORT int cuCtxSynchronize(void) { return faulty ? ILLEGAL_ADDRESS : SUCCESS; }

EXPORT int cuGetErrorName(int error, const char **name) {
    *name = error == OUT_OF_MEMORY     ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == NO_DEVICE       ? "CUDA_ERROR_NO_DEVICE"
            : error == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                       : "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}
