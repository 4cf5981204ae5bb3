/*
 * A stand-in for NVIDIA's libnvidia-ml.so.1: it answers for the node described by the text file that the environment
 * variable GPUSHARE_FAKE_NVML names.
 *
 * Five files make a node:
 *   <file>          the description, one `key value` a line; read again whenever it is replaced
 *   <file>.events   events raised so far, one `struct event_record` each; only appended to
 *   <file>.records  one `struct record` for each function (how often it was called, by all processes together) and for
 *                   each device (the compute mode it was set to, plus one), mapped into memory
 *   <file>.layouts  one `struct layout` for each card whose MIG mode or MIG instances were changed through NVML; mapped
 *                   into memory, and written by one process at a time (flock)
 *   <file>.limits   the memory limits of cgroups that the driver keeps (memory_limits.c)
 *
 * While the library is not initialised the environment says which description counts; from then on it is the one it
 * was initialised with. Like NVIDIA's, the library numbers the cards when it is initialised: one that comes later is not
 * seen, one that goes keeps its number and is lost.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ENVIRONMENT_VARIABLE "GPUSHARE_FAKE_NVML"
#define UNPRIVILEGED_VARIABLE "GPUSHARE_FAKE_NVML_UNPRIVILEGED" /* where set, the process may not set memory limits */
#define MAX_CARDS 16
#define MAX_MIG 7
#define MAX_LINKS 36
#define MAX_FAILURES 128
#define MAX_PROCESSES 1024 /* of all devices together */
#define MAX_EVENT_SETS 32
#define MAX_HANGS 16
#define SLOTS (1 + MAX_MIG) /* a card and its MIG devices */
#define DEVICES (MAX_CARDS * SLOTS)
#define TEXT 96
#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef unsigned long long u64;

/* ---------------------------------------------------------------------------------------------- what NVML defines */

enum code {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15,
    RESET_REQUIRED = 16, OPERATING_SYSTEM = 17, IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999,
};

static const char *const code_texts[] = {
    "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
    "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Issue",
    "Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
    "Blocked by the operating system", "Driver/library version mismatch", "In use by another client",
};

struct memory_v1 {
    u64 total, free, used;
};

struct memory_v2 {
    unsigned version;
    u64 total, reserved, free, used;
};
#define MEMORY_V2 ((unsigned)(sizeof(struct memory_v2) | 2u << 24))

struct pci_info {
    char legacy_bus_id[16];
    unsigned domain, bus, slot, device_id, subsystem_id;
    char bus_id[32];
};

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    u64 memory_mib;
};

struct gpu_instance_profile {
    unsigned id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    u64 memory_mib;
};
enum gpu_instance_profiles { PROFILE_COUNT = 18, FIRST_PROFILE_ID = 1000 /* an ID is not the profile's number */ };

struct gpu_instance_profile_v2 {
    unsigned version, id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    u64 memory_mib;
    char name[96];
};
#define GPU_INSTANCE_PROFILE_V2 ((unsigned)(sizeof(struct gpu_instance_profile_v2) | 2u << 24))

struct compute_instance_profile {
    unsigned id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
};
enum compute_instance_profiles { COMPUTE_PROFILE_COUNT = 9, SHARED_ENGINES = 0, ENGINE_PROFILES = 1 };
static const unsigned compute_profile_slices[] = {1, 2, 3, 4, 7, 8, 6};

struct field_value {
    unsigned field, scope;
    long long timestamp, latency_us;
    unsigned type;
    int status;
    union {
        unsigned number;
        u64 widest;
    } value;
};
enum field { RECOVERY_ACTION = 230 };
enum value_type { UNSIGNED_INT = 1 };

struct process_info {
    unsigned pid;
    u64 memory;
    unsigned gpu_instance, compute_instance;
};
#define NO_INSTANCE 0xFFFFFFFFu

struct process_utilization {
    unsigned pid;
    u64 timestamp;
    unsigned gpu, memory, encoder, decoder;
};

struct utilization {
    unsigned gpu, memory;
};

struct device;

struct placement {
    unsigned start, size;
};

struct gpu_instance {
    struct device *device;
    unsigned id, profile_id;
    struct placement placement;
};

struct partition;

struct compute_instance {
    struct device *device;
    struct partition *gpu_instance;
    unsigned id, profile_id;
    struct placement placement;
};

struct event_data {
    struct device *device;
    u64 type, data;
    unsigned gpu_instance, compute_instance;
};

enum topology { INTERNAL = 0, SYSTEM = 50 };
enum p2p { P2P_OK = 0, P2P_NOT_SUPPORTED = 5, P2P_CAPABILITY_NVLINK = 2, P2P_CAPABILITIES = 5 };
enum link_type { LINK_TO_SWITCH = 2 };
enum compute_mode { COMPUTE_MODES = 4 };

#define FUNCTIONS(X)                                                                                                   \
    X(nvmlInitWithFlags) X(nvmlInit_v2) X(nvmlShutdown) X(nvmlErrorString) X(nvmlSystemGetDriverVersion)               \
    X(nvmlSystemGetCudaDriverVersion) X(nvmlSystemGetCudaDriverVersion_v2) X(nvmlDeviceGetCount_v2)                    \
    X(nvmlDeviceGetHandleByIndex_v2) X(nvmlDeviceGetHandleByUUID) X(nvmlDeviceGetHandleByPciBusId_v2)                  \
    X(nvmlDeviceGetName) X(nvmlDeviceGetUUID) X(nvmlDeviceGetIndex) X(nvmlDeviceGetMinorNumber)                        \
    X(nvmlDeviceGetBrand)                                                                                              \
    X(nvmlDeviceGetPciInfo_v3) X(nvmlDeviceGetMemoryInfo) X(nvmlDeviceGetMemoryInfo_v2)                                \
    X(nvmlDeviceGetCudaComputeCapability) X(nvmlDeviceGetComputeMode) X(nvmlDeviceSetComputeMode)                      \
    X(nvmlDeviceGetMigMode) X(nvmlDeviceGetMaxMigDeviceCount) X(nvmlDeviceGetMigDeviceHandleByIndex)                   \
    X(nvmlDeviceGetDeviceHandleFromMigDeviceHandle) X(nvmlDeviceIsMigDeviceHandle) X(nvmlDeviceGetGpuInstanceId)       \
    X(nvmlDeviceGetComputeInstanceId) X(nvmlDeviceGetAttributes_v2) X(nvmlDeviceGetGpuInstanceProfileInfo)             \
    X(nvmlDeviceGetGpuInstanceById) X(nvmlGpuInstanceGetInfo) X(nvmlDeviceGetTopologyCommonAncestor)                   \
    X(nvmlDeviceGetP2PStatus) X(nvmlDeviceGetNvLinkState) X(nvmlDeviceGetNvLinkRemotePciInfo_v2)                       \
    X(nvmlDeviceGetNvLinkRemoteDeviceType) X(nvmlDeviceGetSupportedEventTypes) X(nvmlDeviceRegisterEvents)             \
    X(nvmlEventSetCreate) X(nvmlEventSetWait_v2) X(nvmlEventSetFree) X(nvmlDeviceGetFieldValues)                       \
    X(nvmlDeviceGetUtilizationRates) X(nvmlDeviceGetComputeRunningProcesses_v3)                                        \
    X(nvmlDeviceGetGraphicsRunningProcesses_v3) X(nvmlDeviceGetMPSComputeRunningProcesses_v3)                          \
    X(nvmlDeviceGetProcessUtilization) X(nvmlDeviceSetMigMode) X(nvmlDeviceGetGpuInstanceProfileInfoV)                 \
    X(nvmlDeviceGetGpuInstancePossiblePlacements_v2) X(nvmlDeviceGetGpuInstanceRemainingCapacity)                      \
    X(nvmlDeviceCreateGpuInstance) X(nvmlDeviceCreateGpuInstanceWithPlacement) X(nvmlDeviceGetGpuInstances)            \
    X(nvmlGpuInstanceDestroy) X(nvmlGpuInstanceGetComputeInstanceProfileInfo) X(nvmlGpuInstanceCreateComputeInstance)  \
    X(nvmlGpuInstanceGetComputeInstances) X(nvmlComputeInstanceGetInfo_v2) X(nvmlComputeInstanceDestroy)             \
    X(nvmlDeviceSetMemoryLimits_v1) X(nvmlDeviceGetMemoryLimits_v1)

#define AS_ENUM(name) ID_##name,
#define AS_TEXT(name) #name,
enum function { FUNCTIONS(AS_ENUM) FUNCTION_COUNT, ALL_FUNCTIONS };
static const char *const function_names[] = {FUNCTIONS(AS_TEXT)};

