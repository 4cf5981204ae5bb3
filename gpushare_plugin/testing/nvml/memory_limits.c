/*
 * The part of library.c about memory limits of cgroups, which drivers from 615 on have. The facts:
 *
 *   [H]  nvml.h of CUDA 13.4 (NVIDIA/nvidia-container-toolkit, branch cuda-memory-limits, vendored go-nvml)
 *   [M]  NVIDIA, "Multi-Process Service", r615, "MPS v3 Memory Partitioning"
 *   [S]  NVIDIA/open-gpu-kernel-modules 615.71.09, src/nvidia/src/kernel/mem_mgr/memacct.c
 *   [K]  torvalds/linux, kernel/cgroup/dmem.c
 *
 * A directory with the file cgroup.procs is a cgroup; the root is the one whose parent is none. Backend `dmem` keeps the
 * limits in the kernel's files, which are the files of the cgroup. Backend `misc` keeps the limits in the driver, which
 * knows a cgroup by the address of the kernel's object: here the number in the file .address, which the trees of
 * gpushare_plugin.testing.cgroups have, or else device and inode of the directory.
 *
 * <file>.limits has the driver's table, one `struct limit_entry` after the other. Whoever reads or changes the table or
 * a file dmem.* holds its lock (flock). memory.py charges under the same lock what processes allocate.
 */

enum limit_backend { LIMITS_OFF, LIMITS_MISC, LIMITS_DMEM };
#define NO_LIMIT ((u64)-1) /* [H] NVML_DEVICE_MEMORY_LIMIT_MAX */

struct set_limits {
    const char *cgroup;
    u64 soft, hard;
};

struct get_limits {
    const char *cgroup;
    u64 soft, hard, used;
};

struct limit_entry {
    u64 card, device, address, soft, hard, used;
};

/* ------------------------------------------------------------------------------------------------------- cgroups */

static int is_cgroup(const char *path)
{
    char procs[PATH_MAX + 16];
    snprintf(procs, sizeof procs, "%s/cgroup.procs", path);
    return !access(procs, F_OK);
}

/* Makes a path that of its parent; answers false for the root, which stays as it is. */
static int to_parent(char *path)
{
    char parent[PATH_MAX];
    strcpy(parent, path);
    char *end = strrchr(parent, '/');
    if (!end || end == parent)
        return 0;
    *end = 0;
    if (!is_cgroup(parent))
        return 0;
    strcpy(path, parent);
    return 1;
}

static int is_root(const char *path)
{
    char parent[PATH_MAX];
    strcpy(parent, path);
    return !to_parent(parent);
}

/* [H] OPERATING_SYSTEM where the path cannot be opened. What other directories are answered is not known. */
static int find_cgroup(const char *given, char *path)
{
    struct stat found;
    if (!given || !realpath(given, path) || stat(path, &found) || !S_ISDIR(found.st_mode))
        return OPERATING_SYSTEM;
    return is_cgroup(path) ? SUCCESS : INVALID_ARGUMENT;
}

/* ---------------------------------------------------------------------------------------------- the driver's table */

static int open_limits(void)
{
    int file = open_beside("limits");
    while (file >= 0 && flock(file, LOCK_EX) && errno == EINTR)
        ;
    return file;
}

static void close_limits(const int *file)
{
    if (*file >= 0)
        close(*file);
}

#define LIMITS __attribute__((cleanup(close_limits))) int limits = open_limits()

/* Fills in which cgroup an entry is about; answers false for a directory that is gone. */
static int identify(const char *path, struct limit_entry *entry)
{
    char name[PATH_MAX + 16];
    struct stat found;
    snprintf(name, sizeof name, "%s/.address", path);
    FILE *file = fopen(name, "re");
    const int known = file && fscanf(file, "%llu", &entry->address) == 1;
    if (file)
        fclose(file);
    if (known || stat(path, &found))
        return known;
    entry->device = found.st_dev;
    entry->address = found.st_ino;
    return 1;
}

