#include "driver/microvm/argv.h"

#define MIB (1024 * 1024)

/* Translated code of TCG; QEMU's own default is an eighth of the host's RAM. */
#define TCG_CODE_MB 128

const char *sp_accel_name(enum sp_accel accel)
{
    return accel == SP_ACCEL_KVM ? "kvm" : "tcg";
}

const char *sp_qemu_cpu(enum sp_accel accel)
{
    /* Emulating these features of supervisor mode costs time at every guest kernel entry. */
    return accel == SP_ACCEL_KVM ? "host" : "max,la57=off,smap=off,smep=off,pku=off,umip=off";
}

const char *sp_qemu_kernel_options(enum sp_accel accel)
{
    /* panic=-1 and -no-reboot: a panic ends the VMM at once. reboot=t, a triple fault, is the one
     * reset that this machine knows; without it the kernel ends in real mode, where no firmware is.
     * Speculation does not exist in emulated CPUs, so its mitigations are dropped there, and only
     * there. */
    return accel == SP_ACCEL_KVM
               ? "quiet panic=-1 reboot=t cryptomgr.notests lsm= ima=off"
               : "quiet panic=-1 reboot=t cryptomgr.notests lsm= ima=off tsc=reliable "
                 "mitigations=off nopti";
}

int64_t sp_qemu_overhead_bytes(enum sp_accel accel, int64_t memory_mb)
{
    /* Heap, stacks, caches of dirty disk pages: 96 MiB. Page tables and the like: 1/64 of the RAM.
     * Holes of the image's shared memory: the first VM that touches one is charged for the page
     * that then fills it, and once more for its private copy. That is all of the RAM at worst. */
    int64_t mb = 96 + memory_mb / 64 + memory_mb + (accel == SP_ACCEL_TCG ? TCG_CODE_MB : 0);
    return mb * MIB;
}

G_GNUC_PRINTF(2, 3)
static void add(GPtrArray *argv, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_ptr_array_add(argv, g_strdup_vprintf(format, args));
    va_end(args);
}

static void option(GPtrArray *argv, const char *name, const char *value)
{
    add(argv, "%s", name);
    if (value)
        add(argv, "%s", value);
}

static void add_machine(GPtrArray *argv, const struct sp_qemu_config *config)
{
    option(argv, "-nodefaults", NULL);
    option(argv, "-no-user-config", NULL);
    option(argv, "-no-reboot", NULL);
    option(argv, "-display", "none");
    option(argv, "-sandbox",
           "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    option(argv, "-machine", "microvm,acpi=on,rtc=on,isa-serial=off,pcie=off,memory-backend=ram");
    add(argv, "-accel");
    if (config->accel == SP_ACCEL_KVM)
        add(argv, "kvm");
    else
        add(argv, "tcg,thread=multi,tb-size=%d", TCG_CODE_MB);
    option(argv, "-cpu", sp_qemu_cpu(config->accel));
    add(argv, "-smp");
    add(argv, "%u", config->vcpus);
    add(argv, "-m");
    add(argv, "%" G_GINT64_FORMAT, config->memory_mb);
    add(argv, "-object");
    add(argv,
        "memory-backend-file,id=ram,size=%" G_GINT64_FORMAT "M,mem-path=/proc/self/fd/%d,share=%s",
        config->memory_mb, SP_VMM_FD_MEMORY, config->shared_ram ? "on" : "off");
}

static void add_devices(GPtrArray *argv)
{
    add(argv, "-chardev");
    add(argv, "socket,id=qmp,fd=%d,server=on,wait=off", SP_VMM_FD_QMP);
    option(argv, "-mon", "chardev=qmp,mode=control");
    add(argv, "-chardev");
    add(argv, "socket,id=agent,fd=%d,server=on,wait=off", SP_VMM_FD_AGENT);
    option(argv, "-device", "virtio-serial-device,max_ports=2");
    option(argv, "-device", "virtserialport,chardev=agent,name=agent");

    /* fd sets: the files need no name that the VMM's uid could open. An error of the host's disk
     * goes to the guest; the default would stop the whole VM when the host's disk is full. */
    add(argv, "-add-fd");
    add(argv, "fd=%d,set=1", SP_VMM_FD_ROOT);
    option(argv, "-drive",
           "if=none,id=root,file=/dev/fdset/1,format=raw,readonly=on,file.locking=off,"
           "werror=report,rerror=report");
    option(argv, "-device", "virtio-blk-device,drive=root,serial=root");
    add(argv, "-add-fd");
    add(argv, "fd=%d,set=2", SP_VMM_FD_RW);
    option(argv, "-drive",
           "if=none,id=rw,file=/dev/fdset/2,format=raw,auto-read-only=off,cache=writeback,"
           "discard=unmap,file.locking=off,werror=report,rerror=report");
    option(argv, "-device", "virtio-blk-device,drive=rw,serial=rw");
}

static void add_boot(GPtrArray *argv, const struct sp_qemu_config *config)
{
    add(argv, "-kernel");
    add(argv, "/proc/self/fd/%d", SP_VMM_FD_KERNEL);
    add(argv, "-initrd");
    add(argv, "/proc/self/fd/%d", SP_VMM_FD_INITRAMFS);
    add(argv, "-append");
    if (config->accel == SP_ACCEL_TCG)
        /* Without the rate the kernel looks for a timer that this machine does not have, for ever.
         */
        add(argv, "%s tsc_early_khz=%u", sp_qemu_kernel_options(config->accel), config->tsc_khz);
    else
        add(argv, "%s", sp_qemu_kernel_options(config->accel));
}

static void add_restore(GPtrArray *argv)
{
    /* The state comes from xen-save-devices-state, which writes no configuration section; -S: the
     * guest starts when told, not when loaded. */
    option(argv, "-S", NULL);
    option(argv, "-incoming", "defer");
    option(argv, "-global", "migration.send-configuration=off");
}

char **sp_qemu_argv(const struct sp_qemu_config *config)
{
    GPtrArray *argv = g_ptr_array_new();
    add(argv, "%s", config->qemu_path);
    add_machine(argv, config);
    add_devices(argv);
    if (config->boot)
        add_boot(argv, config);
    else
        add_restore(argv);
    g_ptr_array_add(argv, NULL);
    return (char **)g_ptr_array_free(argv, FALSE);
}