/* --------------------------------------------------------------------------------------------------- the node */

struct link {
    unsigned type;
    struct pci_info remote;
};

/* What GPU instances a card can have, and in which memory slices each of a profile can start. */
struct profile {
    unsigned number, size, starts[MAX_MIG], start_count;
    struct gpu_instance_profile info;
    char name[TEXT];
};

/* A card (slot 0) or one of its MIG devices (slot 1 and up); a pointer to it is NVML's handle. */
struct device {
    int present;
    unsigned card, slot; /* `card` is the place in the description, which is not NVML's number once cards have gone */
    char uuid[TEXT], name[TEXT];
    u64 memory, reserved, used;
    unsigned compute_mode, utilization_known, utilization;
    /* cards only */
    struct pci_info pci;
    unsigned minor, brand, compute_major, compute_minor, mig_capable, mig_enabled, nvlink_slots, link_count;
    unsigned gone, recovery_known, recovery_action, mig_needs_reset, generation;
    u64 events;
    struct profile profiles[PROFILE_COUNT];
    unsigned profile_count;
    struct link links[MAX_LINKS];
    struct {
        unsigned topology, p2p;
    } peers[MAX_CARDS];
    /* MIG devices only */
    unsigned gpu_instance, compute_instance, profile, start, size;
    struct attributes attributes;
};

/* What belongs to a device that is not there any more. */
static struct device nobody;

/* A GPU instance; a pointer to it is NVML's handle. It need not have any compute instance. */
struct partition {
    unsigned present, card, id, profile, start, size;
};

/* A compute instance: the MIG device in the slot one above its place in the layout, whose handle is a compute
 * instance's, too. */
struct compute {
    unsigned present, partition, id, slices;
    char uuid[TEXT];
};

/* How a card is divided. What is described counts until it is `changed`; another `generation` of the description counts
 * again. */
struct layout {
    unsigned changed, generation, mig_enabled, mig_pending;
    struct partition partitions[MAX_MIG];
    struct compute computes[MAX_MIG];
};

struct layouts {
    u64 sequence; /* more after each change */
    struct layout of[MAX_CARDS];
};
static struct layouts layouts; /* as this process knows them; handles are pointers into it */

/* `device` is NULL where the function fails whatever it is asked about. */
struct failure {
    const struct device *device;
    unsigned function;
    int code;
};

enum process_kind { COMPUTE, GRAPHICS, MPS_CLIENT, PROCESS_KINDS };

/* A process that uses a device; `utilization` is in percent, below 0 where it did not compute. Where `uuid` is not
 * empty, the device is the one that has it now. */
struct process {
    const struct device *device;
    char uuid[TEXT];
    unsigned kind, pid;
    u64 memory;
    int utilization;
};

static struct {
    char driver[TEXT];
    unsigned cuda, init_delay_ms, limit_backend, kernel_refuses, cards;
    struct device devices[DEVICES];
    struct failure failures[MAX_FAILURES];
    unsigned failure_count;
    struct process processes[MAX_PROCESSES];
    unsigned process_count;
    struct {
        unsigned function;
        u64 call;
    } hangs[MAX_HANGS]; /* that call of a function, and all later ones, do not return while this is described */
    unsigned hang_count;
} node;

struct record {
    char name[56];
    u64 value;
};
static struct record unshared[FUNCTION_COUNT + DEVICES]; /* in use as long as there is no file */

static struct {
    char path[PATH_MAX];
    struct stat seen;
    int status; /* of reading the description */
    struct record *records;
    struct layouts *layouts; /* NULL as long as there is no file */
    int layouts_file, changing;
    unsigned references;       /* nvmlInit less nvmlShutdown */
    unsigned cards[MAX_CARDS]; /* the cards in the order of NVML's numbers, as they were at the first nvmlInit */
    unsigned card_count;
} library = {.records = unshared, .layouts_file = -1};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int lock(void)
{
    return pthread_mutex_lock(&mutex);
}

static void unlock(const int *locked)
{
    (void)locked;
    pthread_mutex_unlock(&mutex);
}

/* Holds the mutex to the end of the block. */
#define LOCKED __attribute__((cleanup(unlock), unused)) int locked = lock()

#define TRY(expression)                                                                                                \
    do {                                                                                                               \
        int code_ = (expression);                                                                                      \
        if (code_ != SUCCESS)                                                                                          \
            return code_;                                                                                              \
    } while (0)

static struct device *card_number(unsigned card)
{
    return &node.devices[card * SLOTS];
}

static struct device *card_of(const struct device *device)
{
    return card_number(device->card);
}

static struct record *record_of(const struct device *device)
{
    return &library.records[FUNCTION_COUNT + (device - node.devices)];
}

/* ------------------------------------------------------------------------------------- reading the description */

#define NUMBER(field) {#field, offsetof(struct device, field), sizeof((struct device *)0)->field}
static const struct {
    const char *key;
    size_t offset, size;
} numbers[] = {
    NUMBER(memory), NUMBER(reserved), NUMBER(used), NUMBER(compute_mode), NUMBER(minor), NUMBER(brand), NUMBER(compute_major),
    NUMBER(compute_minor), NUMBER(mig_capable), NUMBER(mig_enabled), NUMBER(nvlink_slots), NUMBER(events),
    NUMBER(pci.device_id), NUMBER(pci.subsystem_id), NUMBER(gone), NUMBER(recovery_known), NUMBER(recovery_action),
    NUMBER(gpu_instance), NUMBER(compute_instance), NUMBER(profile), NUMBER(utilization_known), NUMBER(utilization),
    NUMBER(attributes.multiprocessors), NUMBER(attributes.copy_engines), NUMBER(attributes.decoders),
    NUMBER(attributes.encoders), NUMBER(attributes.jpegs), NUMBER(attributes.ofas), NUMBER(attributes.gpu_slices),
    NUMBER(attributes.compute_slices), NUMBER(attributes.memory_mib), NUMBER(mig_needs_reset), NUMBER(generation),
    NUMBER(start), NUMBER(size),
};

/* The readers below answer true where they understood the value. */

static int read_number(struct device *device, const char *key, const char *value)
{
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (!strcmp(numbers[i].key, key)) {
            char *end, *field = (char *)device + numbers[i].offset;
            if (numbers[i].size == sizeof(u64))
                *(u64 *)field = strtoull(value, &end, 0);
            else
                *(unsigned *)field = (unsigned)strtoul(value, &end, 0);
            return end != value && !*end;
        }
    return 0;
}

static int read_text(char *field, const char *value)
{
    return snprintf(field, TEXT, "%s", value) < TEXT;
}

/* NVML takes domain:bus:device.function with or without the domain and the function. */
static int read_address(struct pci_info *pci, const char *value)
{
    if (sscanf(value, "%x:%x:%x", &pci->domain, &pci->bus, &pci->slot) != 3) {
        pci->domain = 0;
        if (sscanf(value, "%x:%x", &pci->bus, &pci->slot) != 2)
            return 0;
    }
    snprintf(pci->legacy_bus_id, sizeof pci->legacy_bus_id, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff,
             pci->slot & 0x1f);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->slot);
    return 1;
}

static struct device *add_device(unsigned card, unsigned slot, const char *uuid)
{
    struct device *device = card_number(card) + slot;
    device->present = 1;
    device->card = card;
    device->slot = slot;
    for (unsigned peer = 0; peer < MAX_CARDS; peer++)
        device->peers[peer].topology = peer == card ? INTERNAL : SYSTEM;
    read_text(device->uuid, uuid);
    return device;
}

static int read_link(struct device *card, const char *value)
{
    struct link *link = &card->links[card->link_count];
    int length;
    if (card->link_count == MAX_LINKS || sscanf(value, "%u %x %n", &link->type, &link->remote.device_id, &length) != 2)
        return 0;
    card->link_count++;
    return read_address(&link->remote, value + length);
}

static int read_peer(struct device *card, const char *value)
{
    unsigned peer, topology, p2p;
    if (sscanf(value, "%u %u %u", &peer, &topology, &p2p) != 3 || peer >= MAX_CARDS)
        return 0;
    card->peers[peer].topology = topology;
    card->peers[peer].p2p = p2p;
    return 1;
}

static int read_function(unsigned *function, const char *name)
{
    for (*function = 0; *function < FUNCTION_COUNT; ++*function)
        if (!strcmp(name, function_names[*function]))
            return 1;
    return 0;
}

static int read_failure(const struct device *device, const char *value)
{
    char name[TEXT];
    struct failure *failure = &node.failures[node.failure_count];
    if (node.failure_count == MAX_FAILURES || sscanf(value, "%95s %d", name, &failure->code) != 2)
        return 0;
    failure->device = device;
    failure->function = ALL_FUNCTIONS;
    node.failure_count++;
    return !strcmp(name, "*") || read_function(&failure->function, name);
}