/* Finds the entry of a cgroup itself, and answers its place in the file; -1 without one. */
static off_t find_entry(int limits, const struct device *card, const char *path, struct limit_entry *entry)
{
    struct limit_entry wanted = {.card = card->card};
    if (!identify(path, &wanted))
        return -1;
    for (off_t at = 0; pread(limits, entry, sizeof *entry, at) == sizeof *entry; at += (off_t)sizeof *entry)
        if (entry->card == wanted.card && entry->device == wanted.device && entry->address == wanted.address)
            return at;
    *entry = wanted;
    return -1;
}

/* [S] memacctGetLimits: of the nearest cgroup that has an entry; the same answer as without any backend if none has. */
static int get_misc(int limits, const struct device *card, char *path, struct get_limits *answer)
{
    struct limit_entry entry;
    do {
        if (find_entry(limits, card, path, &entry) < 0)
            continue;
        answer->soft = entry.soft;
        answer->hard = entry.hard;
        answer->used = entry.used;
        return SUCCESS;
    } while (to_parent(path));
    return NOT_SUPPORTED;
}

/* [S] memacctSetLimits. No limit is an entry, too, and hides the entries of ancestors. What NVML makes of the driver's
 * NV_ERR_INVALID_LIMIT is not known; of the answers in [H] only UNKNOWN is left. */
static int set_misc(int limits, const struct device *card, const char *path, const struct set_limits *wanted)
{
    struct limit_entry entry;
    if (is_root(path))
        return NOT_SUPPORTED;
    off_t at = find_entry(limits, card, path, &entry);
    if (entry.used > wanted->hard)
        return UNKNOWN;
    entry.soft = wanted->soft;
    entry.hard = wanted->hard;
    if (at < 0)
        at = lseek(limits, 0, SEEK_END);
    return pwrite(limits, &entry, sizeof entry, at) == sizeof entry ? SUCCESS : UNKNOWN;
}

/* ------------------------------------------------------------------------------------------------ the kernel's files */

/* The name of the memory of a card, as in dmem.capacity. */
static void name_region(const struct device *card, char *name)
{
    snprintf(name, TEXT, "nvidia/%04x:%02x:%02x.0/vidmem", card->pci.domain, card->pci.bus, card->pci.slot);
}

static FILE *open_dmem(const char *path, const char *file, const char *mode)
{
    char name[PATH_MAX + 32];
    snprintf(name, sizeof name, "%s/dmem.%s", path, file);
    return fopen(name, mode);
}

static int has_dmem(const char *path, const char *file)
{
    FILE *found = open_dmem(path, file, "re");
    if (found)
        fclose(found);
    return found != NULL;
}

/* Reads the number of a card in a file, where `max` is NO_LIMIT; `otherwise` without a line of the card. */
static u64 read_dmem(const struct device *card, const char *path, const char *file, u64 otherwise)
{
    char region[TEXT], name[TEXT], value[TEXT];
    FILE *found = open_dmem(path, file, "re");
    name_region(card, region);
    while (found && fscanf(found, "%95s %95s", name, value) == 2)
        if (!strcmp(name, region))
            otherwise = strcmp(value, "max") ? strtoull(value, NULL, 10) : NO_LIMIT;
    if (found)
        fclose(found);
    return otherwise;
}

/* Writes the number of a card, as the kernel does, which keeps the numbers of other cards. */
static int write_dmem(const struct device *card, const char *path, const char *file, u64 value)
{
    char region[TEXT], name[TEXT], number[TEXT], wanted[TEXT] = "max", text[8192] = "";
    size_t length = 0;
    int known = 0;
    FILE *found = open_dmem(path, file, "re");
    name_region(card, region);
    if (value != NO_LIMIT)
        snprintf(wanted, sizeof wanted, "%llu", value);
    while (found && length < sizeof text - 3 * TEXT && fscanf(found, "%95s %95s", name, number) == 2) {
        const int same = !strcmp(name, region);
        length += (size_t)sprintf(text + length, "%s %s\n", name, same ? wanted : number);
        known |= same;
    }
    if (found)
        fclose(found);
    if (!known)
        sprintf(text + length, "%s %s\n", region, wanted);
    if (!(found = open_dmem(path, file, "we")))
        return UNKNOWN;
    fputs(text, found);
    return fclose(found) ? UNKNOWN : SUCCESS;
}

