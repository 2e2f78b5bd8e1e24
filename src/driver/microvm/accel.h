/*
 * Which accelerator works here, found by trial.
 *
 * That /dev/kvm can be opened proves little: under some hypervisors guests hang or the VMM aborts.
 * So the guest kernel is booted up to the agent's first answer and its state is saved, first with
 * KVM and then, if need be, with TCG. A verdict that something works is kept in
 * <state>/microvm/verdict.ini for this boot of the host, this QEMU and these guest files; one that
 * nothing works is not kept.
 */
#pragma once

#include "driver/microvm/private.h"

/* Longest trials; a machine under load boots a guest in TCG in a few seconds. */
#define SP_TRIAL_KVM_MS 7000
#define SP_TRIAL_TCG_MS 12000

/* SP_ERROR_UNSUPPORTED with the reason when VMs cannot run here. Takes no lock. */
struct sp_vm_host *sp_accel_find(struct sp_microvm *vm, const struct sp_guest *guest,
                                 GError **error);