static int read_hang(const char *value)
{
    char name[TEXT];
    return node.hang_count < MAX_HANGS && sscanf(value, "%95s %llu", name, &node.hangs[node.hang_count].call) == 2 &&
           read_function(&node.hangs[node.hang_count++].function, name);
}

static int read_profile(struct device *card, const char *value)
{
    struct profile *profile = &card->profiles[card->profile_count];
    struct gpu_instance_profile *info = &profile->info;
    int length;
    if (card->profile_count == PROFILE_COUNT ||
        sscanf(value, "%95s %u %u %u %u %llu %u %u %u %u %u %u %u %n", profile->name, &profile->number, &info->id,
               &info->slices, &info->instances, &info->memory_mib, &info->multiprocessors, &info->copy_engines,
               &info->decoders, &info->encoders, &info->jpegs, &info->ofas, &profile->size, &length) != 13)
        return 0;
    for (value += length; profile->start_count < MAX_MIG; value += length)
        if (sscanf(value, "%u %n", &profile->starts[profile->start_count], &length) != 1)
            break;
        else
            profile->start_count++;
    card->profile_count++;
    return profile->start_count && !*value;
}

static int read_process(const struct device *device, const char *value)
{
    struct process *process = &node.processes[node.process_count];
    if (node.process_count == MAX_PROCESSES ||
        sscanf(value, "%u %u %llu %d", &process->kind, &process->pid, &process->memory, &process->utilization) != 4)
        return 0;
    process->device = device;
    node.process_count++;
    return process->kind < PROCESS_KINDS;
}

/* A process on the device of a UUID, which need not be described. */
static int read_use(const char *value)
{
    struct process *process = &node.processes[node.process_count];
    int length;
    return sscanf(value, "%95s %n", process->uuid, &length) == 1 && read_process(&nobody, value + length);
}

static int read_node_line(const char *key, const char *value)
{
    if (!strcmp(key, "driver"))
        return read_text(node.driver, value);
    if (!strcmp(key, "cuda"))
        return sscanf(value, "%u", &node.cuda) == 1;
    if (!strcmp(key, "limit_backend"))
        return sscanf(value, "%u %u", &node.limit_backend, &node.kernel_refuses) == 2;
    return !strcmp(key, "init_delay_ms") && sscanf(value, "%u", &node.init_delay_ms) == 1;
}

static int read_device_line(struct device *device, const char *key, const char *value)
{
    if (!strcmp(key, "name"))
        return read_text(device->name, value);
    if (!strcmp(key, "address"))
        return read_address(&device->pci, value);
    if (!strcmp(key, "link"))
        return read_link(device, value);
    if (!strcmp(key, "peer"))
        return read_peer(device, value);
    if (!strcmp(key, "process"))
        return read_process(device, value);
    if (!strcmp(key, "mig_profile"))
        return read_profile(device, value);
    return read_number(device, key, value);
}

/* Lines describe the node up to the first `card`, then the device that the last `card` or `mig` began. */
static int read_line(struct device **current, const char *key, const char *value)
{
    if (!strcmp(key, "fail"))
        return read_failure(*current, value);
    if (!strcmp(key, "hang"))
        return read_hang(value);
    if (!strcmp(key, "use"))
        return read_use(value);
    if (!strcmp(key, "card") && node.cards < MAX_CARDS)
        *current = add_device(node.cards++, 0, value);
    else if (!strcmp(key, "mig") && *current && (*current)->slot < MAX_MIG)
        *current = add_device((*current)->card, (*current)->slot + 1, value);
    else
        return *current ? read_device_line(*current, key, value) : read_node_line(key, value);
    return 1;
}

static int read_description(void)
{
    FILE *file = fopen(library.path, "re");
    char line[512];
    struct device *current = NULL;
    int status = file ? SUCCESS : DRIVER_NOT_LOADED;

    memset(&node, 0, sizeof node);
    for (unsigned number = 1; status == SUCCESS && fgets(line, sizeof line, file); number++) {
        line[strcspn(line, "\n")] = 0;
        char *value = strchr(line, ' ');
        if (value)
            *value++ = 0;
        if (!value || !read_line(&current, line, value)) {
            fprintf(stderr, "fake NVML: %s, line %u: '%s' is not understood\n", library.path, number, line);
            status = UNKNOWN;
        }
    }
    if (file)
        fclose(file);
    return status;
}

/* -------------------------------------------------------------------------------------------- how cards are divided */

static struct layout *layout_of(const struct device *card)
{
    return &layouts.of[card->card];
}

static struct partition *partition_with(struct layout *layout, unsigned id)
{
    for (struct partition *partition = layout->partitions; partition < layout->partitions + MAX_MIG; partition++)
        if (partition->present && partition->id == id)
            return partition;
    return NULL;
}

static struct partition *free_partition(struct layout *layout)
{
    struct partition *partition = layout->partitions;
    while (partition < layout->partitions + MAX_MIG && partition->present)
        partition++;
    return partition < layout->partitions + MAX_MIG ? partition : NULL;
}

static const struct profile *profile_of(const struct device *card, unsigned number)
{
    for (unsigned i = 0; i < card->profile_count; i++)
        if (card->profiles[i].number == number)
            return &card->profiles[i];
    return NULL;
}

/* The layout that a card is described with. */
static void describe_layout(const struct device *card)
{
    struct layout *layout = layout_of(card);
    *layout = (struct layout){.mig_enabled = card->mig_enabled, .mig_pending = card->mig_enabled};
    for (const struct device *device = card + 1; device < card + SLOTS; device++) {
        if (!device->present)
            continue;
        struct compute *compute = &layout->computes[device->slot - 1];
        *compute = (struct compute){
            1, device->gpu_instance, device->compute_instance, device->attributes.compute_slices, ""};
        read_text(compute->uuid, device->uuid);
        struct partition *partition = partition_with(layout, device->gpu_instance);
        if (!partition)
            partition = free_partition(layout);
        *partition = (struct partition){
            1, card->card, device->gpu_instance, device->profile, device->start, device->size};
    }
}

/* Nothing that was described for the device in a slot is about the one that is there now. */
static void forget_device(const struct device *device)
{
    for (unsigned i = 0; i < node.failure_count; i++)
        if (node.failures[i].device == device)
            node.failures[i].device = &nobody;
    for (unsigned i = 0; i < node.process_count; i++)
        if (node.processes[i].device == device)
            node.processes[i].device = &nobody;
}

static void make_device(const struct device *card, unsigned slot, const struct compute *compute)
{
    struct device *device = card_number(card->card) + slot;
    const struct partition *partition = partition_with(layout_of(card), compute->partition);
    const struct profile *profile = profile_of(card, partition->profile);
    const struct gpu_instance_profile *whole = &profile->info;
    const unsigned part = whole->multiprocessors / whole->slices * compute->slices;
    memset(device, 0, sizeof *device);
    add_device(card->card, slot, compute->uuid);
    snprintf(device->name, TEXT, "%.50s MIG %.40s", card->name, profile->name);
    device->memory = whole->memory_mib << 20;
    device->gpu_instance = partition->id;
    device->compute_instance = compute->id;
    device->profile = partition->profile;
    device->attributes = (struct attributes){
        compute->slices == whole->slices ? whole->multiprocessors : part, whole->copy_engines, whole->decoders,
        whole->encoders, whole->jpegs, whole->ofas, whole->slices, compute->slices, whole->memory_mib};
}

/* Lets the MIG devices of a card be those of its layout. */
static void follow_layout(struct device *card)
{
    const struct layout *layout = layout_of(card);
    card->mig_enabled = layout->mig_enabled;
    for (unsigned slot = 1; slot < SLOTS; slot++) {
        const struct compute *compute = &layout->computes[slot - 1];
        if (card[slot].present && compute->present && !strcmp(card[slot].uuid, compute->uuid))
            continue;
        forget_device(&card[slot]);
        card[slot].present = 0;
        if (compute->present)
            make_device(card, slot, compute);
    }
}

static const struct device *device_with(const char *uuid)
{
    for (const struct device *device = node.devices; device < node.devices + DEVICES; device++)
        if (device->present && !strcmp(device->uuid, uuid))
            return device;
    return &nobody;
}

/* Locks or unlocks them for other processes, unless this process is changing them. */
static void lock_layouts(int how)
{
    while (!library.changing && library.layouts_file >= 0 && flock(library.layouts_file, how) && errno == EINTR)
        ;
}