/* [M] A cgroup without the files is answered the limits of the nearest ancestor with files. */
static int get_dmem(const struct device *card, char *path, struct get_limits *answer)
{
    while (!has_dmem(path, "max"))
        if (!to_parent(path))
            return NOT_FOUND;
    answer->soft = read_dmem(card, path, "min", 0);
    answer->hard = read_dmem(card, path, "max", NO_LIMIT);
    answer->used = read_dmem(card, path, "current", 0);
    return SUCCESS;
}

/* [M] The change of the soft limit is added to dmem.min of each ancestor, up to the first one without that file. [K] A
 * kernel keeps dmem.max without a word where more is in use. One that refuses (EBUSY) is on the kernel's mailing lists;
 * what NVML makes of that is not known. */
static int set_dmem(const struct device *card, char *path, const struct set_limits *wanted)
{
    if (!has_dmem(path, "max"))
        return NOT_FOUND;
    const int kept = read_dmem(card, path, "current", 0) > wanted->hard;
    if (kept && node.kernel_refuses)
        return UNKNOWN;
    const u64 change = wanted->soft - read_dmem(card, path, "min", 0); /* modulo 2^64, as the sum below */
    TRY(write_dmem(card, path, "min", wanted->soft));
    if (!kept)
        TRY(write_dmem(card, path, "max", wanted->hard));
    while (change && to_parent(path) && has_dmem(path, "min"))
        TRY(write_dmem(card, path, "min", read_dmem(card, path, "min", 0) + change));
    return SUCCESS;
}

/* -------------------------------------------------------------------------------------------------- the functions */

/* A driver that is older than 615 is built without the functions; where a process has loaded another build, as tests
 * with several nodes have, it is answered what the loader would have said. */
static int admit_limits(const struct device *card)
{
    if (atoi(node.driver) < 615)
        return FUNCTION_NOT_FOUND;
    return node.limit_backend == LIMITS_OFF || card->mig_enabled ? NOT_SUPPORTED : SUCCESS;
}

#ifdef WITHOUT_MEMORY_LIMITS
#define LIMITS_API(name, ...) int name(__VA_ARGS__) /* hidden, as all that is not an API */
#else
#define LIMITS_API API
#endif

LIMITS_API(nvmlDeviceSetMemoryLimits_v1, struct device *device, const struct set_limits *wanted)
{
    char path[PATH_MAX];
    ENTER_WITH(nvmlDeviceSetMemoryLimits_v1, device, CARD);
    REQUIRE(wanted);
    TRY(admit_limits(device));
    if (getenv(UNPRIVILEGED_VARIABLE))
        return NO_PERMISSION;
    REQUIRE(wanted->soft <= wanted->hard && wanted->soft <= device->memory);
    REQUIRE(wanted->hard <= device->memory || wanted->hard == NO_LIMIT);
    TRY(find_cgroup(wanted->cgroup, path));
    LIMITS;
    return node.limit_backend == LIMITS_MISC ? set_misc(limits, device, path, wanted) : set_dmem(device, path, wanted);
}

LIMITS_API(nvmlDeviceGetMemoryLimits_v1, struct device *device, struct get_limits *answer)
{
    char path[PATH_MAX];
    ENTER_WITH(nvmlDeviceGetMemoryLimits_v1, device, CARD);
    REQUIRE(answer);
    TRY(admit_limits(device));
    TRY(find_cgroup(answer->cgroup, path));
    LIMITS;
    return node.limit_backend == LIMITS_MISC ? get_misc(limits, device, path, answer) : get_dmem(device, path, answer);
}