/* Takes up what was changed through NVML, by whatever process. */
static void read_layouts(void)
{
    struct layouts changed = layouts;
    if (library.layouts) {
        lock_layouts(LOCK_SH);
        changed = *library.layouts;
        lock_layouts(LOCK_UN);
    }
    layouts.sequence = changed.sequence;
    for (unsigned card = 0; card < node.cards; card++) {
        const struct layout *layout = &changed.of[card];
        if (layout->changed && layout->generation == card_number(card)->generation)
            layouts.of[card] = *layout;
        else
            describe_layout(card_number(card));
        follow_layout(card_number(card));
    }
    for (struct process *process = node.processes; process < node.processes + node.process_count; process++)
        if (*process->uuid)
            process->device = device_with(process->uuid);
}

static void name_records(void)
{
    for (unsigned i = 0; i < FUNCTION_COUNT; i++)
        snprintf(library.records[i].name, sizeof library.records[i].name, "%s", function_names[i]);
    for (struct device *device = node.devices; device < node.devices + DEVICES; device++)
        if (device->present)
            snprintf(record_of(device)->name, sizeof record_of(device)->name, "%s", device->uuid);
}

static int open_beside(const char *suffix)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s.%s", library.path, suffix);
    return open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

static void map_records(void)
{
    void *mapped = MAP_FAILED;
    int file = open_beside("records");
    if (file >= 0 && ftruncate(file, sizeof unshared) == 0)
        mapped = mmap(NULL, sizeof unshared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    if (library.records != unshared)
        munmap(library.records, sizeof unshared);
    library.records = mapped == MAP_FAILED ? unshared : mapped;
}

static void map_layouts(void)
{
    if (library.layouts)
        munmap(library.layouts, sizeof layouts);
    if (library.layouts_file >= 0)
        close(library.layouts_file);
    memset(&layouts, 0, sizeof layouts);
    library.layouts = NULL;
    library.layouts_file = open_beside("layouts");
    if (library.layouts_file < 0 || ftruncate(library.layouts_file, sizeof layouts))
        return;
    void *mapped = mmap(NULL, sizeof layouts, PROT_READ | PROT_WRITE, MAP_SHARED, library.layouts_file, 0);
    library.layouts = mapped == MAP_FAILED ? NULL : mapped;
}

static int layouts_changed(void)
{
    return library.layouts && __atomic_load_n(&library.layouts->sequence, __ATOMIC_ACQUIRE) != layouts.sequence;
}

static int unchanged(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Takes up the newest description; one that vanished while the library is in use stays as it was. */
static int refresh(void)
{
    struct stat now;
    const char *path = library.references ? library.path : getenv(ENVIRONMENT_VARIABLE);

    if (!path || stat(path, &now))
        return library.references ? library.status : DRIVER_NOT_LOADED;
    if (strcmp(path, library.path)) {
        snprintf(library.path, sizeof library.path, "%s", path);
        map_records();
        map_layouts();
        memset(&library.seen, 0, sizeof library.seen);
    }
    if (!unchanged(&now, &library.seen) || layouts_changed()) {
        library.seen = now;
        library.status = read_description();
        read_layouts();
        name_records();
    }
    return library.status;
}

/* ---------------------------------------------------------------------------------- what every function begins with */

static int requested_failure(enum function function, const struct device *device)
{
    for (unsigned i = 0; i < node.failure_count; i++) {
        const struct failure *failure = &node.failures[i];
        if (failure->device == device && (failure->function == function || failure->function == ALL_FUNCTIONS))
            return failure->code;
    }
    return SUCCESS;
}

static void count(enum function function)
{
    __atomic_fetch_add(&library.records[function].value, 1, __ATOMIC_RELAXED);
}

static int admit(enum function function, int status)
{
    if (!library.references)
        return UNINITIALIZED;
    return status != SUCCESS ? status : requested_failure(function, NULL);
}

static int hangs(enum function function)
{
    for (unsigned i = 0; i < node.hang_count; i++)
        if (node.hangs[i].function == function && library.records[function].value >= node.hangs[i].call)
            return 1;
    return 0;
}

/* A call that hangs does so without the lock, so that other threads are answered meanwhile. */
static int enter(enum function function)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    int status = refresh();
    count(function);
    while (hangs(function)) {
        pthread_mutex_unlock(&mutex);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&mutex);
        status = refresh();
    }
    return admit(function, status);
}

static void number_cards(void)
{
    library.card_count = 0;
    for (unsigned card = 0; card < node.cards; card++)
        if (!card_number(card)->gone)
            library.cards[library.card_count++] = card;
}

/* NVML's number of a card, or the count of all for a card that has none. */
static unsigned number_of(const struct device *device)
{
    unsigned number = 0;
    while (number < library.card_count && library.cards[number] != device->card)
        number++;
    return number;
}

static int is_known(const struct device *device)
{
    return device->present && number_of(device) < library.card_count;
}

enum kind { CARD = 1, MIG = 2, ANY = CARD | MIG };

/* A MIG device shares the fate of its card. */
static int admit_device(enum function function, const struct device *device, enum kind kind)
{
    if (device < node.devices || device >= node.devices + DEVICES || !is_known(device))
        return INVALID_ARGUMENT;
    if (!((device->slot ? MIG : CARD) & kind))
        return INVALID_ARGUMENT;
    if (card_of(device)->gone)
        return GPU_IS_LOST;
    TRY(requested_failure(function, device));
    return requested_failure(function, card_of(device));
}

#define API(name, ...) __attribute__((visibility("default"))) int name(__VA_ARGS__)

#define ENTER(name)                                                                                                    \
    LOCKED;                                                                                                            \
    TRY(enter(ID_##name))

#define ENTER_WITH(name, device, kind)                                                                                 \
    ENTER(name);                                                                                                       \
    TRY(admit_device(ID_##name, device, kind))

#define REQUIRE(condition)                                                                                             \
    if (!(condition))                                                                                                  \
    return INVALID_ARGUMENT

/* A function that answers one value, either of the node or of one device. */
#define NODE_QUERY(name, type, value)                                                                                  \
    API(name, type *out)                                                                                               \
    {                                                                                                                  \
        ENTER(name);                                                                                                   \
        REQUIRE(out);                                                                                                  \
        *out = (value);                                                                                                \
        return SUCCESS;                                                                                                \
    }

#define QUERY(name, kind, type, value)                                                                                 \
    API(name, struct device *device, type *out)                                                                        \
    {                                                                                                                  \
        ENTER_WITH(name, device, kind);                                                                                \
        REQUIRE(out);                                                                                                  \
        *out = (value);                                                                                                \
        return SUCCESS;                                                                                                \
    }

#define TEXT_QUERY(name, kind, text)                                                                                   \
    API(name, struct device *device, char *buffer, unsigned length)                                                    \
    {                                                                                                                  \
        ENTER_WITH(name, device, kind);                                                                                \
        return give_text(buffer, length, text);                                                                        \
    }

static int give_text(char *buffer, unsigned length, const char *text)
{
    REQUIRE(buffer);
    if (strlen(text) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}

/* ------------------------------------------------------------------------------------------ the library and node */

/* The delay is waited for without the lock, so that other threads are answered meanwhile. */
static int initialise(enum function function)
{
    struct timespec delay;
    {
        LOCKED;
        refresh();
        count(function);
        delay.tv_sec = (time_t)(node.init_delay_ms / 1000);
        delay.tv_nsec = (long)(node.init_delay_ms % 1000) * 1000000;
    }
    while (nanosleep(&delay, &delay) && errno == EINTR)
        ;
    LOCKED;
    TRY(refresh());
    TRY(requested_failure(function, NULL));
    if (library.references++ == 0)
        number_cards();
    return SUCCESS;
}

API(nvmlInitWithFlags, unsigned flags)
{
    (void)flags;
    return initialise(ID_nvmlInitWithFlags);
}

API(nvmlInit_v2, void)
{
    return initialise(ID_nvmlInit_v2);
}

static void free_event_sets(void);

API(nvmlShutdown, void)
{
    ENTER(nvmlShutdown);
    if (--library.references == 0)
        free_event_sets();
    return SUCCESS;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(int code)
{
    LOCKED;
    refresh();
    count(ID_nvmlErrorString);
    return code >= 0 && code < (int)COUNT(code_texts) ? code_texts[code] : "Unknown Error";
}

API(nvmlSystemGetDriverVersion, char *version, unsigned length)
{
    ENTER(nvmlSystemGetDriverVersion);
    return give_text(version, length, node.driver);
}

NODE_QUERY(nvmlSystemGetCudaDriverVersion, unsigned, node.cuda)
NODE_QUERY(nvmlSystemGetCudaDriverVersion_v2, unsigned, node.cuda)
NODE_QUERY(nvmlDeviceGetCount_v2, unsigned, library.card_count)

/* ------------------------------------------------------------------------------------------------------- handles */

static int give_handle(enum function function, struct device *device, struct device **out)
{
    TRY(admit_device(function, device, ANY));
    *out = device;
    return SUCCESS;
}

API(nvmlDeviceGetHandleByIndex_v2, unsigned index, struct device **out)
{
    ENTER(nvmlDeviceGetHandleByIndex_v2);
    REQUIRE(index < library.card_count && out);
    return give_handle(ID_nvmlDeviceGetHandleByIndex_v2, card_number(library.cards[index]), out);
}

API(nvmlDeviceGetHandleByUUID, const char *uuid, struct device **out)
{
    ENTER(nvmlDeviceGetHandleByUUID);
    REQUIRE(uuid && out);
    for (struct device *device = node.devices; device < node.devices + DEVICES; device++)
        if (is_known(device) && !strcmp(device->uuid, uuid))
            return give_handle(ID_nvmlDeviceGetHandleByUUID, device, out);
    return NOT_FOUND;
}

static int same_place(const struct pci_info *a, const struct pci_info *b)
{
    return a->domain == b->domain && a->bus == b->bus && a->slot == b->slot;
}

API(nvmlDeviceGetHandleByPciBusId_v2, const char *bus_id, struct device **out)
{
    struct pci_info wanted;
    ENTER(nvmlDeviceGetHandleByPciBusId_v2);
    REQUIRE(bus_id && out && read_address(&wanted, bus_id));
    for (unsigned index = 0; index < library.card_count; index++)
        if (same_place(&card_number(library.cards[index])->pci, &wanted))
            return give_handle(ID_nvmlDeviceGetHandleByPciBusId_v2, card_number(library.cards[index]), out);
    return NOT_FOUND;
}

API(nvmlDeviceGetMigDeviceHandleByIndex, struct device *device, unsigned index, struct device **out)
{
    ENTER_WITH(nvmlDeviceGetMigDeviceHandleByIndex, device, CARD);
    REQUIRE(index < MAX_MIG && out);
    if (!device->mig_capable)
        return NOT_SUPPORTED;
    if (!device[1 + index].present)
        return NOT_FOUND;
    return give_handle(ID_nvmlDeviceGetMigDeviceHandleByIndex, &device[1 + index], out);
}

QUERY(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, MIG, struct device *, card_of(device))

/* ------------------------------------------------------------------------------------------ what a device is like */

TEXT_QUERY(nvmlDeviceGetName, ANY, device->name)
TEXT_QUERY(nvmlDeviceGetUUID, ANY, device->uuid)
QUERY(nvmlDeviceGetIndex, ANY, unsigned, device->slot ? device->slot - 1 : number_of(device))
QUERY(nvmlDeviceGetMinorNumber, CARD, unsigned, device->minor)
QUERY(nvmlDeviceGetBrand, CARD, unsigned, device->brand)
QUERY(nvmlDeviceGetPciInfo_v3, CARD, struct pci_info, device->pci)

API(nvmlDeviceGetCudaComputeCapability, struct device *device, unsigned *major, unsigned *minor)
{
    ENTER_WITH(nvmlDeviceGetCudaComputeCapability, device, CARD);
    REQUIRE(major && minor);
    *major = device->compute_major;
    *minor = device->compute_minor;
    return SUCCESS;
}

/* What version 1 calls used is the sum of what version 2 tells apart. */
API(nvmlDeviceGetMemoryInfo, struct device *device, struct memory_v1 *memory)
{
    ENTER_WITH(nvmlDeviceGetMemoryInfo, device, ANY);
    REQUIRE(memory);
    memory->total = device->memory;
    memory->used = device->reserved + device->used;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

API(nvmlDeviceGetMemoryInfo_v2, struct device *device, struct memory_v2 *memory)
{
    ENTER_WITH(nvmlDeviceGetMemoryInfo_v2, device, ANY);
    REQUIRE(memory);
    if (memory->version != MEMORY_V2)
        return ARGUMENT_VERSION_MISMATCH;
    memory->total = device->memory;
    memory->reserved = device->reserved;
    memory->used = device->used;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

/* A card in MIG mode does not say how busy it or an instance is. */
API(nvmlDeviceGetUtilizationRates, struct device *device, struct utilization *utilization)
{
    ENTER_WITH(nvmlDeviceGetUtilizationRates, device, CARD);
    REQUIRE(utilization);
    if (!device->utilization_known || device->mig_enabled)
        return NOT_SUPPORTED;
    *utilization = (struct utilization){.gpu = device->utilization};
    return SUCCESS;
}

/* A card in MIG mode has the processes of its instances. */
static int runs_on(const struct process *process, const struct device *device)
{
    return process->device == device || (!device->slot && device->mig_enabled && card_of(process->device) == device);
}

static int has_processes(const struct device *device)
{
    for (const struct process *process = node.processes; process < node.processes + node.process_count; process++)
        if (runs_on(process, device))
            return 1;
    return 0;
}

static int give_processes(const struct device *device, unsigned kind, unsigned *count, struct process_info *infos)
{
    unsigned room = *count, found = 0;
    for (const struct process *process = node.processes; process < node.processes + node.process_count; process++) {
        if (process->kind != kind || !runs_on(process, device))
            continue;
        if (infos && found < room)
            infos[found] = (struct process_info){
                process->pid, process->memory,
                process->device->slot ? process->device->gpu_instance : NO_INSTANCE,
                process->device->slot ? process->device->compute_instance : NO_INSTANCE};
        found++;
    }
    *count = found;
    return found > room || (found && !infos) ? INSUFFICIENT_SIZE : SUCCESS;
}

#define PROCESSES(name, kind)                                                                                          \
    API(name, struct device *device, unsigned *count, struct process_info *infos)                                      \
    {                                                                                                                  \
        ENTER_WITH(name, device, ANY);                                                                                 \
        REQUIRE(count);                                                                                                \
        return give_processes(device, kind, count, infos);                                                             \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS_CLIENT)

static u64 microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000;
}

/* One sample for each process that computed, made when it is asked for. */
API(nvmlDeviceGetProcessUtilization, struct device *device, struct process_utilization *samples, unsigned *count,
    u64 since)
{
    ENTER_WITH(nvmlDeviceGetProcessUtilization, device, ANY);
    REQUIRE(count);
    if (device->slot || device->mig_enabled)
        return NOT_SUPPORTED;
    const u64 now = microseconds();
    unsigned room = *count, found = 0;
    for (const struct process *process = node.processes; process < node.processes + node.process_count; process++) {
        if (process->device != device || process->utilization < 0 || now <= since)
            continue;
        if (samples && found < room)
            samples[found] = (struct process_utilization){
                .pid = process->pid, .timestamp = now, .gpu = (unsigned)process->utilization};
        found++;
    }
    *count = found;
    if (!found)
        return NOT_FOUND;
    return found > room || !samples ? INSUFFICIENT_SIZE : SUCCESS;
}

/* Each field has a status of its own; the call succeeds whatever becomes of them. */
API(nvmlDeviceGetFieldValues, struct device *device, int count, struct field_value *values)
{
    ENTER_WITH(nvmlDeviceGetFieldValues, device, CARD);
    REQUIRE(count > 0 && values);
    for (struct field_value *value = values; value < values + count; value++) {
        value->status = value->field == RECOVERY_ACTION && device->recovery_known ? SUCCESS : NOT_SUPPORTED;
        value->type = UNSIGNED_INT;
        value->value.number = device->recovery_action;
    }
    return SUCCESS;
}

/* A record of 0 is a mode that was never set: the description tells it. */
QUERY(nvmlDeviceGetComputeMode, ANY, unsigned,
      record_of(device)->value ? (unsigned)record_of(device)->value - 1 : device->compute_mode)

/* On a card in MIG mode only the MIG devices have a mode to set. */
API(nvmlDeviceSetComputeMode, struct device *device, unsigned mode)
{
    ENTER_WITH(nvmlDeviceSetComputeMode, device, ANY);
    REQUIRE(mode < COMPUTE_MODES);
    if (device->mig_enabled)
        return NOT_SUPPORTED;
    record_of(device)->value = mode + 1;
    return SUCCESS;
}

/* ----------------------------------------------------------------------------------------------------------- MIG */

API(nvmlDeviceGetMigMode, struct device *device, unsigned *current, unsigned *pending)
{
    ENTER_WITH(nvmlDeviceGetMigMode, device, CARD);
    REQUIRE(current && pending);
    if (!device->mig_capable)
        return NOT_SUPPORTED;
    *current = layout_of(device)->mig_enabled;
    *pending = layout_of(device)->mig_pending;
    return SUCCESS;
}

/* Makes a change of this process alone, from the newest layouts. */
static int begin_change(void)
{
    lock_layouts(LOCK_EX);
    library.changing = 1;
    return refresh();
}

static void end_change(const int *begun)
{
    (void)begun;
    library.changing = 0;
    lock_layouts(LOCK_UN);
}

#define CHANGING __attribute__((cleanup(end_change), unused)) int begun = begin_change()

/* Has the layout of a card, which was changed in this process, count for all. */
static int commit(struct device *card)
{
    struct layout *layout = layout_of(card);
    layout->changed = 1;
    layout->generation = card->generation;
    layouts.sequence++;
    if (library.layouts) {
        library.layouts->of[card->card] = *layout;
        __atomic_store_n(&library.layouts->sequence, layouts.sequence, __ATOMIC_RELEASE);
    }
    follow_layout(card);
    name_records();
    return SUCCESS;
}

static int has_partitions(struct layout *layout)
{
    for (const struct partition *partition = layout->partitions; partition < layout->partitions + MAX_MIG; partition++)
        if (partition->present)
            return 1;
    return 0;
}

/* The mode is activated at once on a card that is idle, unless it needs a reset that is not ours to make. */
API(nvmlDeviceSetMigMode, struct device *device, unsigned mode, int *activation)
{
    ENTER_WITH(nvmlDeviceSetMigMode, device, CARD);
    REQUIRE(activation && mode <= 1);
    if (!device->mig_capable)
        return NOT_SUPPORTED;
    CHANGING;
    struct layout *layout = layout_of(device);
    layout->mig_pending = mode;
    *activation = SUCCESS;
    if (mode != layout->mig_enabled && (has_processes(device) || has_partitions(layout)))
        *activation = IN_USE;
    else if (mode != layout->mig_enabled && device->mig_needs_reset)
        *activation = RESET_REQUIRED;
    else
        layout->mig_enabled = mode;
    return commit(device);
}

QUERY(nvmlDeviceGetMaxMigDeviceCount, CARD, unsigned, device->mig_enabled ? MAX_MIG : 0)
QUERY(nvmlDeviceIsMigDeviceHandle, ANY, unsigned, device->slot != 0)
QUERY(nvmlDeviceGetGpuInstanceId, MIG, unsigned, device->gpu_instance)
QUERY(nvmlDeviceGetComputeInstanceId, MIG, unsigned, device->compute_instance)

API(nvmlDeviceGetAttributes_v2, struct device *device, struct attributes *attributes)
{
    ENTER_WITH(nvmlDeviceGetAttributes_v2, device, ANY);
    REQUIRE(attributes);
    if (!device->slot)
        return NOT_SUPPORTED;
    *attributes = device->attributes;
    return SUCCESS;
}

/* The MIG device for which `number`, one of its numbers, is `wanted`; NULL where a card has none. */
static struct device *mig_with(struct device *card, size_t number, unsigned wanted)
{
    for (struct device *device = card + 1; device < card + SLOTS; device++)
        if (device->present && *(const unsigned *)((const char *)device + number) == wanted)
            return device;
    return NULL;
}

/* A card that is described without profiles supports those that it has instances of. */
static int give_profile(struct device *device, unsigned number, struct profile *out)
{
    const struct profile *known = profile_of(device, number);
    if (known) {
        *out = *known;
        return SUCCESS;
    }
    const struct device *mig = mig_with(device, offsetof(struct device, profile), number);
    if (!mig || device->profile_count)
        return NOT_SUPPORTED;
    *out = (struct profile){
        .number = number,
        .info = {.id = FIRST_PROFILE_ID + number,
                 .slices = mig->attributes.gpu_slices,
                 .multiprocessors = mig->attributes.multiprocessors,
                 .memory_mib = mig->attributes.memory_mib},
    };
    return SUCCESS;
}

API(nvmlDeviceGetGpuInstanceProfileInfo, struct device *device, unsigned number, struct gpu_instance_profile *info)
{
    struct profile profile;
    ENTER_WITH(nvmlDeviceGetGpuInstanceProfileInfo, device, CARD);
    REQUIRE(number < PROFILE_COUNT && info);
    TRY(give_profile(device, number, &profile));
    *info = profile.info;
    return SUCCESS;
}

API(nvmlDeviceGetGpuInstanceProfileInfoV, struct device *device, unsigned number, struct gpu_instance_profile_v2 *info)
{
    struct profile profile;
    ENTER_WITH(nvmlDeviceGetGpuInstanceProfileInfoV, device, CARD);
    REQUIRE(number < PROFILE_COUNT && info);
    if (info->version != GPU_INSTANCE_PROFILE_V2)
        return ARGUMENT_VERSION_MISMATCH;
    TRY(give_profile(device, number, &profile));
    *info = (struct gpu_instance_profile_v2){
        GPU_INSTANCE_PROFILE_V2, profile.info.id, profile.info.p2p, profile.info.slices, profile.info.instances,
        profile.info.multiprocessors, profile.info.copy_engines, profile.info.decoders, profile.info.encoders,
        profile.info.jpegs, profile.info.ofas, profile.info.memory_mib, ""};
    snprintf(info->name, sizeof info->name, "MIG %.80s", profile.name);
    return SUCCESS;
}

/* The profile with this ID, which is not NVML's number of it; NULL where the card has none. */
static const struct profile *profile_with(const struct device *card, unsigned id)
{
    for (unsigned i = 0; i < card->profile_count; i++)
        if (card->profiles[i].info.id == id)
            return &card->profiles[i];
    return NULL;
}

API(nvmlDeviceGetGpuInstancePossiblePlacements_v2, struct device *device, unsigned id, struct placement *placements,
    unsigned *count)
{
    ENTER_WITH(nvmlDeviceGetGpuInstancePossiblePlacements_v2, device, CARD);
    const struct profile *profile = profile_with(device, id);
    REQUIRE(count && profile);
    if (placements && *count < profile->start_count)
        return INSUFFICIENT_SIZE;
    *count = profile->start_count;
    for (unsigned i = 0; placements && i < profile->start_count; i++)
        placements[i] = (struct placement){profile->starts[i], profile->size};
    return SUCCESS;
}

/* Whether no GPU instance has any of the memory slices from `start` on. */
static int is_free(const struct layout *layout, unsigned start, unsigned size)
{
    for (const struct partition *partition = layout->partitions; partition < layout->partitions + MAX_MIG; partition++)
        if (partition->present && start < partition->start + partition->size && partition->start < start + size)
            return 0;
    return 1;
}

static unsigned partitions_of(const struct layout *layout, const struct profile *profile)
{
    unsigned found = 0;
    for (const struct partition *partition = layout->partitions; partition < layout->partitions + MAX_MIG; partition++)
        found += partition->present && partition->profile == profile->number;
    return found;
}

/* How many more GPU instances of a profile can be made: starts are in ascending order. */
static unsigned capacity(struct layout layout, const struct profile *profile)
{
    unsigned most = profile->info.instances - partitions_of(&layout, profile), found = 0;
    for (unsigned i = 0, next = 0; i < profile->start_count && found < most; i++)
        if (profile->starts[i] >= next && is_free(&layout, profile->starts[i], profile->size)) {
            found++;
            next = profile->starts[i] + profile->size;
        }
    return found;
}

API(nvmlDeviceGetGpuInstanceRemainingCapacity, struct device *device, unsigned id, unsigned *count)
{
    ENTER_WITH(nvmlDeviceGetGpuInstanceRemainingCapacity, device, CARD);
    if (!device->mig_enabled)
        return NOT_SUPPORTED;
    const struct profile *profile = profile_with(device, id);
    REQUIRE(count && profile);
    *count = capacity(*layout_of(device), profile);
    return SUCCESS;
}

/* The driver numbers GPU instances by their place: one of all slices, two of half, four of two, seven of one. */
static unsigned number_for(struct layout *layout, unsigned start, unsigned size)
{
    unsigned id = size > 4 ? 0 : size > 2 ? 1 + start / 4 : size > 1 ? 3 + start / 2 : 7 + start;
    while (partition_with(layout, id))
        id++;
    return id;
}

static int create_partition(struct device *device, const struct profile *profile, unsigned start,
                            struct partition **out)
{
    struct layout *layout = layout_of(device);
    struct partition *partition = free_partition(layout);
    if (!partition || !capacity(*layout, profile) || !is_free(layout, start, profile->size))
        return INSUFFICIENT_RESOURCES;
    const unsigned id = number_for(layout, start, profile->size);
    *partition = (struct partition){1, device->card, id, profile->number, start, profile->size};
    *out = partition;
    return commit(device);
}

API(nvmlDeviceCreateGpuInstance, struct device *device, unsigned id, struct partition **out)
{
    ENTER_WITH(nvmlDeviceCreateGpuInstance, device, CARD);
    const struct profile *profile = profile_with(device, id);
    REQUIRE(out && profile);
    CHANGING;
    if (!device->mig_enabled)
        return NOT_SUPPORTED;
    for (unsigned i = profile->start_count; i-- > 0;) /* the driver begins at the end */
        if (create_partition(device, profile, profile->starts[i], out) == SUCCESS)
            return SUCCESS;
    return INSUFFICIENT_RESOURCES;
}

API(nvmlDeviceCreateGpuInstanceWithPlacement, struct device *device, unsigned id, const struct placement *placement,
    struct partition **out)
{
    ENTER_WITH(nvmlDeviceCreateGpuInstanceWithPlacement, device, CARD);
    const struct profile *profile = profile_with(device, id);
    REQUIRE(out && placement && profile && placement->size == profile->size);
    CHANGING;
    if (!device->mig_enabled)
        return NOT_SUPPORTED;
    for (unsigned i = 0; i < profile->start_count; i++)
        if (profile->starts[i] == placement->start)
            return create_partition(device, profile, placement->start, out);
    return INVALID_ARGUMENT;
}

/* As with the driver's, the caller has room for as many as the profile allows. */
API(nvmlDeviceGetGpuInstances, struct device *device, unsigned id, struct partition **out, unsigned *count)
{
    ENTER_WITH(nvmlDeviceGetGpuInstances, device, CARD);
    if (!device->mig_enabled)
        return NOT_SUPPORTED;
    const struct profile *profile = profile_with(device, id);
    REQUIRE(out && count && profile);
    struct layout *layout = layout_of(device);
    *count = 0;
    for (struct partition *partition = layout->partitions; partition < layout->partitions + MAX_MIG; partition++)
        if (partition->present && partition->profile == profile->number)
            out[(*count)++] = partition;
    return SUCCESS;
}

/* A GPU instance shares the fate of its card, and fails where its first MIG device does. */
static int admit_partition(enum function function, const struct partition *partition)
{
    const char *begin = (const char *)&layouts;
    if ((const char *)partition < begin || (const char *)partition >= (const char *)(&layouts + 1))
        return INVALID_ARGUMENT;
    if (!partition->present)
        return NOT_FOUND;
    struct device *card = card_number(partition->card);
    const struct device *first = mig_with(card, offsetof(struct device, gpu_instance), partition->id);
    if (first)
        TRY(requested_failure(function, first));
    return admit_device(function, card, CARD);
}

API(nvmlDeviceGetGpuInstanceById, struct device *device, unsigned id, struct partition **out)
{
    ENTER_WITH(nvmlDeviceGetGpuInstanceById, device, CARD);
    REQUIRE(out);
    *out = partition_with(layout_of(device), id);
    return *out ? admit_partition(ID_nvmlDeviceGetGpuInstanceById, *out) : NOT_FOUND;
}

#define ENTER_PARTITION(name, partition)                                                                               \
    ENTER(name);                                                                                                       \
    TRY(admit_partition(ID_##name, partition))

API(nvmlGpuInstanceGetInfo, struct partition *partition, struct gpu_instance *info)
{
    struct profile profile;
    ENTER_PARTITION(nvmlGpuInstanceGetInfo, partition);
    REQUIRE(info);
    struct device *card = card_number(partition->card);
    TRY(give_profile(card, partition->profile, &profile));
    *info = (struct gpu_instance){card, partition->id, profile.info.id, {partition->start, partition->size}};
    return SUCCESS;
}

/* The compute slices that a GPU instance's compute instances have. */
static unsigned slices_in_use(const struct layout *layout, const struct partition *partition)
{
    unsigned found = 0;
    for (const struct compute *compute = layout->computes; compute < layout->computes + MAX_MIG; compute++)
        if (compute->present && compute->partition == partition->id)
            found += compute->slices;
    return found;
}

/* Compute instances go first: the driver destroys no GPU instance that has any. */
API(nvmlGpuInstanceDestroy, struct partition *partition)
{
    ENTER_PARTITION(nvmlGpuInstanceDestroy, partition);
    CHANGING;
    TRY(admit_partition(ID_nvmlGpuInstanceDestroy, partition));
    struct device *card = card_number(partition->card);
    if (slices_in_use(layout_of(card), partition))
        return IN_USE;
    partition->present = 0;
    return commit(card);
}

/* Slices of the compute instances of a profile, whose number is its ID, too; 0 where the GPU instance allows none. */
static unsigned compute_slices(const struct partition *partition, unsigned number)
{
    const struct profile *profile = profile_of(card_number(partition->card), partition->profile);
    if (!profile || number >= COUNT(compute_profile_slices) || compute_profile_slices[number] > profile->info.slices)
        return 0;
    return compute_profile_slices[number];
}

API(nvmlGpuInstanceGetComputeInstanceProfileInfo, struct partition *partition, unsigned number, unsigned engines,
    struct compute_instance_profile *info)
{
    ENTER_PARTITION(nvmlGpuInstanceGetComputeInstanceProfileInfo, partition);
    REQUIRE(info && number < COMPUTE_PROFILE_COUNT && engines < ENGINE_PROFILES);
    const unsigned slices = compute_slices(partition, number);
    if (!slices)
        return NOT_SUPPORTED;
    const struct gpu_instance_profile *whole = &profile_of(card_number(partition->card), partition->profile)->info;
    *info = (struct compute_instance_profile){
        number, slices, whole->slices / slices, whole->multiprocessors / whole->slices * slices,
        whole->copy_engines, whole->decoders, whole->encoders, whole->jpegs, whole->ofas};
    return SUCCESS;
}

/* Like the driver's, the UUID follows from the card and the two IDs: an instance that is made again has the same. */
static void name_compute(struct compute *compute, const struct device *card)
{
    char place[TEXT * 2];
    u64 hashes[2] = {14695981039346656037u, 1099511628211u};
    snprintf(place, sizeof place, "%s/%u/%u", card->uuid, compute->partition, compute->id);
    for (unsigned i = 0; i < COUNT(hashes); i++) /* FNV-1a */
        for (const char *letter = place; *letter; letter++)
            hashes[i] = (hashes[i] ^ (unsigned char)*letter) * 1099511628211u;
    snprintf(compute->uuid, sizeof compute->uuid, "MIG-%08x-%04x-5%03x-8%03x-%012llx", (unsigned)(hashes[0] >> 32),
             (unsigned)(hashes[0] >> 16 & 0xffff), (unsigned)(hashes[0] & 0xfff), (unsigned)(hashes[1] >> 52),
             hashes[1] & 0xffffffffffff);
}

static struct compute *compute_with(struct layout *layout, unsigned partition, unsigned id)
{
    for (struct compute *compute = layout->computes; compute < layout->computes + MAX_MIG; compute++)
        if (compute->present && compute->partition == partition && compute->id == id)
            return compute;
    return NULL;
}

API(nvmlGpuInstanceCreateComputeInstance, struct partition *partition, unsigned number, struct device **out)
{
    ENTER_PARTITION(nvmlGpuInstanceCreateComputeInstance, partition);
    REQUIRE(out && compute_slices(partition, number));
    CHANGING;
    TRY(admit_partition(ID_nvmlGpuInstanceCreateComputeInstance, partition));
    struct device *card = card_number(partition->card);
    struct layout *layout = layout_of(card);
    const struct profile *profile = profile_of(card, partition->profile);
    unsigned slot = 0, id = 0;
    while (slot < MAX_MIG && layout->computes[slot].present)
        slot++;
    if (slot == MAX_MIG ||
        slices_in_use(layout, partition) + compute_slices(partition, number) > profile->info.slices)
        return INSUFFICIENT_RESOURCES;
    while (compute_with(layout, partition->id, id))
        id++;
    layout->computes[slot] = (struct compute){1, partition->id, id, compute_slices(partition, number), ""};
    name_compute(&layout->computes[slot], card);
    *out = card + 1 + slot;
    return commit(card);
}

static const struct compute *compute_of(const struct device *device)
{
    return &layout_of(device)->computes[device->slot - 1];
}

API(nvmlGpuInstanceGetComputeInstances, struct partition *partition, unsigned number, struct device **out,
    unsigned *count)
{
    ENTER_PARTITION(nvmlGpuInstanceGetComputeInstances, partition);
    const unsigned slices = compute_slices(partition, number);
    REQUIRE(out && count && slices);
    struct device *card = card_number(partition->card);
    *count = 0;
    for (struct device *device = card + 1; device < card + SLOTS; device++)
        if (device->present && device->gpu_instance == partition->id && compute_of(device)->slices == slices)
            out[(*count)++] = device;
    return SUCCESS;
}

/* A handle of a compute instance is that of its MIG device here. */
API(nvmlComputeInstanceGetInfo_v2, struct device *device, struct compute_instance *info)
{
    ENTER_WITH(nvmlComputeInstanceGetInfo_v2, device, MIG);
    REQUIRE(info);
    const struct compute *compute = compute_of(device);
    unsigned number = 0;
    while (compute_profile_slices[number] != compute->slices)
        number++;
    *info = (struct compute_instance){
        card_of(device), partition_with(layout_of(device), compute->partition), compute->id, number,
        {0, compute->slices}};
    return SUCCESS;
}

API(nvmlComputeInstanceDestroy, struct device *device)
{
    ENTER_WITH(nvmlComputeInstanceDestroy, device, MIG);
    CHANGING;
    TRY(admit_device(ID_nvmlComputeInstanceDestroy, device, MIG));
    if (has_processes(device))
        return IN_USE;
    layout_of(device)->computes[device->slot - 1].present = 0;
    return commit(card_of(device));
}

/* ------------------------------------------------------------------------------------------- between two devices */

API(nvmlDeviceGetTopologyCommonAncestor, struct device *first, struct device *second, int *level)
{
    ENTER_WITH(nvmlDeviceGetTopologyCommonAncestor, first, CARD);
    TRY(admit_device(ID_nvmlDeviceGetTopologyCommonAncestor, second, CARD));
    REQUIRE(level);
    *level = (int)first->peers[second->card].topology;
    return SUCCESS;
}

/* Whether a link leads to `peer`, or to a switch where `peer` is NULL. */
static int has_link(const struct device *card, const struct device *peer)
{
    for (const struct link *link = card->links; link < card->links + card->link_count; link++)
        if (peer ? same_place(&link->remote, &peer->pci) : link->type == LINK_TO_SWITCH)
            return 1;
    return 0;
}

API(nvmlDeviceGetP2PStatus, struct device *first, struct device *second, int capability, int *status)
{
    ENTER_WITH(nvmlDeviceGetP2PStatus, first, CARD);
    TRY(admit_device(ID_nvmlDeviceGetP2PStatus, second, CARD));
    REQUIRE(status && capability >= 0 && capability < P2P_CAPABILITIES);
    *status = (int)first->peers[second->card].p2p;
    if (*status == P2P_OK && capability == P2P_CAPABILITY_NVLINK && !has_link(first, second) &&
        !(has_link(first, NULL) && has_link(second, NULL)))
        *status = P2P_NOT_SUPPORTED;
    return SUCCESS;
}

/* A function about one NvLink of a card, for those below `limit`. */
#define LINK_QUERY(name, type, limit, value)                                                                           \
    API(name, struct device *device, unsigned number, type *out)                                                       \
    {                                                                                                                  \
        ENTER_WITH(name, device, CARD);                                                                                \
        if (!device->nvlink_slots)                                                                                     \
            return NOT_SUPPORTED;                                                                                      \
        REQUIRE(out && number < device->limit);                                                                        \
        *out = (value);                                                                                                \
        return SUCCESS;                                                                                                \
    }

LINK_QUERY(nvmlDeviceGetNvLinkState, unsigned, nvlink_slots, number < device->link_count)
LINK_QUERY(nvmlDeviceGetNvLinkRemotePciInfo_v2, struct pci_info, link_count, device->links[number].remote)
LINK_QUERY(nvmlDeviceGetNvLinkRemoteDeviceType, unsigned, link_count, device->links[number].type)

/* -------------------------------------------------------------------------------------------------------- events */

/* `card` is -1 where NVML cannot say which device it was. */
struct event_record {
    long long card;
    u64 type, data;
    unsigned gpu_instance, compute_instance;
};

/* Each set reads the file of events at its own pace, from where it ended when a card was registered. */
struct event_set {
    int in_use;
    int events, changes;
    off_t next;
    u64 types[MAX_CARDS];
    off_t since[MAX_CARDS];
};

static struct event_set event_sets[MAX_EVENT_SETS];

static int admit_set(const struct event_set *set)
{
    return set >= event_sets && set < event_sets + MAX_EVENT_SETS && set->in_use ? SUCCESS : INVALID_ARGUMENT;
}

static void free_event_set(struct event_set *set)
{
    close(set->events);
    close(set->changes);
    memset(set, 0, sizeof *set);
}

static void free_event_sets(void)
{
    for (unsigned i = 0; i < MAX_EVENT_SETS; i++)
        if (event_sets[i].in_use)
            free_event_set(&event_sets[i]);
}

/* A descriptor that becomes readable when an event is appended or the description is replaced. */
static int watch_changes(void)
{
    char path[PATH_MAX];
    int changes = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    strcpy(path, library.path);
    if (inotify_add_watch(changes, dirname(path), IN_MODIFY | IN_MOVED_TO) >= 0)
        return changes;
    close(changes);
    return -1;
}

API(nvmlEventSetCreate, struct event_set **out)
{
    struct event_set *set = event_sets;
    ENTER(nvmlEventSetCreate);
    REQUIRE(out);
    while (set->in_use)
        if (++set == event_sets + MAX_EVENT_SETS)
            return INSUFFICIENT_RESOURCES;
    set->events = open_beside("events");
    set->changes = watch_changes();
    if (set->events < 0 || set->changes < 0) { /* no descriptor is free, or no inotify instance of this user */
        free_event_set(set);
        return INSUFFICIENT_RESOURCES;
    }
    set->next = lseek(set->events, 0, SEEK_END);
    set->in_use = 1;
    *out = set;
    return SUCCESS;
}

API(nvmlEventSetFree, struct event_set *set)
{
    ENTER(nvmlEventSetFree);
    TRY(admit_set(set));
    free_event_set(set);
    return SUCCESS;
}

QUERY(nvmlDeviceGetSupportedEventTypes, CARD, u64, device->events)

API(nvmlDeviceRegisterEvents, struct device *device, u64 types, struct event_set *set)
{
    ENTER_WITH(nvmlDeviceRegisterEvents, device, CARD);
    TRY(admit_set(set));
    if (types & ~device->events)
        return NOT_SUPPORTED;
    if (!set->types[device->card])
        set->since[device->card] = lseek(set->events, 0, SEEK_END);
    set->types[device->card] |= types;
    return SUCCESS;
}

static int wanted(const struct event_set *set, const struct event_record *event, off_t at)
{
    if (event->card < 0 || event->card >= MAX_CARDS)
        return 1;
    return (set->types[event->card] & event->type) && at >= set->since[event->card];
}

static int take_event(struct event_set *set, struct event_data *data)
{
    struct event_record event;
    while (pread(set->events, &event, sizeof event, set->next) == sizeof event) {
        off_t at = set->next;
        set->next += (off_t)sizeof event;
        if (!wanted(set, &event, at))
            continue;
        data->device = event.card < 0 || event.card >= MAX_CARDS ? NULL : card_number((unsigned)event.card);
        data->type = event.type;
        data->data = event.data;
        data->gpu_instance = event.gpu_instance;
        data->compute_instance = event.compute_instance;
        return 1;
    }
    return 0;
}

static u64 nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000 + (u64)now.tv_nsec;
}

/* Forgets the changes seen so far; what is looked at afterwards is newer, so nothing is missed in between. */
static void forget_changes(const struct event_set *set)
{
    char changes[4096];
    while (read(set->changes, changes, sizeof changes) > 0)
        ;
}

/* Sleeps without the lock, so that other threads are answered meanwhile. */
API(nvmlEventSetWait_v2, struct event_set *set, struct event_data *data, unsigned timeout_ms)
{
    const u64 deadline = nanoseconds() + (u64)timeout_ms * 1000000;
    struct pollfd changes = {.events = POLLIN};
    for (int first = 1;; first = 0) {
        {
            LOCKED;
            if (admit_set(set) == SUCCESS)
                forget_changes(set);
            TRY(first ? enter(ID_nvmlEventSetWait_v2) : admit(ID_nvmlEventSetWait_v2, refresh()));
            TRY(admit_set(set));
            REQUIRE(data);
            if (take_event(set, data))
                return SUCCESS;
            changes.fd = set->changes;
        }
        const u64 now = nanoseconds();
        if (now >= deadline)
            return TIMEOUT;
        const u64 left_ms = (deadline - now + 999999) / 1000000;
        if (poll(&changes, 1, left_ms > INT_MAX ? INT_MAX : (int)left_ms) < 0)
            return TIMEOUT;
    }
}

/* -------------------------------------------------------------------------------------------------- memory limits */

#include "memory_limits.c"
